//! Time and randomness, from outside.
//!
//! Services, foundations and front ends use no other clock and no other generator, so a seed alone
//! reproduces a simulated run.
//!
//! Promises
//! - **L1** [`Clock::monotonic`] never goes back, and measures every sleep as at least as long as
//!   requested.
//! - **L2** [`Clock::now`] may be wrong by the skew of its machine. No correctness depends on it
//!   alone.
//! - **L3** One seed gives one sequence of [`Entropy::next_u64`].
//! - **L4** All clocks of a process count from one moment: a lease that one of them granted runs
//!   out by any other.

use std::{fmt::Debug, ops::Add, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, by one machine's clock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Milliseconds from `earlier` to this one; zero if `earlier` is later.
    pub fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Time since some moment in this process, the same for all its clocks. Comparable only within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(pub Duration);

impl Monotonic {
    /// From `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0 + rhs)
    }
}

/// Reads the time, and sleeps.
#[async_trait]
pub trait Clock: Debug + Send + Sync {
    /// The wall clock, as wrong as the machine's.
    fn now(&self) -> Timestamp;
    /// A clock that never goes back.
    fn monotonic(&self) -> Monotonic;
    /// Returns once `duration` has passed by [`Clock::monotonic`].
    async fn sleep(&self, duration: Duration);
}

/// The one source of randomness.
pub trait Entropy: Debug + Send + Sync {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;

    /// A number below `bound` (zero if `bound` is zero). Slightly biased for huge bounds, so unfit
    /// for secrets.
    fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.next_u64() % bound
        }
    }
}
