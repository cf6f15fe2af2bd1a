//! Warm-ups: calls without effect, which keep a provider from reclaiming idle instances.
//!
//! Active functions are called often, degraded ones rarely (`infinistore.txt`, section 5.3). A
//! warm-up is no access, so it keeps nothing in memory. It finds instances that were reclaimed, and
//! their recovery begins before a read needs them. While there is no group, there is no timer.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use ports::{
    Clock,
    metering::function_memory::{Category, FunctionMemoryMeter},
};

use crate::{broken::Broken, groups::Groups, window::Phase};

/// The time between two warm-ups of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUps {
    /// Of an active function.
    pub active: Duration,
    /// Of a degraded function, in whole multiples of `active`.
    pub degraded: Duration,
}

impl Default for WarmUps {
    /// 1 and 5 minutes.
    fn default() -> Self {
        Self {
            active: Duration::from_mins(1),
            degraded: Duration::from_mins(5),
        }
    }
}

/// Warms functions up.
#[derive(Debug)]
pub(crate) struct Warming {
    pub(crate) groups: Arc<Groups>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) meter: Arc<FunctionMemoryMeter>,
    /// None: instances are not reclaimed while they are idle.
    pub(crate) every: Option<WarmUps>,
}

impl Warming {
    /// Runs until the service ends.
    pub(crate) async fn run(self) {
        let Some(every) = self.every else { return };
        let mut degraded_at = self.clock.monotonic() + every.degraded;
        loop {
            self.groups.wait_until_used().await;
            self.clock.sleep(every.active).await;
            let now = self.clock.monotonic();
            let is_time = now >= degraded_at;
            if is_time {
                degraded_at = now + every.degraded;
            }
            let with_degraded = is_time || self.groups.mutant().breaks(Broken::WarmsAllAlike);
            let called = |phase| phase == Phase::Active || with_degraded;
            let instances = self.groups.to_warm_up(called);
            let count = instances.len() as u64;
            self.meter.invoked(Category::WarmUp, count, 0);
            // A dead one is recovered because of its death.
            join_all(instances.iter().map(|instance| instance.warm_up())).await;
        }
    }
}
