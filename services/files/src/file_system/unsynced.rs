//! The changes of a client that a crash of the server may still lose, by inode.
//!
//! Linux reports a lost write to the file's next fsync(2). A crash loses changes of several files,
//! so each of them has its own report.

use std::collections::{BTreeMap, BTreeSet};

use ports::DurabilityPoint;

use crate::model::Ino;

/// The most inodes with changes that were not synced. The next change then syncs all of them.
pub(super) const CHANGED_MAX: usize = 65_536;

/// The changes since the last sync.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// The point that all answers so far depend on.
    point: DurabilityPoint,
    /// When each inode was last changed.
    changed: BTreeMap<Ino, DurabilityPoint>,
    /// Inodes whose changes the server may have lost, and that no fsync has reported.
    lost: BTreeSet<Ino>,
}

impl Unsynced {
    pub(super) fn point(&self) -> DurabilityPoint {
        self.point
    }

    /// Notes the point of an answer. Returns whether the server has started again since the last
    /// one. The changes before that may be lost.
    pub(super) fn saw(&mut self, point: DurabilityPoint) -> bool {
        let is_restarted = point.incarnation > self.point.incarnation;
        if is_restarted {
            let changed = std::mem::take(&mut self.changed);
            self.lost.extend(changed.into_keys());
        }
        self.point = self.point.max(point);
        is_restarted
    }

    /// Notes that a commit at `point` has changed `inodes`. Returns whether they are so many that
    /// all must be synced.
    pub(super) fn changed(&mut self, inodes: Vec<Ino>, point: DurabilityPoint) -> bool {
        if point.incarnation < self.point.incarnation {
            self.lost.extend(inodes);
            return false;
        }
        self.changed
            .extend(inodes.into_iter().map(|ino| (ino, point)));
        self.changed.len() > CHANGED_MAX
    }

    /// Whether changes of `ino` may be lost. It tells so once.
    pub(super) fn take_lost(&mut self, ino: Ino) -> bool {
        self.lost.remove(&ino)
    }

    /// Whether any change may be lost. It tells so once.
    pub(super) fn take_any_lost(&mut self) -> bool {
        !std::mem::take(&mut self.lost).is_empty()
    }

    /// Notes that all at or before `point` survives.
    pub(super) fn synced(&mut self, point: DurabilityPoint) {
        self.changed.retain(|_, at| *at > point);
    }
}
