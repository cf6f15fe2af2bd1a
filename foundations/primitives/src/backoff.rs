//! Exponential backoff with full jitter: retries that do not all come at once.
//!
//! Each delay is drawn evenly between zero and a ceiling. The ceiling doubles up to a longest
//! delay. Of the known schemes, full jitter causes the least work for the store and little more
//! waiting. The delays are plain data, so tests and callers can use them without waiting.

use std::time::Duration;

use ports::{Clock, Entropy, Error, ErrorKind, Result};

/// How often to try, and how long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The ceiling of the first delay.
    pub first: Duration,
    /// The ceiling of every delay.
    pub longest: Duration,
    /// Attempts in all, the first one included.
    pub attempts_max: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(5),
            attempts_max: 10,
        }
    }
}

impl Backoff {
    /// The delays between its attempts, from the first on.
    pub fn delays(self) -> Delays {
        Delays {
            ceiling: self.first.min(self.longest),
            backoff: self,
            given: 0,
        }
    }
}

/// The delays of one operation's attempts.
#[derive(Debug, Clone)]
pub struct Delays {
    backoff: Backoff,
    ceiling: Duration,
    given: u32,
}

impl Delays {
    /// How long to wait before the next attempt; none if there is none (S14).
    pub fn next_delay(&mut self, entropy: &dyn Entropy) -> Option<Duration> {
        let ceiling_us = self.next_ceiling_us()?;
        Some(Duration::from_micros(entropy.below(ceiling_us + 1)))
    }

    /// The same where a short wait would not do: at least the ceiling, and up to a quarter more.
    pub fn next_wait(&mut self, entropy: &dyn Entropy) -> Option<Duration> {
        let ceiling_us = self.next_ceiling_us()?;
        let jitter_us = entropy.below(ceiling_us / 4 + 1);
        Some(Duration::from_micros(ceiling_us.saturating_add(jitter_us)))
    }

    fn next_ceiling_us(&mut self) -> Option<u64> {
        if self.given + 1 >= self.backoff.attempts_max {
            return None;
        }
        self.given += 1;
        let ceiling_us = u64::try_from(self.ceiling.as_micros()).unwrap_or(u64::MAX - 1);
        self.ceiling = self.ceiling.saturating_mul(2).min(self.backoff.longest);
        Some(ceiling_us)
    }
}

/// Tries until an attempt succeeds, fails with an error that waiting cannot cure, or is the last
/// one. An unknown outcome ends it too (S15). Returns the last error.
pub async fn retry<T, F>(
    backoff: Backoff,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
    attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let again = |error: &Error| error.is_retryable() && error.kind() != ErrorKind::OutcomeUnknown;
    retry_while(again, backoff, clock, entropy, attempt).await
}

/// As [`retry`], but repeats an attempt that may have happened (S15). For operations that have an
/// operation id, only read, or have the same effect each time.
pub async fn retry_repeatable<T, F>(
    backoff: Backoff,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
    attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    retry_while(Error::is_retryable, backoff, clock, entropy, attempt).await
}

async fn retry_while<T, F>(
    again: impl Fn(&Error) -> bool,
    backoff: Backoff,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut delays = backoff.delays();
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if again(&error) => error,
            Err(error) => return Err(error),
        };
        let Some(delay) = delays.next_delay(entropy) else {
            return Err(error);
        };
        clock
            .sleep(delay.max(hint(&error)).min(backoff.longest))
            .await;
    }
}

/// The delay that the provider requests.
fn hint(error: &Error) -> Duration {
    match error.kind() {
        ErrorKind::Unavailable {
            retry_after_ms: Some(ms),
        } => Duration::from_millis(u64::from(ms)),
        _ => Duration::ZERO,
    }
}
