//! Fault profiles of coordination scenarios: which faults strike, and how often.

use std::time::Duration;

use coordination::queue_names;
use simulated::{Chance, World, percent};

/// How long faults last: several times the lifetime of an unused session.
const WEATHER_LASTS: Duration = Duration::from_mins(1);

/// Waits, then removes all faults. Work that has not succeeded by then finishes without faults
/// instead of being retried forever.
pub async fn wait_and_calm(world: &World) {
    tokio::time::sleep(WEATHER_LASTS).await;
    world.faults().calm();
    std::future::pending::<()>().await;
}

/// Which faults strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultProfile {
    /// None.
    Calm,
    /// Latency, so that everything interleaves.
    Slow,
    /// Functions die between any two steps; calls are refused or their answers lost.
    Stormy,
    /// Writers stall for longer than a lock lasts, and die.
    Paused,
}

impl FaultProfile {
    /// Enables these faults in `world`.
    pub fn strike(self, world: &World) {
        let faults = world.faults();
        faults.calm();
        let ms = Duration::from_millis;
        match self {
            Self::Calm => {}
            Self::Slow => faults.delay(percent(30), Duration::ZERO..=ms(20)),
            Self::Stormy => {
                faults.delay(percent(20), Duration::ZERO..=ms(20));
                faults.refuse(Chance::per_million(4_000));
                faults.lose_answer(Chance::per_million(4_000));
                faults.deliver_twice(percent(5));
                faults.crash_function(queue_names::WRITER, percent(3));
                faults.crash_function(queue_names::DISTRIBUTOR, percent(1));
                faults.crash_function(queue_names::HEARTBEAT, Chance::per_million(3_000));
            }
            Self::Paused => {
                faults.delay(Chance::per_million(12_000), ms(4_000)..=ms(10_000));
                faults.crash_function(queue_names::WRITER, percent(2));
            }
        }
    }
}
