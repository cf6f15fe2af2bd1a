//! What collecting costs, and what the store holds with it and without: the same overwrites on two fresh stores.
//!
//! First as fast as they go, then both at the same rate, 70 % of what the store bears without collection. Meanwhile the disk
//! is looked at, again and again.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;
use simulation::transactions::workload::Mix;
use transactions::Config;

use super::{
    engine::{embedded, start, stored_bytes},
    run::{self, Figures, Watching},
    target::Target,
};
use crate::server::own_cpu;

/// The part of the most that the store bears at which both are compared.
const STEADY: f64 = 0.7;
/// Transactions of a run that says how fast they go, before the one that lasts.
const PROBE_EACH: usize = 200;
/// How often the disk is looked at.
const LOOKS: u32 = 200;

/// Whether what nobody needs is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Collecting {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Runs with collection or without.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Which.
    pub collecting: Collecting,
    /// As fast as it goes.
    pub saturated: Figures,
    /// CPU time per transaction then, in microseconds, of engine and generator.
    pub saturated_cpu_us: f64,
    /// At the rate that both are compared at.
    pub steady: Figures,
    /// CPU time per transaction then.
    pub steady_cpu_us: f64,
    /// Seconds since that began, and bytes on the disk.
    pub stored: Vec<(f64, u64)>,
    /// Versions collected in both runs.
    pub collected_versions: u64,
}

/// Both of them.
#[derive(Debug, Clone, Serialize)]
pub struct Collection {
    /// Transactions per second at which both were compared.
    pub steady_per_second: f64,
    /// Seconds for which rows and slots are kept.
    pub window_seconds: f64,
    /// Without collection first.
    pub runs: Vec<Run>,
}

/// Measures `mix` with and without collection, each run about as long as `seconds`, on stores at `data`.
pub async fn measure(
    data: &Path,
    mix: Mix,
    window: Duration,
    seconds: Duration,
    seed: u64,
) -> Result<Collection> {
    let mut collection =
        Collection { steady_per_second: 0.0, window_seconds: window.as_secs_f64(), runs: Vec::new() };
    for collecting in [Collecting::Off, Collecting::On] {
        let house = House { data, mix, seed, seconds };
        let collects = collecting == Collecting::On;
        let config = Config { collects, retry_window: window, ..Config::default() };
        let (saturated, saturated_cpu_us, collected) = house.saturate(config.clone()).await?;
        if collecting == Collecting::Off {
            collection.steady_per_second = saturated.per_second * STEADY;
        }
        let (steady, steady_cpu_us, stored, more) =
            house.overwrite_steadily(config, collection.steady_per_second).await?;
        eprintln!(
            "collection {collecting:?}: {:.0} per second, at {:.0} p99 {:.2} ms, {} MiB in the end",
            saturated.per_second,
            collection.steady_per_second,
            steady.p99_ms,
            stored.last().map_or(0, |(_, bytes)| bytes >> 20)
        );
        let collected_versions = collected + more;
        collection.runs.push(Run {
            collecting,
            saturated,
            saturated_cpu_us,
            steady,
            steady_cpu_us,
            stored,
            collected_versions,
        });
    }
    Ok(collection)
}

struct House<'a> {
    data: &'a Path,
    mix: Mix,
    seed: u64,
    seconds: Duration,
}

impl House<'_> {
    /// As fast as it goes: what came of it, the CPU time of each, and how many versions were collected.
    async fn saturate(&self, config: Config) -> Result<(Figures, f64, u64)> {
        let store = embedded(self.data).await?;
        let (engine, background) = start(store.key_value(), config).await?;
        let order = run::prepare(&mut Target::engine(&engine), &self.mix).await?;
        let targets = || (0..self.mix.clients).map(|_| Target::engine(&engine)).collect::<Vec<_>>();
        let probe = Mix { transactions: PROBE_EACH * self.mix.clients, ..self.mix };
        let probed = run::run(targets(), probe, self.seed, Watching::Times, order.clone()).await?;
        let transactions = (probed.per_second * self.seconds.as_secs_f64()) as usize;
        let mix = Mix { transactions: transactions.max(self.mix.clients), ..self.mix };
        let before = own_cpu()?;
        let figures = run::run(targets(), mix, self.seed + 1, Watching::Times, order).await?;
        let cpu_us = each(own_cpu()?.saturating_sub(before), &figures);
        let collected = engine.figures().collected_versions;
        drop((engine, background));
        store.close().await;
        Ok((figures, cpu_us, collected))
    }

    /// At a rate, while the disk is looked at.
    async fn overwrite_steadily(
        &self,
        config: Config,
        per_second: f64,
    ) -> Result<(Figures, f64, Vec<(f64, u64)>, u64)> {
        let store = embedded(self.data).await?;
        let (engine, background) = start(store.key_value(), config).await?;
        let order = run::prepare(&mut Target::engine(&engine), &self.mix).await?;
        let transactions = (per_second * self.seconds.as_secs_f64()) as usize;
        let mix = Mix { transactions: transactions.max(self.mix.clients), ..self.mix };
        let every = Duration::from_secs_f64(mix.clients as f64 / per_second);
        let targets = (0..mix.clients).map(|_| Target::engine(&engine)).collect();
        let (before, began) = (own_cpu()?, Instant::now());
        let mut stored = vec![(0.0, stored_bytes(self.data)?)];
        let figures = {
            let running = run::run_paced(targets, mix, self.seed, Watching::Times, order, every);
            tokio::pin!(running);
            loop {
                tokio::select! {
                    biased;
                    figures = &mut running => break figures?,
                    () = tokio::time::sleep(self.seconds / LOOKS) => {
                        stored.push((began.elapsed().as_secs_f64(), stored_bytes(self.data)?));
                    }
                }
            }
        };
        let cpu_us = each(own_cpu()?.saturating_sub(before), &figures);
        stored.push((began.elapsed().as_secs_f64(), stored_bytes(self.data)?));
        let collected = engine.figures().collected_versions;
        drop((engine, background));
        store.close().await;
        Ok((figures, cpu_us, stored, collected))
    }
}

fn each(cpu: Duration, figures: &Figures) -> f64 {
    cpu.as_secs_f64() * 1e6 / figures.transactions.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T9: what is compared is collected in one run and not in the other, and both do the same.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_run_collects_and_the_other_does_not() {
        let data = std::env::temp_dir().join(format!("landfast-collection-{}", std::process::id()));
        let mix = Mix { clients: 4, keys: 20, value_bytes: 256, ..Mix::default() };
        let (window, seconds) = (Duration::ZERO, Duration::from_millis(500));
        let collection = measure(&data, mix, window, seconds, 1).await.expect("measured");
        let [off, on] = &collection.runs[..] else { panic!("{collection:?}") };
        assert_eq!((off.collecting, off.collected_versions), (Collecting::Off, 0));
        assert!(on.collected_versions > on.steady.transactions, "{on:?}");
        assert_eq!(off.steady.transactions, on.steady.transactions);
        assert!(on.stored.len() > 2 && on.stored.iter().all(|(_, bytes)| *bytes > 0));
        std::fs::remove_dir_all(&data).expect("removed");
    }
}
