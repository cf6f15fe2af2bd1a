//! Objects over S3 beside Redis and other S3 servers: throughput, latency, CPU, memory.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use benches::{
    figures::Machine,
    memory::{
        limits, load,
        load::{Shape, Target},
        objects::{Content, Objects},
        report::{self, Cell, Cpu, Memory, Report},
        servers::{Kind, Programs, Server},
    },
    server,
};
use clap::Parser;

/// The objects are written, and compared, over this many connections.
const FILL_CONNECTIONS: usize = 4;
/// The objects of one size in a quick run, together.
const QUICK_BYTES: usize = 200_000_000;
/// The most time for each limit of the machine.
const LIMIT_TIME_MAX: Duration = Duration::from_secs(1);

/// Reads and writes the same objects on Landfast, on Redis and on other S3 servers, in turns.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    landfast: PathBuf,
    /// The directory of `minio` and `versitygw`; a peer that is not there is left out.
    #[arg(long, default_value = "target/peers/s3/bin")]
    peers: PathBuf,
    /// Directory of the data directories, the logs and memory.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// The servers.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "redis,minio,versitygw,landfast")]
    servers: Vec<Kind>,
    /// Sizes of objects, and how many there are of each.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "4KiBx5000,1MBx500,10MBx60,100MBx8")]
    objects: Vec<Objects>,
    /// GETs of 100 requests; the others are PUTs.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "100,95,0", value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: Vec<u8>,
    /// Connections with one request outstanding each.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "1,4,16,32", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    connections: Vec<u16>,
    /// Seconds before each measurement.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    measure: f64,
    /// One to two minutes: fewer objects, none of 100 MB, and up to 16 connections for a third of a
    /// second each.
    #[arg(long)]
    quick: bool,
    /// The seed of the content and of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

impl Arguments {
    fn settled(mut self) -> Self {
        if self.quick {
            self.objects.retain(|objects| objects.bytes < 100_000_000);
            for objects in &mut self.objects {
                objects.count = objects.count.min(QUICK_BYTES / objects.bytes).max(1);
            }
            self.connections.retain(|connections| *connections <= 16);
            self.warm_up = self.warm_up.min(0.1);
            self.measure = self.measure.min(0.33);
        }
        self
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse().settled();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.directory)?;
    let machine = Machine::here()?;
    let programs = Programs {
        landfast: arguments.landfast.clone(),
        peers: arguments.peers.clone(),
    };
    let (kinds, skipped) = programs.installed(&arguments.servers);
    for line in &skipped {
        eprintln!("{line}");
    }
    let time = Duration::try_from_secs_f64(arguments.measure)?;
    let command = std::iter::once("bench-memory".to_owned()).chain(std::env::args().skip(1));
    let mut report = Report {
        command: command.collect::<Vec<_>>().join(" "),
        machine,
        measure_seconds: arguments.measure,
        skipped,
        limits: limits::measure(&arguments.directory, time.min(LIMIT_TIME_MAX)).await?,
        cells: Vec::new(),
        memory: Vec::new(),
    };
    for objects in &arguments.objects {
        let content = Arc::new(Content::new(*objects, arguments.seed));
        let servers = start(arguments, &kinds, &programs, &content).await?;
        cells(arguments, &servers, &content, &mut report.cells).await?;
        for server in servers {
            report.memory.push(memory(&server, *objects)?);
            let name = server.kind.name();
            server
                .stop()
                .await
                .with_context(|| format!("stop {name}"))?;
        }
    }
    show(arguments, &report)
}

/// Starts the servers, and stores the objects on them.
async fn start(
    arguments: &Arguments,
    kinds: &[Kind],
    programs: &Programs,
    content: &Arc<Content>,
) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for kind in kinds {
        let server = Server::start(*kind, programs, &arguments.directory).await?;
        let target = target(&server, content);
        let filled = load::fill(&target, FILL_CONNECTIONS).await;
        let took = filled.with_context(|| format!("store objects on {}", kind.name()))?;
        let checked = load::verify(&target, FILL_CONNECTIONS).await;
        checked.with_context(|| format!("read the objects back from {}", kind.name()))?;
        let bytes = content.objects().bytes * content.objects().count;
        eprintln!(
            "{}: {} x {} stored at {:.0} MB/s, and verified",
            kind.name(),
            content.objects().count,
            content.objects(),
            bytes as f64 / 1e6 / took.as_secs_f64()
        );
        server.quiet().await?;
        server.pause()?;
        servers.push(server);
    }
    Ok(servers)
}

/// Runs all loads. Each begins with another server than the load before, so that none is always
/// first.
async fn cells(
    arguments: &Arguments,
    servers: &[Server],
    content: &Arc<Content>,
    cells: &mut Vec<Cell>,
) -> Result<()> {
    for reads_percent in &arguments.reads {
        for connections in &arguments.connections {
            let shape = Shape {
                reads_percent: *reads_percent,
                connections: usize::from(*connections),
                warm_up: Duration::try_from_secs_f64(arguments.warm_up)?,
                measure: Duration::try_from_secs_f64(arguments.measure)?,
            };
            let (before, first) = servers.split_at(cells.len() / servers.len() % servers.len());
            let mut row = Vec::new();
            for server in first.iter().chain(before) {
                let measured = cell(arguments, server, content, shape).await;
                row.push(measured.with_context(|| server.kind.name())?);
            }
            row.sort_by_key(|cell| servers.iter().position(|server| server.kind == cell.server));
            cells.extend(row);
        }
    }
    Ok(())
}

async fn cell(
    arguments: &Arguments,
    server: &Server,
    content: &Arc<Content>,
    shape: Shape,
) -> Result<Cell> {
    server.resume()?;
    let target = target(server, content);
    let cpu = || Ok((server.cpu()?, server::own_cpu()?));
    let (measured, before, after) = load::run(&target, shape, arguments.seed, cpu).await?;
    server.quiet().await?;
    server.pause()?;
    let cell = Cell::new(
        server.kind,
        content.objects().bytes,
        shape.reads_percent,
        shape.connections,
        &measured,
        Cpu {
            server: after.0.saturating_sub(before.0).as_secs_f64(),
            generator: after.1.saturating_sub(before.1).as_secs_f64(),
        },
    );
    eprintln!(
        "{:<9} {}, {}:{}, {:>2} connections: {:.0} MB/s, {:.0} per second",
        server.kind.name(),
        content.objects(),
        shape.reads_percent,
        100 - shape.reads_percent,
        shape.connections,
        cell.bytes_per_second / 1e6,
        cell.requests_per_second
    );
    Ok(cell)
}

fn target(server: &Server, content: &Arc<Content>) -> Target {
    Target {
        address: server.address,
        protocol: server.kind.protocol(),
        content: Arc::clone(content),
    }
}

fn memory(server: &Server, objects: Objects) -> Result<Memory> {
    let (anonymous_bytes, children_anonymous_bytes) = server.anonymous_bytes()?;
    Ok(Memory {
        object_bytes: objects.bytes,
        stored_bytes: objects.bytes * objects.count,
        server: server.kind,
        anonymous_bytes,
        children_anonymous_bytes,
    })
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let (markdown, json) = (
        report::markdown(report),
        serde_json::to_string_pretty(report)?,
    );
    println!("{}", if arguments.json { &json } else { &markdown });
    fs::write(arguments.directory.join("memory.json"), &json)?;
    if let Some(path) = &arguments.markdown {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, &markdown).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
