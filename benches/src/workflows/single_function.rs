//! One function that writes and pauses in turn: figures 5.1 and 5.2 of `external-synchrony.txt`, in
//! this process.
//!
//! The near store is on the disk, the far one a Redis behind [`distant`](super::distant). Each
//! function has a shard of its own. Several are measured at once: the distance is latency and not
//! occupation, and the functions use almost no CPU.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use in_process::{SystemClock, SystemEntropy};
use ports::{
    DurabilityPoint, Externalize as _, Key, KeyValue as _, Update,
    key_value::{SharedKeyValue, Value},
};
use serde::Serialize;
use synchrony::{Lane, Mode, Options, Stores, Synchrony};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::transactions::engine::embedded;

/// The size of each write.
const VALUE_BYTES: usize = 1 << 10;
/// Concurrent functions.
const AT_ONCE: usize = 24;

/// The time when writes return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Each waits for the far store: the baseline.
    Sync,
    /// At once, with one far write in flight: the paper's protocol.
    Serial,
    /// At once, with several batches in flight: ours.
    External,
}

impl Protocol {
    /// From the slowest to ours.
    pub const ALL: [Self; 3] = [Self::Sync, Self::Serial, Self::External];

    /// The name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Serial => "serial",
            Self::External => "external",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Sync => Mode::Sync,
            Self::Serial => Mode::Serial,
            Self::External => Mode::External,
        }
    }
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Function {
    /// Number of writes.
    pub repetitions: usize,
    /// Computing time before each write.
    pub pause_ms: u64,
}

/// The duration of a function.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Took {
    /// The function.
    pub function: Function,
    /// The protocol.
    pub protocol: Protocol,
    /// The median of its trials, in milliseconds.
    pub p50_ms: f64,
}

/// Runs each function `trials` times under each protocol, with near stores below `directory` and
/// `far` as the far one.
pub async fn measure(
    directory: &Path,
    far: SharedKeyValue,
    functions: &[Function],
    trials: usize,
) -> Result<Vec<Took>> {
    let near = embedded(&directory.join("single-function")).await?;
    let mut took = Vec::new();
    for protocol in Protocol::ALL {
        let pair = Pair {
            near: near.key_value(),
            far: Arc::clone(&far),
            protocol,
        };
        took.extend(pair.measure(functions, trials).await?);
    }
    Ok(took)
}

/// The stores that the functions of one protocol write through.
#[derive(Clone)]
struct Pair {
    near: SharedKeyValue,
    far: SharedKeyValue,
    protocol: Protocol,
}

impl Pair {
    async fn measure(self, functions: &[Function], trials: usize) -> Result<Vec<Took>> {
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut under_way = JoinSet::new();
        for (number, function) in functions
            .iter()
            .flat_map(|function| vec![*function; trials])
            .enumerate()
        {
            let (pair, room) = (self.clone(), Arc::clone(&room));
            under_way.spawn(async move {
                let _room = room.acquire_owned().await.context("room is never closed")?;
                Ok::<_, anyhow::Error>((function, pair.run(function, number).await?))
            });
        }
        let mut all: Vec<(Function, Duration)> = Vec::new();
        while let Some(ran) = under_way.join_next().await {
            all.push(ran??);
        }
        all.sort_unstable();
        let median = |trials: &[(Function, Duration)]| Took {
            function: trials[0].0,
            protocol: self.protocol,
            p50_ms: trials[trials.len() / 2].1.as_secs_f64() * 1e3,
        };
        Ok(all
            .chunk_by(|one, other| one.0 == other.0)
            .map(median)
            .collect())
    }

    /// Each function writes to its own shard: with the paper's protocol, functions of one shard
    /// wait for each other.
    async fn run(self, function: Function, number: usize) -> Result<Duration> {
        let shard = Bytes::from(format!("bench/{}/{number}", self.protocol.name()));
        let stores = Stores {
            near: self.near,
            far: self.far,
            shard,
        };
        let options = Options {
            mode: self.protocol.mode(),
            ..Options::default()
        };
        let clock = Arc::new(SystemClock);
        let synchrony =
            Synchrony::open(stores, options, clock, Arc::new(SystemEntropy::default())).await?;
        let took = run(synchrony.lane()?, function).await?;
        synchrony.release().await?;
        Ok(took)
    }
}

async fn run(lane: Lane, function: Function) -> Result<Duration> {
    let value = Value::Bytes(vec![b'x'; VALUE_BYTES].into());
    let began = Instant::now();
    let mut point = DurabilityPoint::DURABLE;
    for repetition in 0..function.repetitions {
        if function.pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(function.pause_ms)).await;
        }
        let key = Key::new("function", format!("{repetition:04}"));
        let updated = lane
            .update(Update::put(key, vec![("value".into(), value.clone())]))
            .await?;
        point = point.max(updated.receipt.point);
    }
    lane.externalize(point).await?;
    Ok(began.elapsed())
}
