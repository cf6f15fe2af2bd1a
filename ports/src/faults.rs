//! Faults: ports that fail as clouds do, when a schedule says so.
//!
//! Before each call, a decorator takes the call's fault from its [`FaultSchedule`]. It never breaks
//! a promise of the port that it wraps. A refused call changes nothing (K3), a lost response is
//! reported as unknown, and the caller of a hanging call must give it up. A service that keeps its
//! promises over correct ports must therefore keep them here too.
//!
//! Invariants
//! - Under [`Calm`], a decorator passes the contract of the port it wraps.
//! - A call that returns `Unavailable` was not made. A call that was made, and whose response is
//!   lost, returns `OutcomeUnknown`; or `Unavailable` if making it twice equals making it once.
//!
//! The simulated provider crashes functions between two steps, because that needs the runtime's
//! help.

mod functions;
mod key_value;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt::Debug,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::pending;

use crate::{Clock, Error, ErrorKind, Functions, KeyValue, Queue, Result};

/// The fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The call is made this much later.
    Delay(Duration),
    /// The call is not made and returns `Unavailable`.
    RefuseBefore,
    /// The call is made, and its response is lost.
    LoseAnswer,
    /// The call is made, and its response comes this much later.
    DelayAnswer(Duration),
    /// The call is not made and never returns. The caller has to give up.
    Hang,
}

/// Decides which calls fail, and how.
pub trait FaultSchedule: Debug + Send + Sync {
    /// The fault of the next call of `operation`, such as `key_value.update`.
    fn next(&self, operation: &'static str) -> Fault;

    /// Whether the store may say that it has room.
    fn has_room(&self) -> bool {
        true
    }
}

/// No call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calm;

impl FaultSchedule for Calm {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }
}

/// Gives these faults to one operation's calls in turn, then none. Other operations have none.
#[derive(Debug)]
pub struct Script {
    operation: &'static str,
    faults: Mutex<VecDeque<Fault>>,
}

impl Script {
    /// `faults` for the next calls of `operation`.
    pub fn of(operation: &'static str, faults: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            operation,
            faults: Mutex::new(faults.into_iter().collect()),
        }
    }
}

impl FaultSchedule for Script {
    fn next(&self, operation: &'static str) -> Fault {
        if operation != self.operation {
            return Fault::None;
        }
        self.faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
            .unwrap_or_default()
    }
}

/// Fails as its schedule says, and makes the call of the port it wraps otherwise.
#[derive(Debug)]
pub struct Faulty<P: ?Sized> {
    inner: Arc<P>,
    schedule: Arc<dyn FaultSchedule>,
    clock: Arc<dyn Clock>,
}

/// A key-value store with faults.
pub type FaultyKeyValue = Faulty<dyn KeyValue>;
/// Queues with faults.
pub type FaultyQueue = Faulty<dyn Queue>;
/// Functions with faults on the way to them.
pub type FaultyFunctions = Faulty<dyn Functions>;

impl<P: ?Sized> Faulty<P> {
    /// Puts `schedule` between callers and `inner`.
    pub fn new(inner: Arc<P>, schedule: Arc<dyn FaultSchedule>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            schedule,
            clock,
        }
    }

    /// Makes `call` with the fault that is due. If its response is lost, it may have happened.
    async fn change<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let lost = || Error::new(ErrorKind::OutcomeUnknown, operation);
        self.call(operation, call, lost).await
    }

    /// As [`Faulty::change`], for a call that changes nothing, or nothing more when repeated.
    async fn repeatable<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let lost = || Error::unavailable(operation);
        self.call(operation, call, lost).await
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
        lost: impl FnOnce() -> Error,
    ) -> Result<T> {
        match self.schedule.next(operation) {
            Fault::None => call.await,
            Fault::Delay(delay) => {
                self.clock.sleep(delay).await;
                call.await
            }
            Fault::DelayAnswer(delay) => {
                let answer = call.await;
                self.clock.sleep(delay).await;
                answer
            }
            Fault::RefuseBefore => Err(Error::unavailable(operation)),
            Fault::LoseAnswer => {
                drop(call.await);
                Err(lost())
            }
            Fault::Hang => pending().await,
        }
    }
}
