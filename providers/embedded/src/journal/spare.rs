//! The spare segment, allocated ahead.
//!
//! The spare is the free-space reserve of rule P6. A group that does not fit the current segment
//! becomes the first group of the spare, which then takes its name among the segments. Only the
//! rename remains to be done then.
//!
//! If the disk has no room for a whole segment, the spare is a smaller one. Except in
//! [`Spare::grow_anyway`], an allocation leaves disk space for a checkpoint of everything that the
//! journal would then hold and no checkpoint covers. Without that space, accepted changes could
//! never leave the journal.
//!
//! A few segments that a checkpoint covers are kept, and become spares without an allocation. If the
//! disk then has less room than [`KEPT_FREE_SEGMENTS`], or a checkpoint finds it full, they go.

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
    direct::DirectFile,
    segment::{CurrentSegment, FIRST_SEGMENT, SEGMENT_HEADER_BYTES, SegmentHeader},
    usage::{ClosedSegment, JournalUsage},
};
use crate::{
    ballast::Ballast,
    directory::layout,
    storage::{PAGE_BYTES, Storage, StorageFile},
};

const SPARE: &str = "spare";

/// The reserve, which changes that must go on with a full disk may use, is one part of this many of
/// a segment.
const RESERVE_PART: u64 = 8;

/// The bound of the checkpoint store's size, as a multiple of the journal's bytes: at worst,
/// its pages are half full.
const CHECKPOINT_FACTOR: u64 = 2;

/// How many segments are kept for reuse. A checkpoint covers about as many with the default sizes.
const KEPT_MAX: usize = 4;

/// The room on the disk, in segments, with which segments are kept for reuse.
const KEPT_FREE_SEGMENTS: u64 = 64;

/// How long a refused allocation is not repeated.
const ALLOCATION_RETRY: Duration = Duration::from_millis(50);

/// The spare segment.
#[derive(Debug)]
pub(crate) struct Spare {
    storage: Arc<dyn Storage>,
    directory: PathBuf,
    segment_bytes: u64,
    state: Mutex<SpareState>,
    usage: Arc<JournalUsage>,
    ballast: Arc<Ballast>,
    /// Whether changes that add to the store were accepted last. Only the store changes it.
    has_room: AtomicBool,
    /// Whether a write around the page cache was refused.
    refuses_pages: AtomicBool,
}

#[derive(Debug, Default)]
struct SpareState {
    allocated: Option<Allocated>,
    /// Whole segments of earlier records, to become the next spares.
    kept: Vec<Allocated>,
    /// The number of the next spare file. A taken spare keeps its name until its promotion renames
    /// it.
    next: u64,
    refused: Option<Instant>,
}

/// An allocated file of zeros, or of a removed segment's records.
#[derive(Debug)]
pub(crate) struct Allocated {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    bytes: u64,
    /// Where the records of the removed segment end; zero in a file of zeros.
    reused: u64,
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

    fn next_path(&mut self, directory: &Path) -> PathBuf {
        self.next += 1;
        directory.join(format!("{SPARE}-{}", self.next))
    }
}

impl Spare {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        directory: PathBuf,
        segment_bytes: u64,
        (usage, ballast): (Arc<JournalUsage>, Arc<Ballast>),
    ) -> Self {
        Self {
            storage,
            directory,
            segment_bytes,
            state: Mutex::default(),
            usage,
            ballast,
            has_room: AtomicBool::new(true),
            refuses_pages: AtomicBool::new(false),
        }
    }

    /// Whether changes that add to the store were accepted last. Takes no lock.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_room(&self, has_room: bool) {
        self.has_room.store(has_room, Ordering::Relaxed);
    }

    /// The size of the reserve for changes that must go on when the disk is full.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.segment_bytes / RESERVE_PART
    }

    /// Whether the spare is smaller than a whole segment.
    pub(crate) fn is_short(&self) -> bool {
        self.state.lock().bytes() < self.segment_bytes
    }

    /// The bytes of records that fit a whole segment.
    pub(crate) fn whole_room(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }

    /// The bytes of records that fit the spare.
    pub(crate) fn room(&self) -> u64 {
        self.state.lock().room()
    }

    /// Removes the spare files of an earlier start or of a failed promotion.
    pub(crate) fn clean(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.kept.clear();
        for name in self
            .storage
            .list(&self.directory)?
            .iter()
            .filter(|name| name.starts_with(SPARE))
        {
            let path = self.directory.join(name);
            if state
                .allocated
                .as_ref()
                .is_none_or(|allocated| allocated.path != path)
            {
                self.storage.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Grows the spare to at least `bytes` of records if the disk allows it. Returns the bytes that
    /// it then has room for. A refused allocation is not repeated for [`ALLOCATION_RETRY`].
    pub(crate) fn grow(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let too_soon = state
            .refused
            .is_some_and(|refused| refused.elapsed() < ALLOCATION_RETRY);
        if !too_soon {
            self.grow_beside(&mut state, bytes, self.usage.bytes_to_fold_when_full());
        }
        state.room()
    }

    /// Grows the spare as [`Spare::grow`] does, for a journal that continues in it at once. The
    /// rest of the current segment is then never written, so no checkpoint need have room for it.
    pub(crate) fn grow_to_go_on(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        self.grow_beside(&mut state, bytes, self.usage.bytes_to_fold());
        state.room()
    }

    fn grow_beside(&self, state: &mut SpareState, bytes: u64, to_fold: u64) {
        let needed = bytes + SEGMENT_HEADER_BYTES;
        if state.bytes() < needed && self.ballast.is_held() {
            let whole = if needed <= self.segment_bytes {
                self.segment_bytes
            } else {
                needed.next_power_of_two()
            };
            if !self.allocate_beside_checkpoints(state, whole, needed, to_fold)
                && state.refused.is_none()
            {
                let got = state.bytes();
                tracing::warn!(
                    bytes = whole,
                    got,
                    "the disk has no room for another whole journal segment"
                );
            }
            state.refused = (state.bytes() < needed).then(Instant::now);
        }
    }

    /// Grows the spare to at least `bytes` of records without leaving disk space for a checkpoint.
    /// A store that gets out of a full disk, or that starts on one, needs this.
    pub(crate) fn grow_anyway(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        self.remove_kept(&mut state);
        let needed = (bytes + SEGMENT_HEADER_BYTES).next_multiple_of(self.reserve_bytes());
        if state.bytes() < needed {
            // The caller learns from the returned size whether this succeeded.
            let _ = self.allocate(&mut state, needed);
        }
        state.room()
    }

    /// Allocates `whole` bytes, or a fraction by halves down to `needed`, so that room remains for
    /// a checkpoint of it and of `to_fold`. Returns whether it allocated the whole.
    fn allocate_beside_checkpoints(
        &self,
        state: &mut SpareState,
        whole: u64,
        needed: u64,
        to_fold: u64,
    ) -> bool {
        if self.free_bytes() < KEPT_FREE_SEGMENTS * self.segment_bytes {
            self.remove_kept(state);
        } else if state.allocated.is_none()
            && whole == self.segment_bytes
            && let Some(kept) = state.kept.pop()
        {
            state.allocated = Some(kept);
            return true;
        }
        let free = self
            .free_bytes()
            .saturating_add(self.ballast.bytes())
            .saturating_add(state.bytes());
        let mut piece = whole;
        while piece >= needed {
            let to_leave = CHECKPOINT_FACTOR * (to_fold + piece);
            if free >= piece.saturating_add(to_leave) && self.allocate(state, piece).is_ok() {
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

    fn allocate(&self, state: &mut SpareState, bytes: u64) -> io::Result<()> {
        if let Some(allocated) = &mut state.allocated {
            if let Err(error) = allocated.file.allocate(bytes) {
                // A file system may keep the part that it could allocate. Give it back, because
                // others need it.
                let _ = allocated.file.set_len(allocated.bytes);
                return Err(error);
            }
            allocated.bytes = bytes;
            return Ok(());
        }
        let path = state.next_path(&self.directory);
        let file = self.storage.open(&path)?;
        if let Err(error) = file.allocate(bytes) {
            drop(file);
            let _ = self.storage.remove(&path);
            return Err(error);
        }
        state.allocated = Some(Allocated {
            file,
            path,
            bytes,
            reused: 0,
        });
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        self.storage.free_bytes(&self.directory).unwrap_or(u64::MAX)
    }

    /// Takes a segment that a checkpoint covers out of the journal, durably, and keeps its file for
    /// reuse if it may.
    ///
    /// Errors: those of the disk. A repeated call then completes the removal.
    pub(crate) fn retire(&self, segment: ClosedSegment) -> io::Result<()> {
        let named = self.directory.join(layout::segment_file(segment.number));
        let reused = segment.reusable.filter(|_| self.may_keep(segment));
        let path = reused.map(|_| self.state.lock().next_path(&self.directory));
        let moved = match &path {
            Some(path) => self.storage.rename(&named, path),
            None => self.storage.remove(&named),
        };
        match moved {
            // An earlier attempt moved the file and then failed to sync.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.storage.sync_directory(&self.directory);
            }
            moved => moved?,
        }
        let synced = self.storage.sync_directory(&self.directory);
        if let (Some(path), Some(reused)) = (path, reused) {
            match self.opened(path.clone(), reused) {
                // Not before the sync: a new header must not appear under the old name.
                Ok(kept) if synced.is_ok() && kept.bytes == self.segment_bytes => {
                    self.state.lock().kept.push(kept);
                }
                _ => self.remove_unneeded(&path),
            }
        }
        synced
    }

    fn opened(&self, path: PathBuf, reused: u64) -> io::Result<Allocated> {
        let file = self.storage.open(&path)?;
        let bytes = file.len()?;
        Ok(Allocated {
            file,
            path,
            bytes,
            reused,
        })
    }

    /// Whether the file of a segment may be kept for reuse. A segment without records may have a
    /// frame that failed to become durable at its start, with the number that the next record has.
    fn may_keep(&self, segment: ClosedSegment) -> bool {
        segment.bytes > 0
            && self.has_room()
            && self.ballast.bytes() == self.ballast.whole_bytes()
            && self.state.lock().kept.len() < KEPT_MAX
            && self.free_bytes() >= KEPT_FREE_SEGMENTS * self.segment_bytes
    }

    /// Gives the disk space of the segments kept for reuse back.
    pub(crate) fn release_kept(&self) {
        self.remove_kept(&mut self.state.lock());
    }

    fn remove_kept(&self, state: &mut SpareState) {
        for kept in state.kept.drain(..) {
            self.remove_unneeded(&kept.path);
        }
    }

    fn remove_unneeded(&self, path: &Path) {
        if let Err(error) = self.storage.remove(path) {
            let file = path.display();
            tracing::warn!(%error, %file, "a file kept for the journal could not be removed; the next start removes it");
        }
    }

    /// Takes the spare for a promotion. From now on, its room is not offered to other changes.
    pub(crate) fn take(&self) -> Option<Allocated> {
        self.state.lock().allocated.take()
    }

    /// Makes a taken spare the segment after `previous`, durable and under its name. The last record
    /// so far has number `sequence`.
    pub(crate) fn promote(
        &self,
        allocated: Allocated,
        previous: Option<&CurrentSegment>,
        sequence: u64,
        incarnation: u64,
        salt: u32,
    ) -> io::Result<CurrentSegment> {
        let Allocated {
            file,
            path,
            bytes,
            reused,
        } = allocated;
        let header = SegmentHeader {
            number: previous.map_or(FIRST_SEGMENT, |previous| previous.number + 1),
            first_sequence: sequence + 1,
            previous_end: previous.map_or(0, |previous| previous.end),
            incarnation,
            bytes,
            reused,
        };
        // With zeros up to the end of the page, as behind each record.
        let mut start = header.encode(salt).to_vec();
        start.resize(PAGE_BYTES.min(bytes) as usize, 0);
        file.write_at(&start, 0)?;
        file.sync_data()?;
        let named = self.directory.join(layout::segment_file(header.number));
        self.storage.rename(&path, &named)?;
        self.storage.sync_directory(&self.directory)?;
        let mut segment = CurrentSegment {
            number: header.number,
            file,
            end: SEGMENT_HEADER_BYTES,
            bytes,
            zeroed: start.len() as u64,
            reused,
            direct: None,
        };
        self.open_direct(&mut segment)?;
        Ok(segment)
    }

    /// Opens `segment` for writes around the page cache, if the file system takes them.
    ///
    /// Errors: as [`DirectFile::open`].
    pub(crate) fn open_direct(&self, segment: &mut CurrentSegment) -> io::Result<()> {
        let refuses = self.refuses_pages.load(Ordering::Relaxed);
        if !refuses && segment.bytes.is_multiple_of(PAGE_BYTES) && segment.end < segment.bytes {
            let path = self.directory.join(layout::segment_file(segment.number));
            let (storage, file) = (&*self.storage, &*segment.file);
            segment.direct = DirectFile::open(storage, &path, file, segment.end)?;
        }
        Ok(())
    }

    /// Notes that the file system refused a write around the page cache, although it took another.
    /// From now on, all are written through it.
    pub(super) fn note_refusal(&self, error: &io::Error) {
        let directory = self.directory.display();
        tracing::info!(%error, %directory, "the journal is written through the page cache: its file system refuses direct writes");
        self.refuses_pages.store(true, Ordering::Relaxed);
    }

    /// The journal's directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests;
