//! The machine's clocks.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use ports::{Clock, Monotonic, Timestamp};
use tokio::time::Instant;

/// What the monotonic time of every clock of the process counts from (L4).
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The port: the wall clock as the system tells it, and tokio's for everything that lasts.
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
