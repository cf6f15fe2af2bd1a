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

pub use functions::FaultyFunctions;
pub use key_value::FaultyKeyValue;
pub use queue::{FaultyQueue, FaultyQueueAdmin};

use crate::{Clock, Entropy, Error, ErrorKind, Result};

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

/// How many calls of a thousand have each fault. The rest has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// [`Fault::Delay`] by up to `delay_ms_max`.
    pub delay: u32,
    /// [`Fault::RefuseBefore`].
    pub refuse: u32,
    /// [`Fault::LoseAnswer`].
    pub lose_answer: u32,
    /// The longest delay.
    pub delay_ms_max: u64,
}

/// Random faults from a seed.
#[derive(Debug)]
pub struct Weather {
    rates: Rates,
    entropy: Arc<dyn Entropy>,
}

impl Weather {
    /// Faults at these rates, drawn from `entropy`.
    ///
    /// # Panics
    /// If the rates together are more than a thousand.
    pub fn new(rates: Rates, entropy: Arc<dyn Entropy>) -> Self {
        let sum = rates.delay + rates.refuse + rates.lose_answer;
        assert!(sum <= 1_000, "{sum} calls of a thousand cannot fail");
        Self { rates, entropy }
    }
}

impl FaultSchedule for Weather {
    fn next(&self, _: &'static str) -> Fault {
        let Rates {
            delay,
            refuse,
            lose_answer,
            delay_ms_max,
        } = self.rates;
        let drawn = self.entropy.below(1_000) as u32;
        if drawn < refuse {
            Fault::RefuseBefore
        } else if drawn < refuse + lose_answer {
            Fault::LoseAnswer
        } else if drawn < refuse + lose_answer + delay {
            Fault::Delay(Duration::from_millis(self.entropy.below(delay_ms_max + 1)))
        } else {
            Fault::None
        }
    }
}

/// The error for a caller whose response was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The change may have happened.
    Unknown,
    /// Try again: the call changes nothing, or nothing more when repeated.
    TryAgain,
}

/// The common part of the decorators: the schedule, and the clock for delays.
#[derive(Debug, Clone)]
struct Trouble {
    schedule: Arc<dyn FaultSchedule>,
    clock: Arc<dyn Clock>,
}

impl Trouble {
    /// Makes `call` with the fault that is due.
    async fn with<T>(
        &self,
        operation: &'static str,
        lost: Lost,
        call: impl Future<Output = Result<T>>,
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
                Err(match lost {
                    Lost::Unknown => Error::new(ErrorKind::OutcomeUnknown, operation),
                    Lost::TryAgain => Error::unavailable(operation),
                })
            }
            Fault::Hang => pending().await,
        }
    }
}
