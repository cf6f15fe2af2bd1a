//! Landfast beside Apache ZooKeeper: the same load on both, cell by cell.
//!
//! Both servers are up all the time. They are measured in turns, several short ones for each cell,
//! since a virtual machine may be twice as fast in one minute as in the next. The idle server is
//! halted: a JVM collects garbage, and a store makes checkpoints, even after its load has gone.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use benches::{
    chart,
    figures::{Load, Machine, Report, Row, Shape, Workload},
    load::{self, Measured, Plan},
    server::Process,
    table,
};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

/// The load on both servers before the first cell, so that the JVM has compiled the measured code.
const FIRST_SHAPE: Shape = Shape {
    connections: 8,
    outstanding: 16,
};
const FIRST_LOAD: Duration = Duration::from_secs(8);

/// Puts the same load on Landfast and on Apache ZooKeeper and prints both, side by side.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    landfast: PathBuf,
    /// Where the jars of ZooKeeper are (see scripts/install-zookeeper).
    #[arg(long, default_value = "target/peers/zookeeper")]
    zookeeper: PathBuf,
    /// Directory of the data directories, the logs and zookeeper.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// Measure only one of the two.
    #[arg(long, value_enum)]
    only: Option<Server>,
    /// Connections x requests outstanding on each, in the order to measure.
    #[arg(long, value_delimiter = ',', default_value = "1x1,8x16,64x16,4x64")]
    shapes: Vec<Shape>,
    /// Requests of the clients, in the order to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Number of nodes that gets and sets are spread over.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// Bytes of data in each node.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    node_bytes: u32,
    /// How often each cell is measured on each server, in turns; the results of all turns are
    /// summed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Seconds of load before each measurement.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    measure: f64,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Write a bar chart here.
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Server {
    Zookeeper,
    Landfast,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // One thread: the generator must leave the rest of the machine to the server.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.directory)?;
    let plan = Plan {
        nodes: arguments.nodes as usize,
        node_bytes: arguments.node_bytes as usize,
        warm_up: Duration::try_from_secs_f64(arguments.warm_up).context("--warm-up")?,
        measure: Duration::try_from_secs_f64(arguments.measure).context("--measure")?,
    };
    ensure!(
        !plan.measure.is_zero(),
        "--measure must be longer than nothing"
    );
    let machine = Machine::here()?;
    let zookeeper = if arguments.only == Some(Server::Landfast) {
        None
    } else {
        Some(Process::zookeeper(&arguments.zookeeper, &arguments.directory).await?)
    };
    let landfast = if arguments.only == Some(Server::Zookeeper) {
        None
    } else {
        Some(Process::landfast(&arguments.landfast, &arguments.directory).await?)
    };
    for server in [&zookeeper, &landfast].into_iter().flatten() {
        load::prepare(server.address, plan).await?;
        load::run(
            server,
            Workload::Mix,
            FIRST_SHAPE,
            Plan {
                measure: FIRST_LOAD,
                ..plan
            },
        )
        .await?;
        server.pause()?;
    }
    let rows = measure(arguments, plan, zookeeper.as_ref(), landfast.as_ref()).await?;
    let report = Report {
        command: std::iter::once("bench-zookeeper".to_owned())
            .chain(std::env::args().skip(1))
            .collect::<Vec<_>>()
            .join(" "),
        machine,
        zookeeper: zookeeper.as_ref().map(Process::footprint).transpose()?,
        landfast: landfast.as_ref().map(Process::footprint).transpose()?,
        rows,
    };
    for server in [zookeeper, landfast].into_iter().flatten() {
        server.resume()?;
        server.stop().await?;
    }
    show(arguments, &report)
}

async fn measure(
    arguments: &Arguments,
    plan: Plan,
    zookeeper: Option<&Process>,
    landfast: Option<&Process>,
) -> Result<Vec<Row>> {
    let cells = arguments.shapes.len() * arguments.workloads.len();
    let bar = ProgressBar::new(cells as u64).with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {msg} (about {eta} left)",
    )?);
    let mut rows = Vec::new();
    for &shape in &arguments.shapes {
        for &workload in &arguments.workloads {
            bar.set_message(format!("{workload} {shape}"));
            let mut turns = [("ZooKeeper", zookeeper, None), ("Landfast", landfast, None)];
            for _ in 0..arguments.rounds {
                for (name, server, measured) in &mut turns {
                    let Some(server) = server else { continue };
                    let load = turn(server, workload, shape, plan).await;
                    add(
                        measured,
                        load.with_context(|| format!("{workload} {shape} on {name}"))?,
                    )?;
                }
            }
            for (name, _, measured) in &turns {
                let Some(measured) = measured else { continue };
                bar.suspend(|| println!("{}", line(workload, shape, name, &measured.load())));
            }
            let [zookeeper, landfast] =
                turns.map(|(_, _, measured)| measured.map(|measured| measured.load()));
            rows.push(Row {
                workload,
                shape,
                zookeeper,
                landfast,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures one server, which is halted before and after.
async fn turn(server: &Process, workload: Workload, shape: Shape, plan: Plan) -> Result<Measured> {
    server.resume()?;
    let measured = load::run(server, workload, shape, plan).await?;
    server.pause()?;
    Ok(measured)
}

fn add(sum: &mut Option<Measured>, measured: Measured) -> Result<()> {
    match sum {
        Some(sum) => sum.add(&measured)?,
        None => *sum = Some(measured),
    }
    Ok(())
}

fn line(workload: Workload, shape: Shape, name: &str, load: &Load) -> String {
    format!(
        "{:<14} {:<6} {name:<10} {:>9} ops/s   p50 {:>8.2} ms   p99 {:>8.2} ms   {:>6.1} us/op",
        workload.to_string(),
        shape.to_string(),
        table::thousands(load.operations_per_second),
        load.p50_ms,
        load.p99_ms,
        load.cpu_us_per_operation
    )
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let markdown = table::markdown(report);
    println!("\n{markdown}");
    fs::write(
        arguments.directory.join("zookeeper.json"),
        serde_json::to_vec_pretty(report)?,
    )?;
    if let Some(path) = &arguments.markdown {
        write(path, &markdown)?;
    }
    if let Some(path) = &arguments.svg {
        write(path, &chart::svg(report))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}
