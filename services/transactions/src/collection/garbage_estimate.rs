//! How much is superseded, by which old readers are overtaken, and how much of it is not collected yet, which is a figure alone.
//!
//! A collector under load is never done, and among several nodes each collects what its own commits have superseded, so nobody
//! sees all that goes. So marks are set of how much was superseded when so much had been heard. A mark is passed once the own log
//! is collected up to it and nobody needs what stands behind it: what others collect goes within a moment then.
//!
//! Invariants
//! - Marks grow, and the last is at most what is superseded; what is collected is the last one that was passed.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    engine::{Core, View},
    storage::{frontier::Heard, node::Node},
};

/// More are not set: the figure stands until one is passed.
const MARKS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Superseded {
    /// About how many bytes the commits that are known here have superseded.
    pub(crate) bytes: u64,
    collected: u64,
    marks: VecDeque<Mark>,
}

#[derive(Debug)]
struct Mark {
    heard: Heard,
    bytes: u64,
}

impl Superseded {
    /// About how many of them are there still.
    pub(crate) fn left(&self) -> u64 {
        self.bytes - self.collected
    }

    /// So much was superseded when `heard` had been.
    pub(crate) fn mark(&mut self, heard: Heard, bytes: u64) {
        let last = self.marks.back().map_or(self.collected, |mark| mark.bytes);
        if bytes > last && self.marks.len() < MARKS_MAX {
            self.marks.push_back(Mark { heard, bytes });
        }
    }

    /// Passes the marks that `is_collected` says so of.
    pub(crate) fn pass(&mut self, is_collected: impl Fn(&Heard) -> bool) {
        while let Some(mark) = self.marks.pop_front_if(|mark| is_collected(&mark.heard)) {
            self.collected = mark.bytes;
        }
    }

    /// Whoever serves next finds it all superseded, and nothing of it waits.
    pub(crate) fn start_over(&mut self) {
        self.marks.clear();
        self.collected = self.bytes;
    }
}

impl Core {
    /// Tells how much is left of what was superseded.
    pub(crate) fn tally_superseded(&self, node: &Arc<Node>) {
        if self.view().superseded.left() == 0 {
            return;
        }
        let own = self.own_horizon(node);
        let needed = if self.is_alone() {
            None
        } else {
            self.agreeable_to_members(node)
        };
        let mut view = self.view();
        if !view.is_served_by(node) {
            return;
        }
        let View {
            superseded,
            neighbours,
            ..
        } = &mut *view;
        let needed = needed.as_ref().unwrap_or(neighbours.agreed());
        // In front of its start the own log has nothing to collect, and whoever never commits collects nothing.
        let collected = neighbours
            .collected
            .max(node.log.start().next.0.saturating_sub(1));
        superseded.mark(own.heard, own.superseded_bytes);
        superseded.pass(|heard| {
            heard.through(node.id) <= collected
                && (self.is_alone() || heard.minimum(needed) == *heard)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeId;

    const LOG: NodeId = NodeId(3);

    fn heard(slot: u64) -> Heard {
        let mut heard = Heard::default();
        heard.advance(LOG, slot);
        heard
    }

    #[test]
    fn what_is_left_is_what_came_after_the_last_mark_that_was_passed() {
        let mut superseded = Superseded::default();
        for slot in 1..=4 {
            superseded.bytes += 10;
            superseded.mark(heard(slot), superseded.bytes);
        }
        superseded.bytes += 5;
        superseded.pass(|heard| heard.through(LOG) <= 2);
        assert_eq!(superseded.left(), 25);
        superseded.pass(|heard| heard.through(LOG) <= 2);
        assert_eq!(superseded.left(), 25, "nothing more was collected");
        superseded.pass(|_| true);
        assert_eq!(superseded.left(), 5, "there is no mark behind them yet");
        superseded.start_over();
        assert_eq!(superseded.left(), 0);
    }

    #[test]
    fn marks_are_few_and_the_figure_comes_right_once_they_are_passed() {
        let mut superseded = Superseded::default();
        for slot in 1..=10_000 {
            superseded.bytes += 1;
            superseded.mark(heard(slot), superseded.bytes);
        }
        assert_eq!(superseded.marks.len(), MARKS_MAX);
        superseded.pass(|_| true);
        superseded.mark(heard(10_000), superseded.bytes);
        superseded.pass(|_| true);
        assert_eq!(superseded.left(), 0);
    }
}
