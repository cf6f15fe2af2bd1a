//! The clocks and the random streams of a world.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use fastrand::Rng;
use ports::{Clock, Entropy, Monotonic, Timestamp};
use std::sync::Mutex;

use crate::{cloud::Cloud, run::lock};

/// The wall-clock time at which a world begins: the first of January 2025.
const WALL_CLOCK_START_MS: u64 = 1_735_689_600_000;

/// The clock of one simulated machine: right, or wrong by a constant.
#[derive(Debug)]
pub struct SimulatedClock {
    cloud: Arc<Cloud>,
    skew_ms: i64,
}

impl SimulatedClock {
    pub(crate) fn new(cloud: Arc<Cloud>, skew_ms: i64) -> Self {
        Self { cloud, skew_ms }
    }
}

#[async_trait]
impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let elapsed_ms = self.cloud.elapsed().as_millis() as u64;
        Timestamp((WALL_CLOCK_START_MS + elapsed_ms).saturating_add_signed(self.skew_ms))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.cloud.elapsed())
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// One stream of random numbers. The world's seed and the number of streams taken before fix it.
#[derive(Debug)]
pub struct SimulatedEntropy(Mutex<Rng>);

impl SimulatedEntropy {
    pub(crate) fn new(random: Rng) -> Self {
        Self(Mutex::new(random))
    }
}

impl Entropy for SimulatedEntropy {
    fn next_u64(&self) -> u64 {
        lock(&self.0).u64(..)
    }
}
