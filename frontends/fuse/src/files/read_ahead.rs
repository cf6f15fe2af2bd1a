//! Read-ahead: fetches the next part of a file that is read from front to back, while the present one
//! is copied.
//!
//! It is for mounts whose kernel caches no pages. The fetched blocks go to the client's cache of the
//! volume, and each read is answered as without them. So read-ahead changes no answer, and a block
//! that another client changes meanwhile is read again.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use files::{FileSystem, Ino};
use futures_util::future::{BoxFuture, FutureExt as _, Shared, join_all};
use parking_lot::Mutex;

/// The bytes that were read in a row before the first fetch.
const ROW_BYTES_MIN: u64 = 128 << 10;
/// The bytes of a fetch. Two are under way at most for each file.
const FETCH_BYTES: u64 = 1 << 20;
/// The most files whose reads are remembered. Beyond, all are forgotten.
const FILES_MAX: usize = 1_024;

/// The reads of each file.
#[derive(Debug, Default)]
pub(super) struct ReadAhead(Mutex<BTreeMap<Ino, Row>>);

/// Reads that follow each other.
#[derive(Debug, Default)]
struct Row {
    /// Where the next one begins.
    next: u64,
    /// The bytes so far.
    bytes: u64,
    /// Where the next fetch begins.
    ahead: u64,
    fetches: VecDeque<(Range<u64>, Fetch)>,
}

type Fetch = Shared<BoxFuture<'static, ()>>;

impl Row {
    /// Notes a read of `read`. Returns the range to fetch now.
    fn goes_on(&mut self, read: &Range<u64>) -> Option<Range<u64>> {
        if read.start != self.next {
            *self = Self::default();
        }
        self.next = read.end;
        self.bytes += read.end - read.start;
        self.ahead = self.ahead.max(read.end);
        let is_due = self.bytes >= ROW_BYTES_MIN && self.ahead < read.end + FETCH_BYTES;
        is_due.then(|| {
            let from = self.ahead;
            self.ahead += FETCH_BYTES;
            from..self.ahead
        })
    }
}

impl ReadAhead {
    /// Begins a fetch where one is due, and waits for those of the range that is read.
    pub(super) async fn before(&self, files: &Arc<FileSystem>, ino: Ino, offset: u64, size: u32) {
        let read = offset..offset.saturating_add(u64::from(size));
        let needed: Vec<Fetch> = {
            let rows = &mut *self.0.lock();
            if rows.len() >= FILES_MAX && !rows.contains_key(&ino) {
                rows.clear();
            }
            let row = rows.entry(ino).or_default();
            if let Some(range) = row.goes_on(&read) {
                let (files, at) = (Arc::clone(files), range.clone());
                // A failure shows when the part is read.
                let fetch = async move { files.read_ahead(ino, at).await };
                let fetch = tokio::spawn(fetch).map(drop).boxed().shared();
                row.fetches.push_back((range, fetch));
            }
            row.fetches.retain(|(range, _)| range.end > read.start);
            let needed = row.fetches.iter();
            let needed = needed.filter(|(range, _)| range.start < read.end);
            needed.map(|(_, fetch)| fetch.clone()).collect()
        };
        join_all(needed).await;
    }

    /// The file is closed.
    pub(super) fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use files::{
        cache::{CachedVolume, Policy},
        model::{Access, Privileges},
    };
    use in_process::{SystemClock, SystemEntropy};
    use transactions::serializable::{
        ModelVolume, VolumeStore,
        model::{BlockBytes, SessionId},
    };

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u32 = 1 << 20;

    fn fetched(reads: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut row = Row::default();
        let reads = reads.iter().map(|(from, until)| from * KIB..until * KIB);
        let fetched = reads.filter_map(|read| row.goes_on(&read));
        fetched
            .map(|range| range.start / KIB..range.end / KIB)
            .collect()
    }

    #[test]
    fn only_reads_that_follow_each_other_are_read_ahead() {
        assert_eq!(fetched(&[(0, 64), (64, 100), (0, 64), (99, 120)]), []);
        let in_a_row = [(0, 64), (64, 128), (128, 192)];
        assert_eq!(fetched(&in_a_row), [128..1152, 1152..2176]);
    }

    #[test]
    fn a_fetch_is_ahead_of_long_reads_and_of_short_ones() {
        let reads = |count: u64, kib: u64| {
            let reads = (0..count).map(|number| (number * kib, (number + 1) * kib));
            fetched(&reads.collect::<Vec<_>>())
        };
        let long = [1024..2048, 2048..3072, 3072..4096, 4096..5120];
        assert_eq!(reads(4, 1024), long);
        assert_eq!(reads(16, 128), [128..1152, 1152..2176, 2176..3200]);
    }

    /// Another client changes a block after it was fetched.
    #[tokio::test]
    async fn fetched_blocks_are_read_from_the_cache_unless_they_changed() {
        let block_bytes = BlockBytes::new(16 << 10).expect("a power of two");
        let volume: Arc<dyn VolumeStore> = Arc::new(ModelVolume::new(block_bytes));
        let cached = CachedVolume::new(Arc::clone(&volume), Policy::Eager, 64 << 20);
        let cached = Arc::new(cached);
        let open = async |store: Arc<dyn VolumeStore>, session| {
            let (clock, entropy) = (Arc::new(SystemClock), Arc::<SystemEntropy>::default());
            let (mode, uid, gid) = (0o755, 0, 0);
            let root = Access { mode, uid, gid };
            let files = FileSystem::open(store, clock, entropy, SessionId(session), root).await;
            (Arc::new(files.expect("it opens")), root)
        };
        let (files, access) = open(Arc::<CachedVolume>::clone(&cached), 1).await;
        let (other, _) = open(volume, 2).await;
        let name = Bytes::from_static(b"f");
        let ino = other.create(Ino::ROOT, access, &name).await;
        let ino = ino.expect("created");
        let write = async |at: u64, byte: u8, count: usize| {
            let data = Bytes::from(vec![byte; count]);
            let written = other.write(ino, at, Privileges::Keep, &data).await;
            written.expect("written");
        };
        for part in 0..4 {
            write(part * u64::from(MIB), part as u8 + 1, MIB as usize).await;
        }
        let ahead = ReadAhead::default();
        for part in 0..4_u64 {
            let offset = part * u64::from(MIB);
            ahead.before(&files, ino, offset, MIB).await;
            let misses = cached.figures().misses;
            let read = files.read(ino, offset, MIB.into()).await.expect("read");
            let expected = if part == 2 { 9 } else { part as u8 + 1 };
            assert!(read.iter().all(|byte| *byte == expected), "part {part}");
            let missed = cached.figures().misses - misses;
            assert_eq!(missed < 64, part == 1 || part == 3, "{part}: {missed}");
            if part == 1 {
                // The fetch of the next part ends before it changes.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                write(2 * u64::from(MIB), 9, MIB as usize).await;
            }
        }
    }
}
