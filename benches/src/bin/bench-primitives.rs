//! The paper's table 9a for each provider: how long one operation of a primitive takes.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use benches::{
    figures::Machine,
    latency::{self, Latency, Operation, Waits},
    server::Process,
    table,
};
use clap::Parser;
use embedded::{Config, Embedded};
use indicatif::{ProgressBar, ProgressStyle};
use ports::key_value::{KeyValueLimits, SharedKeyValue};
use redis_provider::Redis;
use serde::Serialize;

/// Items of the in-memory store may be as large as the longest list of the table.
const SIMULATED_ITEM_BYTES_MAX: usize = 4 << 20;

/// Measures the synchronisation primitives on each provider, one operation at a time.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Directory of the embedded store and of primitives.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// Measurements of each operation, as many as in the paper.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repetitions: u32,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

/// A column of the table.
struct Store {
    name: &'static str,
    key_value: SharedKeyValue,
    waits: Waits,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    size: String,
    store: &'static str,
    latency: Option<Latency>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<()> {
    let machine = Machine::here()?;
    let embedded = open_embedded(arguments).await?;
    let redis = Process::redis(&arguments.directory, "always").await?;
    let config = redis_provider::Config::from_url(&format!("redis://{}", redis.address))?;
    let on_redis = Redis::open(&config).await?;
    let stores = [
        Store {
            name: "embedded, durable",
            key_value: embedded.key_value(),
            waits: Waits::Durable,
        },
        Store {
            name: "embedded, ordered",
            key_value: embedded.key_value(),
            waits: Waits::Ordered,
        },
        Store {
            name: "Redis, durable",
            key_value: on_redis.key_value(),
            waits: Waits::Durable,
        },
        // Its durability takes virtual time only, so its figures are the floor: no journal, no
        // disk.
        Store {
            name: "simulated (in memory)",
            key_value: open_simulated(),
            waits: Waits::Ordered,
        },
    ];
    let bar = ProgressBar::new((Operation::ALL.len() * stores.len()) as u64)
        .with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let mut rows = Vec::new();
    for operation in Operation::ALL {
        for store in &stores {
            let (name, size) = operation.label();
            bar.set_message(format!("{name} {size} on {}", store.name));
            let latency = latency::measure(
                &store.key_value,
                operation,
                store.waits,
                arguments.repetitions as usize,
            );
            let latency = latency
                .await
                .with_context(|| format!("{name} {size} on {}", store.name))?;
            rows.push(Row {
                operation: name,
                size,
                store: store.name,
                latency,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    drop(stores);
    drop(on_redis);
    redis.stop().await?;
    embedded.close().await;
    show(arguments, &machine, &rows)
}

/// A fresh store on the disk under `directory`.
async fn open_embedded(arguments: &Arguments) -> Result<Embedded> {
    let data = arguments.directory.join("primitives");
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    fs::create_dir_all(&data)?;
    Ok(Embedded::open(Config::new(data)).await?)
}

fn open_simulated() -> SharedKeyValue {
    let options = simulated::Options::default();
    let key_value = KeyValueLimits {
        item_bytes_max: SIMULATED_ITEM_BYTES_MAX,
        ..options.key_value
    };
    simulated::World::with_options(
        1,
        simulated::Options {
            key_value,
            ..options
        },
    )
    .key_value()
}

fn show(arguments: &Arguments, machine: &Machine, rows: &[Row]) -> Result<()> {
    let mut text = format!(
        "`bench-primitives`, {} repetitions, {}\n\n{} x {}, Linux {}, load average {} before the run. Microseconds.\n\n",
        arguments.repetitions,
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average
    );
    let mut cells = vec![table::strings([
        "operation",
        "size",
        "store",
        "min",
        "p50",
        "p95",
        "p99",
        "max",
    ])];
    cells.extend(rows.iter().map(|row| {
        let show = |figure: fn(&Latency) -> f64| {
            row.latency.as_ref().map_or_else(
                || "over its limit".to_owned(),
                |latency| format!("{:.1}", figure(latency)),
            )
        };
        vec![
            row.operation.to_owned(),
            row.size.clone(),
            row.store.to_owned(),
            show(|latency| latency.min_us),
            show(|latency| latency.p50_us),
            show(|latency| latency.p95_us),
            show(|latency| latency.p99_us),
            show(|latency| latency.max_us),
        ]
    }));
    table::grid(&mut text, &cells);
    println!("{text}");
    fs::write(
        arguments.directory.join("primitives.json"),
        serde_json::to_vec_pretty(rows)?,
    )?;
    if let Some(path) = &arguments.markdown {
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
