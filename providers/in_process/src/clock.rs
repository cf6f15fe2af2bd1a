//! The clock port over the clocks of the machine.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use ports::{Clock, Monotonic, Timestamp};
use tokio::time::Instant;

/// The zero of the monotonic time, common to all clocks of the process (L4).
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The port: the system's wall clock, and tokio's clock for durations.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Timestamp(since.map_or(0, |since| since.as_millis() as u64))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(BEGUN.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
