//! Exponential backoff with full jitter: how long to wait before the next attempt.
//!
//! Full jitter spreads those who collided over the whole window, so that they do not collide again in step.

use std::time::Duration;

use ports::Entropy;

/// The waits between attempts at one thing.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    window: Duration,
    window_max: Duration,
}

impl Backoff {
    /// Waits up to `window`, then up to twice that, and so on up to `window_max`.
    pub fn new(window: Duration, window_max: Duration) -> Self {
        Self { window, window_max }
    }

    /// How long to wait before the next attempt: anything up to the window, which then doubles.
    pub fn next_delay(&mut self, entropy: &dyn Entropy) -> Duration {
        let window_us = self.window.as_micros() as u64;
        self.window = self.window.saturating_mul(2).min(self.window_max);
        Duration::from_micros(1 + entropy.below(window_us.max(1)))
    }
}
