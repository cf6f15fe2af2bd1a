//! The machine's clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use ports::{Clock, Monotonic, Timestamp};
use tokio::time::Instant;

/// The port: the wall clock as the system tells it, and tokio's for everything that lasts.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    /// What the monotonic clock counts from.
    made: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    pub fn new() -> Self {
        Self { made: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Timestamp(since.map_or(0, |since| since.as_millis() as u64))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.made.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
