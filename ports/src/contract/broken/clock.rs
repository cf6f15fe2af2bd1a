//! Clocks and sources of randomness that break L1 to L4.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::Broken;
use crate::{Clock, Entropy, Monotonic, Timestamp, contract::clock::Subject};

/// Every broken clock and source, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("L1", "WakesEarly", |subject| {
        twisted(subject, |honest| Arc::new(WakesEarly(honest)))
    }),
    Broken::new("L1", "GoesBack", |subject| {
        twisted(subject, |honest| {
            Arc::new(GoesBack {
                honest,
                readings: AtomicU64::new(0),
            })
        })
    }),
    Broken::new("L2", "RunsAway", |subject| {
        twisted(subject, |honest| {
            Arc::new(RunsAway {
                honest,
                readings: AtomicU64::new(0),
            })
        })
    }),
    Broken::new("L3", "IgnoresTheSeed", |subject| Subject {
        entropy: |_| Arc::new(Constant(4)),
        ..subject
    }),
    Broken::new("L4", "CountsFromItsMaking", |subject| {
        let others = subject.others.clone();
        Subject {
            others: Arc::new(move || Arc::new(CountsFromItsMaking::new(others()))),
            ..subject
        }
    }),
];

fn twisted(subject: Subject, around: fn(Arc<dyn Clock>) -> Arc<dyn Clock>) -> Subject {
    Subject {
        clock: around(subject.clock),
        ..subject
    }
}

/// Sleeps half of the requested time (L1).
#[derive(Debug)]
struct WakesEarly(Arc<dyn Clock>);

#[async_trait]
impl Clock for WakesEarly {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
    fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }
    async fn sleep(&self, duration: Duration) {
        self.0.sleep(duration / 2).await;
    }
}

/// Loses a second at every tenth reading (L1).
#[derive(Debug)]
struct GoesBack {
    honest: Arc<dyn Clock>,
    readings: AtomicU64,
}

#[async_trait]
impl Clock for GoesBack {
    fn now(&self) -> Timestamp {
        self.honest.now()
    }
    fn monotonic(&self) -> Monotonic {
        let back = if self.readings.fetch_add(1, Ordering::Relaxed) % 10 == 9 {
            1
        } else {
            2
        };
        self.honest.monotonic() + Duration::from_secs(back)
    }
    async fn sleep(&self, duration: Duration) {
        self.honest.sleep(duration).await;
    }
}

/// Shows a wall time an hour later at every reading (L2).
#[derive(Debug)]
struct RunsAway {
    honest: Arc<dyn Clock>,
    readings: AtomicU64,
}

#[async_trait]
impl Clock for RunsAway {
    fn now(&self) -> Timestamp {
        Timestamp(self.honest.now().0 + 3_600_000 * self.readings.fetch_add(1, Ordering::Relaxed))
    }
    fn monotonic(&self) -> Monotonic {
        self.honest.monotonic()
    }
    async fn sleep(&self, duration: Duration) {
        self.honest.sleep(duration).await;
    }
}

/// Has a beginning of its own (L4).
#[derive(Debug)]
struct CountsFromItsMaking {
    honest: Arc<dyn Clock>,
    made: Monotonic,
}

impl CountsFromItsMaking {
    fn new(honest: Arc<dyn Clock>) -> Self {
        Self {
            made: honest.monotonic(),
            honest,
        }
    }
}

#[async_trait]
impl Clock for CountsFromItsMaking {
    fn now(&self) -> Timestamp {
        self.honest.now()
    }
    fn monotonic(&self) -> Monotonic {
        Monotonic(self.honest.monotonic().since(self.made))
    }
    async fn sleep(&self, duration: Duration) {
        self.honest.sleep(duration).await;
    }
}

/// Draws the same number forever, from any seed (L3).
#[derive(Debug)]
struct Constant(u64);

impl Entropy for Constant {
    fn next_u64(&self) -> u64 {
        self.0
    }
}
