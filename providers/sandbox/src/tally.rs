//! What is counted of invocations, for the figures of the port.

use std::sync::atomic::{AtomicU64, Ordering};

use ports::runtime::{Failures, Figures};

use crate::process::ExitReason;

/// How an invocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    ByFunction,
    TimedOut,
    OutOfMemory,
    Exited,
    NotStarted,
    /// That too, and it said nothing of why.
    ExitedAtStart,
    NotAnswered,
    TooLong,
}

impl Failed {
    /// An instance ended before its answer.
    pub(crate) fn ended(reason: ExitReason) -> Self {
        match reason {
            ExitReason::OutOfMemory => Self::OutOfMemory,
            ExitReason::Exited(_) | ExitReason::Signalled(_) => Self::Exited,
        }
    }
}

/// Counts since the start; each by itself.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    busy: AtomicU64,
    invocations: AtomicU64,
    cold_starts: AtomicU64,
    adopted: AtomicU64,
    throttled: AtomicU64,
    unavailable: AtomicU64,
    failed: [AtomicU64; 8],
}

/// An instance is busy for as long as this is held.
#[derive(Debug)]
pub(crate) struct Busy<'tally>(&'tally Tally);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    /// An instance is in the hands of somebody.
    pub(crate) fn busy(&self) -> Busy<'_> {
        add(&self.busy);
        Busy(self)
    }

    /// An invocation was given to an instance.
    pub(crate) fn invoked(&self) {
        add(&self.invocations);
    }

    /// A new instance is started for it.
    pub(crate) fn started(&self) {
        add(&self.cold_starts);
    }

    /// A spare has become the new instance.
    pub(crate) fn adopted(&self) {
        add(&self.adopted);
    }

    /// A call was refused since all instances are at work.
    pub(crate) fn throttled(&self) {
        add(&self.throttled);
    }

    /// A call was refused since no instance can be started.
    pub(crate) fn unavailable(&self) {
        add(&self.unavailable);
    }

    /// An invocation failed.
    pub(crate) fn failed(&self, how: Failed) {
        add(&self.failed[how as usize]);
    }

    /// All of it, with as many idle instances as the caller has found.
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
