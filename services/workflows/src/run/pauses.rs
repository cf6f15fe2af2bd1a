//! Whether a run advances, or all its branches wait for something other than their steps.
//!
//! A stop waits for runs that advance. A run that pauses would keep the stop waiting for nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The branches of a run that have a step at work, and those that pause between two attempts. Only
/// the task that executes the run changes it.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    at_work: AtomicUsize,
    paused: AtomicUsize,
}

/// One branch more, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted<'of>(&'of AtomicUsize);

impl<'of> Counted<'of> {
    fn one_more(count: &'of AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pauses {
    /// A branch has a step at work.
    pub(crate) fn at_work(&self) -> Counted<'_> {
        Counted::one_more(&self.at_work)
    }

    /// A branch pauses.
    pub(crate) fn paused(&self) -> Counted<'_> {
        Counted::one_more(&self.paused)
    }

    /// Whether the run does not advance. This holds between two polls of its branches only: a step
    /// that has just ended may begin the next one, or end the run.
    pub(crate) fn is_paused(&self) -> bool {
        let count = |branches: &AtomicUsize| branches.load(Ordering::Relaxed);
        count(&self.at_work) == 0 && count(&self.paused) > 0
    }
}
