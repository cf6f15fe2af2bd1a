//! The counters of invocations, for the figures of the runtime port.

use std::sync::atomic::{AtomicU64, Ordering};

use ports::{
    instances::Death,
    runtime::{Failures, Figures},
};

/// How an invocation failed.
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
}

impl Failed {
    /// The instance died before its answer.
    pub(crate) fn died(death: Death) -> Self {
        match death {
            Death::OutOfMemory => Self::OutOfMemory,
            Death::Exited(_) | Death::Killed(_) => Self::Exited,
        }
    }
}

/// The counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    busy: AtomicU64,
    invocations: AtomicU64,
    cold_starts: AtomicU64,
    adopted: AtomicU64,
    throttled: AtomicU64,
    unavailable: AtomicU64,
    failed: [AtomicU64; 8],
}

/// Counts an instance as busy until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy<'counters>(&'counters Counters);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    /// An instance gets an invocation.
    pub(crate) fn busy(&self) -> Busy<'_> {
        add(&self.busy);
        Busy(self)
    }

    /// An invocation reached an instance.
    pub(crate) fn invoked(&self) {
        add(&self.invocations);
    }

    /// An instance is started for an invocation.
    pub(crate) fn started(&self) {
        add(&self.cold_starts);
    }

    /// A spare became the new instance.
    pub(crate) fn adopted(&self) {
        add(&self.adopted);
    }

    /// A call was refused because all instances are busy.
    pub(crate) fn throttled(&self) {
        add(&self.throttled);
    }

    /// A call was refused because no instance can be started.
    pub(crate) fn unavailable(&self) {
        add(&self.unavailable);
    }

    /// An invocation failed.
    pub(crate) fn failed(&self, how: Failed) {
        add(&self.failed[how as usize]);
    }

    /// All figures, with these numbers of idle instances.
    pub(crate) fn figures(&self, warm: u64, frozen: u64) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failed = |how: Failed| read(&self.failed[how as usize]);
        Figures {
            busy: read(&self.busy),
            warm,
            frozen,
            invocations: read(&self.invocations),
            cold_starts: read(&self.cold_starts),
            adopted: read(&self.adopted),
            spares: 0,
            throttled: read(&self.throttled),
            unavailable: read(&self.unavailable),
            failed: Failures {
                by_function: failed(Failed::ByFunction),
                timed_out: failed(Failed::TimedOut),
                out_of_memory: failed(Failed::OutOfMemory),
                exited: failed(Failed::Exited),
                not_started: failed(Failed::NotStarted) + failed(Failed::ExitedAtStart),
                not_answered: failed(Failed::NotAnswered),
                too_long: failed(Failed::TooLong),
            },
        }
    }
}
