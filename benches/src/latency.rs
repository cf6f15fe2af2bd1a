//! How long one operation of a synchronisation primitive takes, one at a time: table 9a of the FaaSKeeper paper.
//!
//! "Ordered" is the wait of a function inside the system: the operation is visible and has its
//! place in the store's order. "Durable" waits for it to be externalized as well. An
//! acknowledgement to the outside waits for that, and the paper's figures on DynamoDB mean it.

mod atomic_list;
mod timed_lock;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use ports::{
    Key, Receipt, Timestamp, Update,
    key_value::{Action, Outcome, SharedKeyValue},
};
use primitives::AtomicCounter;
use serde::Serialize;

use self::{atomic_list::AtomicList, timed_lock::TimedLock};

/// The benchmark's locks never expire.
const HOLD_MS_MAX: u64 = 60_000;
/// The paper's lists grow by items of this size.
const ELEMENT_BYTES: usize = 1024;
/// Upper bound on the elements of a list under test.
const ELEMENTS_MAX: usize = 4096;
/// A generous bound on the overhead of an item beside its payload.
const ITEM_OVERHEAD_BYTES: usize = 8 * 1024;
const WARM_UP: usize = 20;

/// The condition that an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waits {
    /// Until the operation is visible.
    Ordered,
    /// Until it survives a crash.
    Durable,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An unconditional write of an item.
    Write {
        /// The item's payload.
        item_bytes: usize,
    },
    /// Taking a free timed lock.
    Acquire {
        /// The locked item's payload, which is not touched.
        item_bytes: usize,
    },
    /// Releasing it.
    Release {
        /// The locked item's payload, which is not touched.
        item_bytes: usize,
    },
    /// Adding to a counter.
    Count,
    /// Appending to an empty list.
    Append {
        /// How many elements of 1 kB.
        elements: usize,
    },
}

impl Operation {
    /// The paper's rows, in its order.
    pub const ALL: [Self; 9] = [
        Self::Write { item_bytes: 1024 },
        Self::Write {
            item_bytes: 64 * 1024,
        },
        Self::Acquire { item_bytes: 1024 },
        Self::Acquire {
            item_bytes: 64 * 1024,
        },
        Self::Release { item_bytes: 1024 },
        Self::Release {
            item_bytes: 64 * 1024,
        },
        Self::Count,
        Self::Append { elements: 1 },
        Self::Append { elements: 1024 },
    ];

    /// The name and the size of the operation.
    pub fn label(self) -> (&'static str, String) {
        let kilobytes = |bytes: usize| format!("{} kB", bytes / 1024);
        match self {
            Self::Write { item_bytes } => ("regular write", kilobytes(item_bytes)),
            Self::Acquire { item_bytes } => ("timed lock acquire", kilobytes(item_bytes)),
            Self::Release { item_bytes } => ("timed lock release", kilobytes(item_bytes)),
            Self::Count => ("atomic counter", "8 B".to_owned()),
            Self::Append { elements } => ("atomic list append", format!("{elements} x 1 kB")),
        }
    }

    /// The payload of the item that the operation works on.
    fn payload_bytes(self) -> usize {
        match self {
            Self::Write { item_bytes }
            | Self::Acquire { item_bytes }
            | Self::Release { item_bytes } => item_bytes,
            Self::Count => 8,
            Self::Append { elements } => elements * (ELEMENT_BYTES + 4),
        }
    }
}

/// How long an operation took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// The fastest.
    pub min_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// Measures `operation` on a store; none if its items are larger than the store's limit.
pub async fn measure(
    store: &SharedKeyValue,
    operation: Operation,
    waits: Waits,
    repetitions: usize,
) -> Result<Option<Latency>> {
    if operation.payload_bytes() + ITEM_OVERHEAD_BYTES > store.limits().item_bytes_max {
        return Ok(None);
    }
    let mut bench = Bench::new(store.clone(), operation, waits).await?;
    let mut nanoseconds = Histogram::<u64>::new(3)?;
    for repetition in 0..WARM_UP + repetitions {
        let took = bench.once().await?;
        if repetition >= WARM_UP {
            nanoseconds.record(took.as_nanos() as u64)?;
        }
    }
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    Ok(Some(Latency {
        min_us: micros(nanoseconds.min()),
        p50_us: micros(nanoseconds.value_at_quantile(0.5)),
        p95_us: micros(nanoseconds.value_at_quantile(0.95)),
        p99_us: micros(nanoseconds.value_at_quantile(0.99)),
        max_us: micros(nanoseconds.max()),
    }))
}

/// One operation on one item.
struct Bench {
    store: SharedKeyValue,
    operation: Operation,
    waits: Waits,
    key: Key,
    payload: Bytes,
    elements: Vec<Bytes>,
    lock: TimedLock,
    owner: Bytes,
}

impl Bench {
    async fn new(store: SharedKeyValue, operation: Operation, waits: Waits) -> Result<Self> {
        let elements = if let Operation::Append { elements } = operation {
            elements
        } else {
            0
        };
        let bench = Self {
            key: Key::new("bench", format!("{operation:?} {waits:?}")),
            payload: vec![0x5a; operation.payload_bytes()].into(),
            elements: vec![vec![0xa5; ELEMENT_BYTES].into(); elements],
            lock: TimedLock::new(store.clone(), HOLD_MS_MAX),
            owner: Bytes::from_static(b"bench-primitives"),
            store,
            operation,
            waits,
        };
        if matches!(
            operation,
            Operation::Acquire { .. } | Operation::Release { .. }
        ) {
            bench.write().await?;
        }
        Ok(bench)
    }

    /// The time of one operation, without the preparation and the cleanup around it.
    async fn once(&mut self) -> Result<Duration> {
        match self.operation {
            Operation::Write { .. } => {
                let started = Instant::now();
                let receipt = self.write().await?;
                self.done(started, receipt).await
            }
            Operation::Acquire { .. } | Operation::Release { .. } => self.lock_and_unlock().await,
            Operation::Count => {
                let counter = AtomicCounter::new(self.store.clone(), self.key.clone());
                let started = Instant::now();
                let receipt = counter.add(1).await?.receipt;
                self.done(started, receipt).await
            }
            Operation::Append { .. } => {
                let list = AtomicList::new(self.store.clone(), self.key.clone(), ELEMENTS_MAX);
                let elements = self.elements.clone();
                let started = Instant::now();
                let (length, receipt) = list.append(elements).await?;
                let took = self.done(started, receipt).await?;
                ensure!(length == self.elements.len(), "the list was not empty");
                let emptied = list.clear().await?;
                self.store.externalize(emptied.point).await?;
                Ok(took)
            }
        }
    }

    async fn lock_and_unlock(&self) -> Result<Duration> {
        let started = Instant::now();
        let acquired = self
            .lock
            .acquire(&self.key, &self.owner, Timestamp(0))
            .await?;
        let held = acquired.context("another holder has the lock")?;
        let acquiring = self.done(started, Receipt { point: held.point }).await?;
        let started = Instant::now();
        let released = self.lock.release(&held).await?;
        let receipt = released.context("the lock was lost")?;
        let releasing = self.done(started, receipt).await?;
        Ok(if matches!(self.operation, Operation::Acquire { .. }) {
            acquiring
        } else {
            releasing
        })
    }

    async fn write(&self) -> Result<Receipt> {
        let actions = vec![Action::set("payload", self.payload.clone())];
        let updated = self
            .store
            .update(Update::modify(self.key.clone(), actions))
            .await?;
        ensure!(
            matches!(updated.outcome, Outcome::Done(Some(_))),
            "a write was refused"
        );
        Ok(updated.receipt)
    }

    async fn done(&self, started: Instant, receipt: Receipt) -> Result<Duration> {
        if self.waits == Waits::Durable {
            self.store.externalize(receipt.point).await?;
        }
        Ok(started.elapsed())
    }
}
