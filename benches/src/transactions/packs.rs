//! The cost of packed values on an object store: puts and bytes per second at one transaction rate
//! after the other. The objects are files, with a gathering delay as long as for a store that is
//! paid by the request.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use ports::metering::{Count, Meter, MeteredObjects, Operation};
use serde::Serialize;
use simulation::transactions::workload::Mix;
use transactions::Config;

use super::{
    engine::{embedded, start_packing},
    run::{Amount, Clients, Figures, Watching},
    target::Target,
};

/// The result of one rate.
#[derive(Debug, Clone, Serialize)]
pub struct Packing {
    /// Offered transactions per second.
    pub rate: u32,
    /// The figures.
    pub figures: Figures,
    /// Key values written per second.
    pub values_per_second: f64,
    /// Objects put per second.
    pub puts_per_second: f64,
    /// Bytes of these objects per second.
    pub put_bytes_per_second: f64,
    /// Number of compacted packs.
    pub compacted: u64,
}

/// Runs `mix` at `rate` for about `seconds`, in process on a fresh embedded store and fresh objects at `data`.
pub async fn measure(
    data: &Path,
    mix: Mix,
    rate: u32,
    seconds: Duration,
    seed: u64,
) -> Result<Packing> {
    let store = embedded(&data.join("store")).await?;
    let objects = data.join("objects");
    if objects.exists() {
        std::fs::remove_dir_all(&objects)?;
    }
    let meter = Arc::new(Meter::default());
    let objects = MeteredObjects::around(
        embedded::open_objects(objects).await?.objects(),
        Arc::clone(&meter),
    );
    let (engine, background) = start_packing(store.key_value(), objects, Config::default()).await?;
    let targets = (0..mix.clients).map(|_| Target::engine(&engine)).collect();
    let mut clients = Clients::prepare(targets, mix, Watching::Times, seed).await?;
    let (before, compacted) = (puts(&meter), engine.figures().compacted);
    let transactions = (f64::from(rate) * seconds.as_secs_f64()) as usize;
    let amount = Amount::Transactions(transactions.max(mix.clients));
    let every = Duration::from_secs_f64(mix.clients as f64 / f64::from(rate));
    let figures = clients.run_paced(amount, every).await?.figures();
    let (after, compacted) = (puts(&meter), engine.figures().compacted - compacted);
    drop((clients, engine, background));
    store.close().await;
    let a_second = |amount: u64| amount as f64 / figures.seconds;
    let packing = Packing {
        rate,
        values_per_second: a_second(figures.transactions * (mix.functions * mix.writes) as u64),
        puts_per_second: a_second(after.calls - before.calls),
        put_bytes_per_second: a_second(after.bytes - before.bytes),
        compacted,
        figures,
    };
    eprintln!(
        "packs at {rate} per second: {:.1} puts a second",
        packing.puts_per_second
    );
    Ok(packing)
}

fn puts(meter: &Meter) -> Count {
    meter.usage().of(Operation::ObjectPut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T17: on a disk, in real time.
    #[tokio::test(flavor = "multi_thread")]
    async fn puts_stay_where_they_are_while_values_multiply() {
        let data = std::env::temp_dir().join(format!("landfast-packs-{}", std::process::id()));
        let mix = Mix {
            clients: 8,
            keys: 40,
            ..Mix::default()
        };
        let packing = measure(&data, mix, 200, Duration::from_secs(2), 1)
            .await
            .expect("measured");
        assert!(
            packing.values_per_second > 5.0 * packing.puts_per_second,
            "{packing:?}"
        );
        assert!(
            (0.1..10.5).contains(&packing.puts_per_second),
            "{packing:?}"
        );
        assert!(
            packing.put_bytes_per_second > 4_096.0 * packing.values_per_second,
            "{packing:?}"
        );
        std::fs::remove_dir_all(&data).expect("removed");
    }
}
