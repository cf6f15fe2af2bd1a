//! The bytes stored under steady overwrites, with collection and without: the same rate on two
//! fresh stores, while the size of the checkpoint store is sampled.
//!
//! Without collection a store may not keep up in the long run. The report shows the achieved rate
//! beside the offered one.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;
use simulation::transactions::workload::Mix;
use transactions::Config;

use super::{
    collection::Collecting,
    engine::{embedded_that_folds_often, start, stored_bytes},
    run::{Amount, Clients, Figures, Watching},
    target::Target,
};
use crate::server::own_cpu;

/// How often the disk is sampled.
const LOOKS: u32 = 200;

/// One run, with collection or without.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Whether it collected.
    pub collecting: Collecting,
    /// The figures.
    pub figures: Figures,
    /// CPU time per transaction, in microseconds, of engine and generator together.
    pub cpu_us: f64,
    /// Seconds since the start, and bytes of the checkpoint store.
    pub stored: Vec<(f64, u64)>,
    /// Versions collected.
    pub collected_versions: u64,
}

/// Both of them.
#[derive(Debug, Clone, Serialize)]
pub struct Overwrites {
    /// Offered transactions per second.
    pub offered_per_second: f64,
    /// Duration of each run.
    pub seconds: f64,
    /// Seconds for which rows and slots are kept.
    pub window_seconds: f64,
    /// The run without collection first.
    pub runs: Vec<Run>,
}

/// The load that is run with collection and without.
#[derive(Debug, Clone, Copy)]
pub struct Steadily {
    /// The transactions of the clients.
    pub mix: Mix,
    /// Offered transactions per second.
    pub offered_per_second: f64,
    /// Duration.
    pub lasts: Duration,
    /// How long outcomes are kept.
    pub window: Duration,
    /// The seed of the clients' choices.
    pub seed: u64,
}

/// Measures both on stores at `data`.
pub async fn measure(data: &Path, steadily: Steadily) -> Result<Overwrites> {
    let mut runs = Vec::new();
    for collecting in [Collecting::Off, Collecting::On] {
        let run = overwrite(data, steadily, collecting).await?;
        eprintln!(
            "overwrites, collection {}: {:.0} of {:.0} per second, {} MiB in the end",
            collecting.name(),
            run.figures.per_second,
            steadily.offered_per_second,
            run.stored.last().map_or(0, |(_, bytes)| bytes >> 20)
        );
        runs.push(run);
    }
    Ok(Overwrites {
        offered_per_second: steadily.offered_per_second,
        seconds: steadily.lasts.as_secs_f64(),
        window_seconds: steadily.window.as_secs_f64(),
        runs,
    })
}

async fn overwrite(data: &Path, steadily: Steadily, collecting: Collecting) -> Result<Run> {
    let Steadily {
        mix,
        offered_per_second,
        lasts,
        window,
        seed,
    } = steadily;
    let config = Config {
        collects: collecting == Collecting::On,
        retry_window: window,
        ..Config::default()
    };
    let store = embedded_that_folds_often(data).await?;
    let (engine, background) = start(store.key_value(), config).await?;
    let targets = (0..mix.clients).map(|_| Target::engine(&engine)).collect();
    let mut clients = Clients::prepare(targets, mix, Watching::Times, seed).await?;
    let every = Duration::from_secs_f64(mix.clients as f64 / offered_per_second);
    let (cpu, began) = (own_cpu()?, Instant::now());
    let mut stored = vec![(0.0, stored_bytes(data)?)];
    let measured = {
        let running = clients.run_paced(Amount::Time(lasts), every);
        tokio::pin!(running);
        loop {
            tokio::select! {
                biased;
                measured = &mut running => break measured?,
                () = tokio::time::sleep(lasts / LOOKS) => {
                    stored.push((began.elapsed().as_secs_f64(), stored_bytes(data)?));
                }
            }
        }
    };
    stored.push((began.elapsed().as_secs_f64(), stored_bytes(data)?));
    let figures = measured.figures();
    let cpu_us =
        own_cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / figures.transactions.max(1) as f64;
    let collected_versions = engine.figures().collected_versions;
    drop((clients, engine, background));
    store.close().await;
    Ok(Run {
        collecting,
        figures,
        cpu_us,
        stored,
        collected_versions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T9: one run collects and the other does not, while the disk is sampled.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_run_collects_and_the_other_does_not() {
        let data = std::env::temp_dir().join(format!("landfast-overwrites-{}", std::process::id()));
        let steadily = Steadily {
            mix: Mix {
                clients: 4,
                keys: 20,
                value_bytes: 256,
                ..Mix::default()
            },
            offered_per_second: 200.0,
            lasts: Duration::from_millis(500),
            window: Duration::ZERO,
            seed: 1,
        };
        let overwrites = measure(&data, steadily).await.expect("measured");
        let [off, on] = &overwrites.runs[..] else {
            panic!("{overwrites:?}")
        };
        assert_eq!(
            (off.collecting, off.collected_versions),
            (Collecting::Off, 0)
        );
        assert_eq!(on.collecting, Collecting::On);
        assert!(on.collected_versions > on.figures.transactions, "{on:?}");
        // The pace allows for one more transaction of each client.
        assert!(
            on.figures.transactions <= 104 && off.figures.transactions <= 104,
            "{overwrites:?}"
        );
        assert!(on.stored.len() > 2 && on.stored.iter().all(|(_, bytes)| *bytes > 0));
        std::fs::remove_dir_all(&data).expect("removed");
    }
}
