//! The spare segment.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    segment::{SEGMENT_HEADER_BYTES, SegmentHeader},
    usage::JournalUsage,
};
use crate::{
    ballast::Ballast,
    directory::layout,
    storage::{Storage, StorageFile},
};

const SPARE: &str = "spare";

/// What is kept back for changes that must go on when the disk is full is this part of a segment.
const RESERVE_PART: u64 = 8;

/// What the checkpoint store takes for what the journal holds, at most: its pages are half full at worst.
const CHECKPOINT_FACTOR: u64 = 2;

/// How long a refused allocation is not tried again.
const ALLOCATION_RETRY: Duration = Duration::from_millis(50);

/// The spare segment, allocated ahead.
#[derive(Debug)]
pub(crate) struct Spare {
    storage: Arc<dyn Storage>,
    directory: PathBuf,
    segment_bytes: u64,
    state: Mutex<SpareState>,
    usage: Arc<JournalUsage>,
    ballast: Arc<Ballast>,
    /// Little more than the reserve was left when the last change was ordered.
    is_scarce: AtomicBool,
}

#[derive(Debug, Default)]
struct SpareState {
    allocated: Option<Allocated>,
    /// The number of the next spare's file: one that was taken keeps its name until it gets its own.
    next: u64,
    refused: Option<Instant>,
}

/// A file with its blocks, all zeros.
#[derive(Debug)]
pub(crate) struct Allocated {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    bytes: u64,
}

impl Allocated {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl SpareState {
    fn bytes(&self) -> u64 {
        self.allocated
            .as_ref()
            .map_or(0, |allocated| allocated.bytes)
    }

    fn room(&self) -> u64 {
        self.bytes().saturating_sub(SEGMENT_HEADER_BYTES)
    }
}

impl Spare {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        directory: PathBuf,
        segment_bytes: u64,
        (usage, ballast): (Arc<JournalUsage>, Arc<Ballast>),
    ) -> Self {
        let is_scarce = AtomicBool::new(false);
        Self {
            storage,
            directory,
            segment_bytes,
            state: Mutex::default(),
            usage,
            ballast,
            is_scarce,
        }
    }

    /// How many bytes are kept back for changes that must go on when the disk is full.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.segment_bytes / RESERVE_PART
    }

    /// Whether little more than the reserve was left when the last change was ordered; known without any lock.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed)
    }

    pub(crate) fn note_scarcity(&self, is_scarce: bool) {
        self.is_scarce.store(is_scarce, Ordering::Relaxed);
    }

    /// Whether the disk did not have a whole segment for it.
    pub(crate) fn is_short(&self) -> bool {
        self.state.lock().bytes() < self.segment_bytes
    }

    /// How many bytes of records a whole segment has room for.
    pub(crate) fn whole_room(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }

    /// How many bytes of records the spare has room for.
    pub(crate) fn room(&self) -> u64 {
        self.state.lock().room()
    }

    /// Removes spares that an earlier start, or a failed promotion, left behind.
    pub(crate) fn clean(&self) -> io::Result<()> {
        let held = self.state.lock();
        for name in self
            .storage
            .list(&self.directory)?
            .iter()
            .filter(|name| name.starts_with(SPARE))
        {
            let path = self.directory.join(name);
            if held
                .allocated
                .as_ref()
                .is_none_or(|allocated| allocated.path != path)
            {
                self.storage.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Has the spare hold at least `bytes` of records; answers how many it holds, refused or not. A refused
    /// allocation is not repeated for [`ALLOCATION_RETRY`].
    pub(crate) fn grow(&self, bytes: u64) -> u64 {
        let mut held = self.state.lock();
        let too_soon = held
            .refused
            .is_some_and(|refused| refused.elapsed() < ALLOCATION_RETRY);
        if !too_soon {
            self.grow_beside(&mut held, bytes, self.usage.bytes_to_fold_when_full());
        }
        held.room()
    }

    /// The same for a journal that goes on in it at once: what is left of the current segment is never written then.
    pub(crate) fn grow_to_go_on(&self, bytes: u64) -> u64 {
        let mut held = self.state.lock();
        self.grow_beside(&mut held, bytes, self.usage.bytes_to_fold());
        held.room()
    }

    fn grow_beside(&self, held: &mut SpareState, bytes: u64, to_fold: u64) {
        let needed = bytes + SEGMENT_HEADER_BYTES;
        if held.bytes() < needed && self.ballast.is_held() {
            let whole = if needed <= self.segment_bytes {
                self.segment_bytes
            } else {
                needed.next_power_of_two()
            };
            if !self.allocate_beside_checkpoints(held, whole, needed, to_fold)
                && held.refused.is_none()
            {
                let got = held.bytes();
                tracing::warn!(
                    bytes = whole,
                    got,
                    "no room for another whole journal segment"
                );
            }
            held.refused = (held.bytes() < needed).then(Instant::now);
        }
    }

    /// Has the spare hold at least `bytes` of records whatever is left beside it: for who is getting out of a full disk, or
    /// has just come.
    pub(crate) fn grow_anyway(&self, bytes: u64) -> u64 {
        let mut held = self.state.lock();
        let needed = (bytes + SEGMENT_HEADER_BYTES).next_multiple_of(self.reserve_bytes());
        if held.bytes() < needed {
            // Who asks hears it from what is held then.
            let _ = self.allocate(&mut held, needed);
        }
        held.room()
    }

    /// Allocates `whole`, or as much of it by halves, `needed` at least, as leaves room for a checkpoint of it and of `to_fold`;
    /// whether it was whole.
    fn allocate_beside_checkpoints(
        &self,
        held: &mut SpareState,
        whole: u64,
        needed: u64,
        to_fold: u64,
    ) -> bool {
        let free = self.storage.free_bytes(&self.directory).unwrap_or(u64::MAX);
        let free = free
            .saturating_add(self.ballast.bytes())
            .saturating_add(held.bytes());
        let mut piece = whole;
        while piece >= needed {
            let to_leave = CHECKPOINT_FACTOR * (to_fold + piece);
            if free >= piece.saturating_add(to_leave) && self.allocate(held, piece).is_ok() {
                return piece == whole;
            }
            piece = if piece == needed {
                0
            } else {
                (piece / 2).max(needed)
            };
        }
        false
    }

    fn allocate(&self, held: &mut SpareState, bytes: u64) -> io::Result<()> {
        if let Some(allocated) = &mut held.allocated {
            if let Err(error) = allocated.file.allocate(bytes) {
                // A file system may keep what it could give: hand it back, others need it.
                let _ = allocated.file.set_len(allocated.bytes);
                return Err(error);
            }
            allocated.bytes = bytes;
            return Ok(());
        }
        let path = self.directory.join(format!("{SPARE}-{}", held.next));
        let file = self.storage.open(&path)?;
        if let Err(error) = file.allocate(bytes) {
            drop(file);
            let _ = self.storage.remove(&path);
            return Err(error);
        }
        held.next += 1;
        held.allocated = Some(Allocated { file, path, bytes });
        Ok(())
    }

    /// Takes the spare, to be promoted: from now on its room is not offered to anybody else.
    pub(crate) fn take(&self) -> Option<Allocated> {
        self.state.lock().allocated.take()
    }

    /// Makes a taken spare the segment that `header` describes: durable, and under its name.
    pub(crate) fn promote(
        &self,
        allocated: Allocated,
        header: SegmentHeader,
        salt: u32,
    ) -> io::Result<(Arc<dyn StorageFile>, u64)> {
        allocated.file.write_at(&header.encode(salt), 0)?;
        allocated.file.sync_data()?;
        self.storage.rename(
            &allocated.path,
            &self.directory.join(layout::segment_file(header.number)),
        )?;
        self.storage.sync_directory(&self.directory)?;
        Ok((allocated.file, allocated.bytes))
    }

    /// The journal's directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests;
