//! Segments that are in use, and therefore not collected.
//!
//! A writer holds its segment until a row names it, and a reader until it has read the last byte
//! (M6). The collector deletes a segment only while it is not held, and no other can hold it meanwhile.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fragment::SegmentId;

#[derive(Debug)]
enum State {
    Held(usize),
    Deleting,
}

/// The segments in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holds {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    segments: Mutex<BTreeMap<SegmentId, State>>,
    deletions: AtomicU64,
    released: Notify,
}

impl Holds {
    /// Holds a segment. None: it is being deleted.
    pub(crate) fn hold(&self, segment: SegmentId) -> Option<Hold> {
        match self
            .shared
            .segments
            .lock()
            .entry(segment)
            .or_insert(State::Held(0))
        {
            State::Held(count) => *count += 1,
            State::Deleting => return None,
        }
        Some(Hold {
            segment,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Keeps all others from holding the segment. None: it is held.
    pub(crate) fn begin_deletion(&self, segment: SegmentId) -> Option<Deletion> {
        match self.shared.segments.lock().entry(segment) {
            Entry::Vacant(vacant) => {
                vacant.insert(State::Deleting);
                self.shared.deletions.fetch_add(1, Ordering::SeqCst);
            }
            Entry::Occupied(_) => return None,
        }
        Some(Deletion {
            segment,
            shared: Arc::clone(&self.shared),
        })
    }

    /// The number of deletions that have begun. While it stays the same, no segment is deleted.
    pub(crate) fn deletions(&self) -> u64 {
        self.shared.deletions.load(Ordering::SeqCst)
    }

    /// Waits until a segment is held no longer. One that happened before the call may count.
    pub(crate) async fn released(&self) {
        self.shared.released.notified().await;
    }
}

/// Keeps a segment from being collected.
#[derive(Debug)]
pub(crate) struct Hold {
    segment: SegmentId,
    shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut segments = self.shared.segments.lock();
        if let Some(State::Held(count)) = segments.get_mut(&self.segment) {
            *count -= 1;
            if *count == 0 {
                segments.remove(&self.segment);
                self.shared.released.notify_one();
            }
        }
    }
}

/// A deletion under way.
#[derive(Debug)]
pub(crate) struct Deletion {
    segment: SegmentId,
    shared: Arc<Shared>,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        self.shared.segments.lock().remove(&self.segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_deleted_only_while_it_is_not_held() {
        let (holds, segment) = (Holds::default(), SegmentId(1));
        let first = holds.hold(segment).expect("free");
        let second = holds.hold(segment).expect("shared");
        drop(first);
        assert!(holds.begin_deletion(segment).is_none());
        drop(second);
        let deletion = holds.begin_deletion(segment).expect("free");
        assert!(holds.hold(segment).is_none());
        drop(deletion);
        assert!(holds.hold(segment).is_some());
    }
}
