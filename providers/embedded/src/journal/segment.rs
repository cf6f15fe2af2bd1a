//! Segments: the files a journal is made of, and the spare that is kept allocated.
//!
//! A segment is given all its disk blocks at creation. Its header, synced before its first record, says
//! where the segment before it ended: so a tail that a failed write or a crash left there is known to be
//! void, and a byte that is damaged before that end is known to matter. It says how long the file is, too, which is synced with
//! it: one that is shorter was cut by no crash.
//!
//! The spare is the free-space reserve of rule P6: a group that does not fit the current segment becomes the
//! first of the spare, which then takes its name among the segments. Only renaming is left to do then.
//!
//! A disk that has no room for a whole segment gives a smaller one. It is given none without room beside it for a
//! checkpoint of all that the journal would then hold and none does: else what was taken in could never leave the journal.
//!
//! ```text
//! magic u64 | crc u32 | zero u32 | number u64 | first sequence u64 | previous end u64 | created by u64 | bytes u64
//! ```

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

use super::JournalFacts;
use crate::{
    ballast::Ballast,
    storage::{Storage, StorageFile},
};

/// The length of a segment's header: where its first frame starts.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;

/// The number of a journal's first segment.
pub(crate) const FIRST_SEGMENT: u64 = 1;

const MAGIC: u64 = 0x3130_4745_5346_4c00 | 0x0000_0000_0000_004a; // "J" "LFSEG01"
const SPARE: &str = "spare";
const EXTENSION: &str = ".log";

/// What is kept back for changes that must go on when the disk is full is this part of a segment.
const RESERVE_PART: u64 = 8;

/// What the checkpoint store takes for what the journal holds, at most: its pages are half full at worst.
const CHECKPOINT_FACTOR: u64 = 2;

/// How long a refused allocation is not tried again.
const ALLOCATION_RETRY: Duration = Duration::from_millis(50);

/// What a segment says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Its place among the segments.
    pub(crate) number: u64,
    /// The number of its first record.
    pub(crate) first_sequence: u64,
    /// Where the records of the segment before it end; zero if there is none before it.
    pub(crate) previous_end: u64,
    /// Who made it.
    pub(crate) incarnation: u64,
    /// How long the file was made; zero where an earlier release has made it, which did not say.
    pub(crate) bytes: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self, salt: u32) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = checksum(&bytes, salt);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES as usize)?;
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let crc = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        (number(0)? == MAGIC && checksum(bytes, salt) == crc).then_some(())?;
        Some(Self {
            number: number(16)?,
            first_sequence: number(24)?,
            previous_end: number(32)?,
            incarnation: number(40)?,
            bytes: number(48)?,
        })
    }
}

fn checksum(bytes: &[u8], salt: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}

/// Where segments lie in the data directory.
pub(crate) const DIRECTORY: &str = "journal";

/// The name of segment `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}{EXTENSION}")
}

/// The number of the segment called `name`, if it is one.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(EXTENSION)?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// The spare segment, allocated ahead.
#[derive(Debug)]
pub(crate) struct Spare {
    storage: Arc<dyn Storage>,
    directory: PathBuf,
    segment_bytes: u64,
    held: Mutex<Held>,
    facts: Arc<JournalFacts>,
    ballast: Arc<Ballast>,
    /// Little more than the reserve was left when the last change was ordered.
    is_scarce: AtomicBool,
}

#[derive(Debug, Default)]
struct Held {
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

impl Held {
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
        (facts, ballast): (Arc<JournalFacts>, Arc<Ballast>),
    ) -> Self {
        let is_scarce = AtomicBool::new(false);
        Self {
            storage,
            directory,
            segment_bytes,
            held: Mutex::default(),
            facts,
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
        self.held.lock().bytes() < self.segment_bytes
    }

    /// How many bytes of records a whole segment has room for.
    pub(crate) fn whole_room(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }

    /// How many bytes of records the spare has room for.
    pub(crate) fn room(&self) -> u64 {
        self.held.lock().room()
    }

    /// Removes spares that an earlier start, or a failed promotion, left behind.
    pub(crate) fn clean(&self) -> io::Result<()> {
        let held = self.held.lock();
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
        let mut held = self.held.lock();
        let too_soon = held
            .refused
            .is_some_and(|refused| refused.elapsed() < ALLOCATION_RETRY);
        if !too_soon {
            self.grow_beside(&mut held, bytes, self.facts.bytes_to_fold_when_full());
        }
        held.room()
    }

    /// The same for a journal that goes on in it at once: what is left of the current segment is never written then.
    pub(crate) fn grow_to_go_on(&self, bytes: u64) -> u64 {
        let mut held = self.held.lock();
        self.grow_beside(&mut held, bytes, self.facts.bytes_to_fold());
        held.room()
    }

    fn grow_beside(&self, held: &mut Held, bytes: u64, to_fold: u64) {
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
        let mut held = self.held.lock();
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
        held: &mut Held,
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

    fn allocate(&self, held: &mut Held, bytes: u64) -> io::Result<()> {
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
        self.held.lock().allocated.take()
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
            &self.directory.join(file_name(header.number)),
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
