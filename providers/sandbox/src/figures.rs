//! The counters of invocations, for the figures of the runtime port.

use parking_lot::Mutex;
use ports::{
    instances::Death,
    runtime::{Failures, Figures},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    ByFunction,
    TimedOut,
    OutOfMemory,
    Exited,
    NotStarted,
    /// Its new instance ended without a reason.
    ExitedAtStart,
    NotAnswered,
    TooLong,
    /// The transaction on its volume could not begin or commit.
    NotCommitted,
}

impl Failed {
    pub(crate) fn died(death: Death) -> Self {
        match death {
            Death::OutOfMemory => Self::OutOfMemory,
            Death::Exited(_) | Death::Killed(_) => Self::Exited,
        }
    }

    /// Whether the instance may be reused. After any other failure its state is unknown, and
    /// another invocation would suffer from it.
    pub(crate) fn leaves_it_fit(self) -> bool {
        matches!(self, Self::ByFunction | Self::TooLong | Self::NotCommitted)
    }
}

/// The counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Figures>);

/// Counts an instance as busy until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy<'counters>(&'counters Counters);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.count(|figures| figures.busy -= 1);
    }
}

impl Counters {
    pub(crate) fn count(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.0.lock());
    }

    pub(crate) fn busy(&self) -> Busy<'_> {
        self.count(|figures| figures.busy += 1);
        Busy(self)
    }

    pub(crate) fn failed(&self, how: Failed) {
        let Failures {
            by_function,
            timed_out,
            out_of_memory,
            exited,
            not_started,
            not_answered,
            too_long,
            not_committed,
        } = &mut self.0.lock().failed;
        *match how {
            Failed::ByFunction => by_function,
            Failed::TimedOut => timed_out,
            Failed::OutOfMemory => out_of_memory,
            Failed::Exited => exited,
            Failed::NotStarted | Failed::ExitedAtStart => not_started,
            Failed::NotAnswered => not_answered,
            Failed::TooLong => too_long,
            Failed::NotCommitted => not_committed,
        } += 1;
    }

    /// All figures but those of idle instances and spares.
    pub(crate) fn figures(&self) -> Figures {
        *self.0.lock()
    }
}
