//! Clients that run transactions one after the other, and their observations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;
use simulation::transactions::{
    fractures,
    history::{Answer, Commit, Execution, Order, ReadResult, Span, Step, Writer},
    workload::{Mix, Planned, Script, Tag, Work, Zipf, key},
};
use tokio::time::Instant;
use transactions::model::{Isolation, Version};

use super::target::Target;

/// The part of a value that is kept for the checks: longer than any tag.
const TAG_BYTES_MAX: usize = 256;
/// Keys that one transaction writes before the run, so that every read finds a value.
const KEYS_PREPARED_AT_ONCE: usize = 50;

/// Whether the clients' observations are kept for the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// They are, to count anomalies.
    Anomalies,
    /// Only times are kept, for throughput.
    Times,
}

/// The size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// This many transactions in total.
    Transactions(usize),
    /// All transactions that begin within this time.
    Time(Duration),
}

/// The results of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Transactions that committed.
    pub transactions: u64,
    /// Transactions that gave up because no version was compatible with their earlier reads.
    pub no_valid_version: u64,
    /// Committed transactions per second.
    pub per_second: f64,
    /// Median, from begin to the response of the commit.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// Duration of the run.
    pub seconds: f64,
}

/// Transactions with observations that read atomic isolation excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Anomalies {
    /// They read a key that they had written, and got another transaction's value.
    pub own_write_not_read: u64,
    /// They read a part of a transaction beside something older, or read one key twice with
    /// different results.
    pub fractured: u64,
}

/// The clients' measurements in one run, or in several that are summed.
#[derive(Debug, Clone)]
pub struct Measured {
    nanoseconds: Histogram<u64>,
    no_valid_version: u64,
    elapsed: Duration,
}

impl Measured {
    /// Of requests that took `nanoseconds` each, all within `elapsed`.
    pub fn of(nanoseconds: Histogram<u64>, elapsed: Duration) -> Self {
        Self {
            nanoseconds,
            no_valid_version: 0,
            elapsed,
        }
    }

    /// Adds another run of the same clients to this one.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.nanoseconds.add(&other.nanoseconds)?;
        self.no_valid_version += other.no_valid_version;
        self.elapsed += other.elapsed;
        Ok(())
    }

    /// Its figures.
    pub fn figures(&self) -> Figures {
        let (transactions, seconds) = (self.nanoseconds.len(), self.elapsed.as_secs_f64());
        let ms = |quantile| self.nanoseconds.value_at_quantile(quantile) as f64 / 1e6;
        Figures {
            transactions,
            no_valid_version: self.no_valid_version,
            per_second: transactions as f64 / seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            seconds,
        }
    }
}

/// The clients of one store, which can run more than once. Their observations are checked against
/// every commit of all their runs.
#[derive(Debug)]
pub struct Clients {
    targets: Vec<Target>,
    mix: Mix,
    watching: Watching,
    seed: u64,
    order: Order,
    executions: Vec<Execution>,
}

impl Clients {
    /// One client on each of `targets`, after the first of them has written every key of `mix`
    /// once. `seed` determines their transactions.
    pub async fn prepare(
        mut targets: Vec<Target>,
        mix: Mix,
        watching: Watching,
        seed: u64,
    ) -> Result<Self> {
        let order = prepare(targets.first_mut().context("a run has clients")?, &mix).await?;
        Ok(Self {
            targets,
            mix,
            watching,
            seed,
            order,
            executions: Vec::new(),
        })
    }

    /// Runs the mix, each client as fast as it gets responses. Every run draws other transactions.
    pub async fn run(&mut self, amount: Amount) -> Result<Measured> {
        self.run_paced(amount, Duration::ZERO).await
    }

    /// The same, but each client begins a transaction once per `every`, or later, as soon as its
    /// previous one has ended. The time of each transaction counts from its scheduled begin.
    pub async fn run_paced(&mut self, amount: Amount, every: Duration) -> Result<Measured> {
        let (mix, watching, epoch) = (self.mix, self.watching, Instant::now());
        let (transactions, ends) = match amount {
            Amount::Transactions(transactions) => (transactions, None),
            Amount::Time(lasts) => (usize::MAX, Some(epoch + lasts)),
        };
        // A free client takes the next transaction. Otherwise the slowest client would determine
        // the end, later the more clients there are.
        let count = self.targets.len();
        let pool = Arc::new(AtomicUsize::new(transactions / count * count));
        let clients: Vec<_> = std::mem::take(&mut self.targets)
            .into_iter()
            .enumerate()
            .map(|(number, target)| {
                let rng = Rng::with_seed(self.seed.wrapping_add(number as u64));
                let client = Client {
                    number,
                    target,
                    mix,
                    rng,
                    epoch,
                    ends,
                    watching,
                    every,
                };
                tokio::spawn(client.run(Arc::clone(&pool)))
            })
            .collect();
        let mut measured = Measured {
            nanoseconds: Histogram::new(3)?,
            no_valid_version: 0,
            elapsed: Duration::ZERO,
        };
        for client in clients {
            let (target, part) = client.await.context("a client")??;
            self.targets.push(target);
            self.executions.extend(part.executions);
            self.order.committed.extend(part.committed);
            measured.nanoseconds.add(part.nanoseconds)?;
            measured.no_valid_version += part.no_valid_version;
        }
        measured.elapsed = epoch.elapsed();
        self.seed = self.seed.wrapping_add(count as u64);
        Ok(measured)
    }

    /// The observations of all runs so far that read atomic isolation excludes; none if the runs
    /// did not check.
    pub fn anomalies(&self) -> Option<Anomalies> {
        (self.watching == Watching::Anomalies).then(|| anomalies(&self.executions, &self.order))
    }
}

/// The share of one client.
struct Part {
    executions: Vec<Execution>,
    committed: Vec<(Writer, Version)>,
    nanoseconds: Histogram<u64>,
    no_valid_version: u64,
}

/// Writes every key once.
async fn prepare(target: &mut Target, mix: &Mix) -> Result<Order> {
    let mut order = Order::default();
    for first in (0..mix.keys).step_by(KEYS_PREPARED_AT_ONCE) {
        let keys: Vec<_> = (first..mix.keys.min(first + KEYS_PREPARED_AT_ONCE))
            .map(key)
            .collect();
        let writer = target.begin().await?;
        let planned: Vec<Planned> = keys
            .iter()
            .map(|key| Planned {
                key: key.clone(),
                deletes: false,
            })
            .collect();
        for (ordinal, key) in keys.iter().enumerate() {
            // The first writes need no write set: no reader can see a part of them.
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

/// Each transaction counts once, however many anomalies it saw.
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
    ends: Option<Instant>,
    watching: Watching,
    every: Duration,
}

impl Client {
    async fn run(mut self, pool: Arc<AtomicUsize>) -> Result<(Target, Part)> {
        let zipf = Zipf::new(self.mix.keys, self.mix.zipf);
        let mut part = Part {
            executions: Vec::new(),
            committed: Vec::new(),
            nanoseconds: Histogram::new(3)?,
            no_valid_version: 0,
        };
        // The clients do not all start at the same moment.
        let first = self.every.mul_f64(self.rng.f64());
        let take = |left: usize| left.checked_sub(1);
        let mut number = 0_u32;
        while pool
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            let script = Script::draw(&self.mix, &zipf, &mut self.rng);
            let due = (!self.every.is_zero()).then(|| self.epoch + first + self.every * number);
            if self
                .ends
                .is_some_and(|ends| Instant::now().max(due.unwrap_or(self.epoch)) >= ends)
            {
                break;
            }
            if let Some(due) = due {
                tokio::time::sleep_until(due).await;
            }
            let started = due.unwrap_or_else(Instant::now);
            self.one(&script, &mut part, started).await?;
            number += 1;
        }
        Ok((self.target, part))
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
                        let is_valid = shown != ReadResult::NoValidVersion;
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
                    let tag = Tag {
                        writer: writer.clone(),
                        ordinal: writes,
                        planned: planned.clone(),
                    };
                    let value = tag.to_value(self.mix.value_bytes);
                    writes += 1;
                    let noted = Some(kept_bytes(&value));
                    steps.push(Step::Wrote {
                        key: write.key.clone(),
                        value: noted,
                    });
                    self.target.put(&write.key, value).await?;
                }
            }
        }
        let asked = Instant::now();
        let version = self.target.commit().await?;
        part.nanoseconds
            .record(started.elapsed().as_nanos() as u64)?;
        if self.watching == Watching::Anomalies {
            let commit = Some(Commit {
                span: self.span(asked),
                answer: Answer::Committed,
            });
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
        Span {
            asked: since(asked),
            answered: since(Instant::now()).max(Duration::from_nanos(1)),
        }
    }
}

/// The kept part of a value: its tag, not its filling.
fn kept_bytes(value: &Bytes) -> Bytes {
    Bytes::copy_from_slice(&value[..value.len().min(TAG_BYTES_MAX)])
}

fn kept(shown: ReadResult) -> ReadResult {
    match shown {
        ReadResult::Value(value) => ReadResult::Value(kept_bytes(&value)),
        other => other,
    }
}
