//! Faults: ports that fail as clouds do, when a schedule says so.
//!
//! A decorator asks its [`FaultSchedule`] before each call what is to go wrong. It never breaks a promise of
//! the port it wraps: refusing leaves everything as it was (K3), a lost answer is said to be unknown, and a
//! call that hangs is one that its caller gives up. So a service that keeps its promises over honest ports
//! has to keep them here too.
//!
//! Invariants
//! - Under [`Calm`], a decorator passes the contract of the port it wraps.
//! - What is answered `Unavailable` was not done; what was done and not answered is `OutcomeUnknown`, or,
//!   where doing it twice is as good as once, `Unavailable`.
//!
//! Crashes of functions between two steps need the runtime's help: they are the simulated provider's.

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

use crate::{Clock, Entropy, Error, ErrorKind, Result, key_value::Room};

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It is made this much later.
    Delay(Duration),
    /// It is not made; the answer is `Unavailable`.
    RefuseBefore,
    /// It is made, and its answer lost.
    LoseAnswer,
    /// It is made, and its answer comes this much later.
    DelayAnswer(Duration),
    /// It is not made, and no answer ever comes: the caller has to give up.
    Hang,
}

/// Decides what goes wrong.
pub trait FaultSchedule: Debug + Send + Sync {
    /// The fault of the next call of `operation`, such as `key_value.update`.
    fn next(&self, operation: &'static str) -> Fault;

    /// The most room that the store has.
    fn room(&self) -> Room {
        Room::Free
    }
}

/// Nothing ever goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calm;

impl FaultSchedule for Calm {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }
}

/// The faults of one operation's calls one after the other, then none; other operations are calm.
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

/// How many calls of a thousand have which fault; the rest has none.
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

/// Faults by chance, as a seed has it.
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

/// What a caller hears whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// That the change may have happened.
    Unknown,
    /// To try again, because the call changes nothing, or nothing more when repeated.
    TryAgain,
}

/// What the decorators share: when things go wrong, and the clock that delays need.
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
