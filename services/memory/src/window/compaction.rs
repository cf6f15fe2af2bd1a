//! Marks of chunks that were read again, and the rounds that move them to the newest bucket.
//!
//! Each round takes a random half of the marked chunks. A compaction that lasts too long takes all
//! that is left. A chunk that is on its way is neither marked nor taken again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ports::{Entropy, Monotonic};

use super::group::{FunctionId, GroupId};
use crate::function::ChunkName;

/// A chunk to be moved from a function to the newest bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// The chunk.
    pub chunk: ChunkName,
    /// The function that has it.
    pub from: FunctionId,
}

/// The pace of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The time between two rounds.
    pub round: Duration,
    /// The longest time from the first mark to the last round.
    pub compaction_max: Duration,
    /// The most marks. Further reads mark nothing.
    pub marks_max: usize,
}

#[derive(Debug, Default)]
pub(super) struct Compaction {
    marked: BTreeMap<ChunkName, FunctionId>,
    moving: BTreeSet<ChunkName>,
    /// The first mark of this compaction, and the time of its next round.
    began: Option<(Monotonic, Monotonic)>,
}

impl Compaction {
    pub(super) fn mark(&mut self, chunk: ChunkName, from: FunctionId, now: Monotonic, pace: &Pace) {
        let is_new = !self.marked.contains_key(&chunk);
        if self.moving.contains(&chunk) || is_new && self.marked.len() >= pace.marks_max {
            return;
        }
        self.marked.insert(chunk, from);
        self.began.get_or_insert((now, now + pace.round));
    }

    /// Begins to move a chunk at once. Whether it was not on its way before.
    pub(super) fn begin(&mut self, chunk: ChunkName) -> bool {
        self.marked.remove(&chunk);
        self.moving.insert(chunk)
    }

    /// Ends the move of a chunk, with or without success.
    pub(super) fn end(&mut self, chunk: ChunkName) {
        self.moving.remove(&chunk);
    }

    /// Forgets the marks on a function that is gone.
    pub(super) fn forget(&mut self, gone: impl Fn(FunctionId) -> bool) {
        self.marked.retain(|_, from| !gone(*from));
    }

    pub(super) fn has_marks_in(&self, group: GroupId) -> bool {
        self.marked.values().any(|from| from.group == group)
    }

    /// The next round, if it is time: half of the marked chunks, and all that `is_urgent`.
    pub(super) fn round(
        &mut self,
        now: Monotonic,
        pace: &Pace,
        entropy: &dyn Entropy,
        is_urgent: impl Fn(FunctionId) -> bool,
    ) -> Vec<Move> {
        let Some((began, next)) = self.began else {
            return Vec::new();
        };
        if now < next {
            return Vec::new();
        }
        let mut rest: Vec<_> = std::mem::take(&mut self.marked).into_iter().collect();
        let half = rest.len().div_ceil(2);
        let is_late = now.since(began).saturating_add(pace.round) > pace.compaction_max;
        // The first half of a shuffle is a random half.
        for at in 0..half {
            let other = at + entropy.below((rest.len() - at) as u64) as usize;
            rest.swap(at, other);
        }
        let taken = |at: usize, from| at < half || is_late || is_urgent(from);
        let mut moves = Vec::new();
        for (at, (chunk, from)) in rest.into_iter().enumerate() {
            if taken(at, from) {
                self.moving.insert(chunk);
                moves.push(Move { chunk, from });
            } else {
                self.marked.insert(chunk, from);
            }
        }
        let goes_on = !self.marked.is_empty();
        self.began = goes_on.then(|| (began, now + pace.round));
        moves
    }
}
