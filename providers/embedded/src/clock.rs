//! The machine's clocks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ports::{Clock, Monotonic, Timestamp};

use crate::{engine::Engine, store::now_ms};

/// The port: the wall clock as the system tells it, and tokio's for everything that lasts.
#[derive(Debug)]
pub(crate) struct SystemClock {
    pub(crate) engine: Arc<Engine>,
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(now_ms())
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.engine.now())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
