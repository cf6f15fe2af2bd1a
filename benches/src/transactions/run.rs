//! Clients that run transactions one after the other, and what they saw.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;
use simulation::transactions::{
    fractures,
    history::{Answer, Commit, Execution, Order, Shown, Span, Step, Writer},
    workload::{Mix, Planned, Script, Tag, Work, Zipf, key},
};
use tokio::time::Instant;
use transactions::model::{Isolation, Version};

use super::target::Target;

/// What is kept of a value for the checks: more than any tag takes.
const TAG_BYTES_MAX: usize = 256;
/// Keys written by one transaction before the run, so that every read finds something.
const KEYS_PREPARED_AT_ONCE: usize = 50;

/// Whether what clients saw is kept for the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// It is, for anomalies.
    Anomalies,
    /// Only times are, for throughput.
    Times,
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Transactions that committed.
    pub transactions: u64,
    /// Transactions that gave up because no version went with what they had read.
    pub no_valid_version: u64,
    /// Those committed per second.
    pub per_second: f64,
    /// Half of them took no longer, from begin to the answer of the commit.
    pub p50_ms: f64,
    /// All but one in a hundred took no longer.
    pub p99_ms: f64,
    /// How long the run took.
    pub seconds: f64,
    /// What was seen that read atomic isolation excludes; none: not looked for.
    pub anomalies: Option<Anomalies>,
}

/// Transactions that saw something which read atomic isolation excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Anomalies {
    /// They read a key that they had written, and it was another's value.
    pub own_write_not_read: u64,
    /// They read a part of a transaction beside something older, or one key twice and differently.
    pub fractured: u64,
}

/// One client's part.
struct Part {
    executions: Vec<Execution>,
    committed: Vec<(Writer, Version)>,
    nanoseconds: Histogram<u64>,
    no_valid_version: u64,
}

/// Writes every key once.
pub async fn prepare(target: &mut Target, mix: &Mix) -> Result<Order> {
    let mut order = Order::default();
    for first in (0..mix.keys).step_by(KEYS_PREPARED_AT_ONCE) {
        let keys: Vec<_> = (first..mix.keys.min(first + KEYS_PREPARED_AT_ONCE)).map(key).collect();
        let writer = target.begin().await?;
        let planned: Vec<Planned> =
            keys.iter().map(|key| Planned { key: key.clone(), deletes: false }).collect();
        for (ordinal, key) in keys.iter().enumerate() {
            // What was there before everything needs no write set: nobody can read less of it.
            let tag = Tag {
                writer: writer.clone(),
                ordinal: ordinal as u32,
                planned: vec![planned[ordinal].clone()],
            };
            target.put(key, tag.to_value(mix.value_bytes)).await?;
        }
        order.committed.insert(writer, target.commit().await?);
    }
    Ok(order)
}

/// Runs `mix` with one client on each of `targets`, each as fast as it is answered, after [`prepare`] gave `order`.
pub async fn run(
    targets: Vec<Target>,
    mix: Mix,
    seed: u64,
    watching: Watching,
    order: Order,
) -> Result<Figures> {
    run_paced(targets, mix, seed, watching, order, Duration::ZERO).await
}

/// The same where each client begins a transaction `every` so often, or as soon after that as the one before has ended. The
/// time of each counts from when it should have begun.
pub async fn run_paced(
    targets: Vec<Target>,
    mix: Mix,
    seed: u64,
    watching: Watching,
    mut order: Order,
    every: Duration,
) -> Result<Figures> {
    ensure!(!targets.is_empty(), "a run has clients");
    let epoch = Instant::now();
    // Who is free takes the next one: else the end would be that of the slowest client, later the more there are.
    let pool = Arc::new(AtomicUsize::new(mix.transactions / targets.len() * targets.len()));
    let clients: Vec<_> = targets
        .into_iter()
        .enumerate()
        .map(|(number, target)| {
            let rng = Rng::with_seed(seed.wrapping_add(number as u64));
            tokio::spawn(Client { number, target, mix, rng, epoch, watching, every }.run(Arc::clone(&pool)))
        })
        .collect();
    let mut executions = Vec::new();
    let mut nanoseconds = Histogram::<u64>::new(3)?;
    let mut no_valid_version = 0;
    for client in clients {
        let part = client.await.context("a client")??;
        executions.extend(part.executions);
        order.committed.extend(part.committed);
        nanoseconds.add(part.nanoseconds)?;
        no_valid_version += part.no_valid_version;
    }
    let seconds = epoch.elapsed().as_secs_f64();
    let ms = |quantile| nanoseconds.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Figures {
        transactions: nanoseconds.len(),
        no_valid_version,
        per_second: nanoseconds.len() as f64 / seconds,
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        seconds,
        anomalies: (watching == Watching::Anomalies).then(|| anomalies(&executions, &order)),
    })
}

/// Each transaction counts once, however much it saw.
fn anomalies(executions: &[Execution], order: &Order) -> Anomalies {
    let mut found = Anomalies::default();
    for execution in executions.iter().map(std::slice::from_ref) {
        found.own_write_not_read += u64::from(!fractures::own_write_not_read(execution).is_empty());
        let is_fractured = !fractures::fractured(execution, order).is_empty()
            || !fractures::not_repeatable(execution).is_empty();
        found.fractured += u64::from(is_fractured);
    }
    found
}

struct Client {
    number: usize,
    target: Target,
    mix: Mix,
    rng: Rng,
    epoch: Instant,
    watching: Watching,
    every: Duration,
}

impl Client {
    async fn run(mut self, pool: Arc<AtomicUsize>) -> Result<Part> {
        let zipf = Zipf::new(self.mix.keys, self.mix.zipf);
        let mut part = Part {
            executions: Vec::new(),
            committed: Vec::new(),
            nanoseconds: Histogram::new(3)?,
            no_valid_version: 0,
        };
        // Not all at the same moment.
        let first = self.every.mul_f64(self.rng.f64());
        let take = |left: usize| left.checked_sub(1);
        let mut number = 0_u32;
        while pool.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let script = Script::draw(&self.mix, &zipf, &mut self.rng);
            let started = if self.every.is_zero() {
                Instant::now()
            } else {
                let due = self.epoch + first + self.every * number;
                tokio::time::sleep_until(due).await;
                due
            };
            self.one(&script, &mut part, started).await?;
            number += 1;
        }
        Ok(part)
    }

    async fn one(&mut self, script: &Script, part: &mut Part, started: Instant) -> Result<()> {
        let planned = script.planned();
        let writer = self.target.begin().await?;
        let begun = self.span(started);
        let (mut steps, mut writes) = (Vec::with_capacity(script.work.len()), 0);
        for work in &script.work {
            match work {
                Work::Read(keys) => {
                    for key in keys {
                        let asked = Instant::now();
                        let shown = self.target.get(key).await?;
                        let is_valid = shown != Shown::NoValidVersion;
                        steps.push(Step::Read {
                            key: key.clone(),
                            shown: kept(shown),
                            span: self.span(asked),
                        });
                        if !is_valid {
                            part.no_valid_version += 1;
                            return self.target.abort().await;
                        }
                    }
                }
                Work::Write(write) => {
                    let tag = Tag { writer: writer.clone(), ordinal: writes, planned: planned.clone() };
                    let value = tag.to_value(self.mix.value_bytes);
                    writes += 1;
                    let noted = Some(kept_bytes(&value));
                    steps.push(Step::Wrote { key: write.key.clone(), value: noted });
                    self.target.put(&write.key, value).await?;
                }
            }
        }
        let asked = Instant::now();
        let version = self.target.commit().await?;
        part.nanoseconds.record(started.elapsed().as_nanos() as u64)?;
        if self.watching == Watching::Anomalies {
            let commit = Some(Commit { span: self.span(asked), answer: Answer::Committed });
            part.committed.push((writer.clone(), version));
            part.executions.push(Execution {
                client: self.number,
                writer,
                isolation: Isolation::ReadAtomic,
                begun,
                steps,
                commit,
            });
        }
        Ok(())
    }

    fn span(&self, asked: Instant) -> Span {
        let since = |instant: Instant| instant.saturating_duration_since(self.epoch);
        Span { asked: since(asked), answered: since(Instant::now()).max(Duration::from_nanos(1)) }
    }
}

/// What is kept of a value: its tag, not its filling.
fn kept_bytes(value: &Bytes) -> Bytes {
    Bytes::copy_from_slice(&value[..value.len().min(TAG_BYTES_MAX)])
}

fn kept(shown: Shown) -> Shown {
    match shown {
        Shown::Value(value) => Shown::Value(kept_bytes(&value)),
        other => other,
    }
}
