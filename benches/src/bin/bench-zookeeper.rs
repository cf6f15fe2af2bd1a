//! Landfast beside Apache ZooKeeper: the same load on both, cell by cell.
//!
//! Both servers are up all the time. They are measured in turns, several short ones for each cell,
//! since a virtual machine may be twice as fast in one minute as in the next. The idle server is
//! halted: a JVM collects garbage, and a store makes checkpoints, even after its load has gone.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use benches::{
    chart,
    coordination::{disk, echo, sessions::Sessions},
    figures::{Load, Machine, Report, Row, Shape, Workload},
    load::{self, Measured, Plan},
    server::{self, Process},
    table,
};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The load on both servers before the first cell, so that the JVM has compiled the measured code.
const FIRST_SHAPE: Shape = Shape {
    connections: 8,
    outstanding: 16,
};
const FIRST_LOAD: Duration = Duration::from_secs(8);

/// The directory of both servers with `--tmpfs`.
const TMPFS: &str = "/dev/shm/landfast-bench";
/// How often all watchers are notified.
const NOTIFICATIONS: usize = 5;
/// How long a server rests before its memory is measured.
const REST: Duration = Duration::from_secs(8);
/// Bytes of data in the znodes whose memory is measured.
const MEMORY_NODE_BYTES: usize = 100;
/// Descriptors beside those of the sessions.
const DESCRIPTORS_MORE: u64 = 1000;

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
    /// Keep the data of both servers in memory, in /dev/shm instead of `--directory`.
    #[arg(long)]
    tmpfs: bool,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Open sessions of the parts `watchers` and `memory`.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    sessions: u32,
    /// Znodes of the part `memory`.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    znodes: u32,
    /// Only serve as the echo server, at this address.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    serve_echo: Option<SocketAddr>,
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
enum Part {
    /// Throughput, latency and CPU of each workload and shape.
    Rows,
    /// The median time of fdatasync, before and after the rows.
    Disk,
    /// The rows of sets against a server that only answers.
    Echo,
    /// Many sessions that watch one znode: from a set until the last event.
    Watchers,
    /// Resident memory with many znodes, and with many open sessions beside them.
    Memory,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Rows,
        Self::Disk,
        Self::Echo,
        Self::Watchers,
        Self::Memory,
    ];
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |value| value.get_name()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Server {
    Zookeeper,
    Landfast,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.tmpfs {
        arguments.directory = TMPFS.into();
    }
    // One thread: the generator must leave the rest of the machine to the server.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match arguments.serve_echo {
        Some(address) => runtime.block_on(echo::serve(address)),
        None => runtime.block_on(run(&arguments)),
    }
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
    ensure!(
        arguments.nodes >= 100 || !arguments.workloads.contains(&Workload::Multi),
        "a multi sets 100 nodes; raise --nodes"
    );
    let mut report = Report {
        command: std::iter::once("bench-zookeeper".to_owned())
            .chain(std::env::args().skip(1))
            .collect::<Vec<_>>()
            .join(" "),
        machine: Machine::here()?,
        zookeeper: None,
        landfast: None,
        rows: Vec::new(),
        measures: Vec::new(),
    };
    measure_disk(arguments, &mut report)?;
    if arguments.measures(Part::Rows) {
        measure_rows(arguments, plan, &mut report).await?;
    }
    if arguments.measures(Part::Echo) {
        measure_echo(arguments, plan, &mut report).await?;
    }
    if arguments.measures(Part::Watchers) {
        measure_watchers(arguments, &mut report).await?;
    }
    if arguments.measures(Part::Memory) {
        measure_memory(arguments, &mut report).await?;
    }
    measure_disk(arguments, &mut report)?;
    show(arguments, &report)
}

impl Arguments {
    fn measures(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Starts the wanted servers, each with an empty directory: ZooKeeper, then Landfast.
    async fn start(&self) -> Result<[Option<Process>; 2]> {
        let zookeeper = match self.only {
            Some(Server::Landfast) => None,
            _ => Some(Process::zookeeper(&self.zookeeper, &self.directory).await?),
        };
        let landfast = match self.only {
            Some(Server::Zookeeper) => None,
            _ => Some(Process::landfast(&self.landfast, &self.directory).await?),
        };
        Ok([zookeeper, landfast])
    }
}

fn measure_disk(arguments: &Arguments, report: &mut Report) -> Result<()> {
    if !arguments.measures(Part::Disk) {
        return Ok(());
    }
    let p50 = disk::fdatasync_p50(&arguments.directory)?;
    report.add(
        "fdatasync of 4 KiB, p50 ms",
        [None, Some(p50.as_secs_f64() * 1e3)],
    );
    if report.measures.len() > 1 {
        return Ok(());
    }
    for shape in &arguments.shapes {
        let outstanding = (shape.connections * shape.outstanding) as f64;
        let bound = outstanding / p50.as_secs_f64();
        report.add(
            format!("outstanding / fdatasync, {shape}"),
            [None, Some(bound)],
        );
    }
    Ok(())
}

async fn measure_rows(arguments: &Arguments, plan: Plan, report: &mut Report) -> Result<()> {
    let [zookeeper, landfast] = arguments.start().await?;
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
    report.rows = measure(arguments, plan, zookeeper.as_ref(), landfast.as_ref()).await?;
    report.zookeeper = zookeeper.as_ref().map(Process::footprint).transpose()?;
    report.landfast = landfast.as_ref().map(Process::footprint).transpose()?;
    for server in [zookeeper, landfast].into_iter().flatten() {
        server.resume()?;
        server.stop().await?;
    }
    Ok(())
}

/// The same sets against a server that only answers.
async fn measure_echo(arguments: &Arguments, plan: Plan, report: &mut Report) -> Result<()> {
    let address = server::free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--serve-echo", &address.to_string()]);
    let log = arguments.directory.join("echo.log");
    let server = Process::peer("echo", command, address, &log).await?;
    for &shape in &arguments.shapes {
        let load = load::run(&server, Workload::Set, shape, plan).await?.load();
        let name = format!("set on an echo server, {shape}, per second");
        report.add(name, [None, Some(load.operations_per_second)]);
    }
    server.stop().await
}

async fn measure_watchers(arguments: &Arguments, report: &mut Report) -> Result<()> {
    allow_descriptors(u64::from(arguments.sessions))?;
    let mut found = [const { Vec::new() }; 2];
    for (server, times) in arguments.start().await?.into_iter().zip(&mut found) {
        let Some(server) = server else { continue };
        load::prepare(server.address, one_znode()).await?;
        let mut sessions = Sessions::open(server.address, arguments.sessions as usize).await?;
        for _ in 0..NOTIFICATIONS {
            let elapsed = sessions.notify_all(&load::node_path(0)).await?;
            times.push(elapsed.as_secs_f64() * 1e3);
        }
        times.sort_unstable_by(f64::total_cmp);
        drop(sessions);
        server.stop().await?;
    }
    let name = format!("{} watchers notified, median ms", arguments.sessions);
    report.add(
        name,
        found.map(|times| times.get(NOTIFICATIONS / 2).copied()),
    );
    Ok(())
}

async fn measure_memory(arguments: &Arguments, report: &mut Report) -> Result<()> {
    allow_descriptors(u64::from(arguments.sessions))?;
    let (mut of_znodes, mut of_both) = ([None; 2], [None; 2]);
    let megabytes =
        |server: &Process| Ok::<_, anyhow::Error>(server.resident_bytes()? as f64 / 1e6);
    for (index, server) in arguments.start().await?.into_iter().enumerate() {
        let Some(server) = server else { continue };
        let znodes = Plan {
            nodes: arguments.znodes as usize,
            ..one_znode()
        };
        load::prepare(server.address, znodes).await?;
        tokio::time::sleep(REST).await;
        of_znodes[index] = Some(megabytes(&server)?);
        let mut sessions = Sessions::open(server.address, arguments.sessions as usize).await?;
        sessions.ping().await?;
        tokio::time::sleep(REST).await;
        of_both[index] = Some(megabytes(&server)?);
        drop(sessions);
        server.stop().await?;
    }
    let (znodes, sessions) = (arguments.znodes, arguments.sessions);
    report.add(format!("RSS with {znodes} znodes, MB"), of_znodes);
    report.add(
        format!("RSS with {sessions} open sessions beside them, MB"),
        of_both,
    );
    Ok(())
}

fn one_znode() -> Plan {
    Plan {
        nodes: 1,
        node_bytes: MEMORY_NODE_BYTES,
        warm_up: Duration::ZERO,
        measure: Duration::ZERO,
    }
}

/// Lets this process and its servers have a descriptor for each of `sessions`.
fn allow_descriptors(sessions: u64) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = soft.max(sessions + DESCRIPTORS_MORE);
    ensure!(
        wanted <= hard,
        "{sessions} sessions need {wanted} descriptors, and the limit is {hard}"
    );
    Ok(setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?)
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
