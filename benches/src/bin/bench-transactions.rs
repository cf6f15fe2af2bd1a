//! Transactions beside plain Redis, and on the embedded store: anomalies, latency, throughput.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use benches::{
    figures::Machine,
    server::{self, Process},
    transactions::{
        chart,
        collection::{self, Collection},
        curve, disk,
        engine::{embedded, start},
        http::Http,
        lengths::{self, Length},
        packs::{self, Packing},
        plain::Plain,
        report::{self, Cell, Report},
        run::{self, Figures, Watching},
        target::Target,
    },
};
use clap::Parser;
use ports::metering::{Meter, MeteredKeyValue};
use redis_provider::Redis;
use simulation::transactions::workload::Mix;
use transactions::{Config, Engine};

/// Runs the same transactions on plain Redis and on Landfast over the same Redis, and on the embedded store.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    landfast: PathBuf,
    /// Data directories, logs and transactions.json go here.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// Heats of the keys: exponents of Zipf's law; `--zipf` without any leaves Redis out.
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1.0,1.5,2.0")]
    zipf: Vec<f64>,
    /// Clients at once beside Redis.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Transactions of each client beside Redis.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    transactions: u32,
    /// How the Redis server syncs its append-only file: `always`, or `none` for no file and acknowledgements from memory.
    #[arg(long, default_value = "always", value_parser = ["always", "none"])]
    fsync: String,
    /// Clients at once on the embedded store; 0 leaves it out.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    embedded_clients: u32,
    /// Transactions of each client on the embedded store.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    embedded_transactions: u32,
    /// How long each run lasts that compares collection on and off; 0 leaves them out.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    collection_seconds: u32,
    /// The retry window in those runs: rows and slots are kept as long; 120 s is the service's.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    window_seconds: u32,
    /// Functions in a transaction, on the embedded store with ten clients; `--lengths` without any leaves it out.
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1,2,4,6,8,10")]
    lengths: Vec<usize>,
    /// Transactions of each client at each length.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    length_transactions: u32,
    /// Transactions per second, one run each, with values in packs among objects; none by default. Too many for the clients is
    /// as many as they bring: each waits up to 100 ms for its pack.
    #[arg(long, num_args = 0.., value_delimiter = ',')]
    packing: Vec<u32>,
    /// Clients at once in those runs.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    packing_clients: u32,
    /// How long each of them lasts.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    packing_seconds: u32,
    /// Write the curve of what is stored under steady overwrites here, as an SVG.
    #[arg(long, value_name = "PATH")]
    curve: Option<PathBuf>,
    /// The seed of what transactions do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Write a bar chart here.
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.directory)?;
    let machine = Machine::here()?;
    let mut bench = Bench { arguments, port_calls: Vec::new(), commits_per_slot: 0.0 };
    let beside_redis = if arguments.zipf.is_empty() { Vec::new() } else { bench.beside_redis().await? };
    let embedded = if arguments.embedded_clients == 0 { Vec::new() } else { bench.embedded().await? };
    let disk = if embedded.is_empty() { Vec::new() } else { disk::rates(&arguments.directory)? };
    let collection = bench.collection().await?;
    let lengths = bench.lengths().await?;
    let packing = bench.packing().await?;
    let redis = match arguments.fsync.as_str() {
        "always" => {
            "Redis and Landfast on it acknowledge what is synced to the append-only file (`appendfsync always`)"
        }
        _ => "Redis and Landfast on it acknowledge from memory",
    };
    let command = std::iter::once("bench-transactions".to_owned()).chain(std::env::args().skip(1));
    let report = Report {
        command: command.collect::<Vec<_>>().join(" "),
        machine,
        redis: redis.to_owned(),
        beside_redis,
        embedded,
        disk,
        collection,
        lengths,
        packing,
        port_calls: bench.port_calls,
        commits_per_slot: bench.commits_per_slot,
    };
    show(arguments, &report)
}

/// A process that is watched: what it is called, and the CPU time it has taken.
type Watched<'a> = (&'a str, Box<dyn Fn() -> Result<Duration> + 'a>);

struct Bench<'a> {
    arguments: &'a Arguments,
    port_calls: Vec<(String, f64)>,
    commits_per_slot: f64,
}

impl Bench<'_> {
    fn mix(&self, zipf: f64) -> Mix {
        let clients = self.arguments.clients as usize;
        Mix { zipf, clients, transactions: clients * self.arguments.transactions as usize, ..Mix::default() }
    }

    async fn beside_redis(&mut self) -> Result<Vec<Cell>> {
        let arguments = self.arguments;
        let redis = Process::redis(&arguments.directory, &arguments.fsync).await?;
        let url = format!("redis://{}", redis.address);
        let acknowledged = if arguments.fsync == "always" { "append-only-file" } else { "memory" };
        let mut cells = Vec::new();
        for (number, &zipf) in arguments.zipf.iter().enumerate() {
            let mix = self.mix(zipf);
            let watched = || -> Vec<Watched<'_>> {
                vec![("redis", Box::new(|| redis.cpu())), ("generator", Box::new(server::own_cpu))]
            };
            let epoch = Instant::now();
            let mut targets = Vec::new();
            for client in 0..=mix.clients {
                let prefix = format!("plain-{number}:");
                targets.push(Target::Plain(Plain::connect(&url, &prefix, client as u32, epoch).await?));
            }
            cells.push(self.cell("plain Redis", mix, targets, &watched(), Watching::Anomalies).await?);

            let store = format!("{url}?acknowledged={acknowledged}&namespace=engine-{number}");
            let provider = Redis::open(&redis_provider::Config::from_url(&store)?).await?;
            let meter = Arc::new(Meter::default());
            let metered = Arc::new(MeteredKeyValue::new(provider.key_value(), Arc::clone(&meter)));
            let (engine, _background) = start(metered, Config::default()).await?;
            let targets = (0..=mix.clients).map(|_| Target::engine(&engine)).collect();
            cells
                .push(self.cell("in process on Redis", mix, targets, &watched(), Watching::Anomalies).await?);
            if number == 0 {
                self.profile(&meter, &engine);
            }

            let store = format!("{url}?acknowledged={acknowledged}&namespace=http-{number}");
            let provider = ["--provider", "redis", "--store", &store].map(str::to_owned);
            let (landfast, address) =
                Process::landfast_on(&arguments.landfast, &arguments.directory, &provider).await?;
            let targets = connect(address, mix.clients).await?;
            let mut watched = watched();
            watched.push(("landfast", Box::new(|| landfast.cpu())));
            cells.push(self.cell("HTTP on Redis", mix, targets, &watched, Watching::Anomalies).await?);
            drop(watched);
            landfast.stop().await?;
        }
        redis.stop().await?;
        Ok(cells)
    }

    async fn embedded(&mut self) -> Result<Vec<Cell>> {
        let arguments = self.arguments;
        let clients = arguments.embedded_clients as usize;
        let transactions = clients * arguments.embedded_transactions as usize;
        let mix = Mix { clients, transactions, ..Mix::default() };
        let data = arguments.directory.join("landfast").display().to_string();
        let provider = ["--data-dir".to_owned(), data];
        let (landfast, address) =
            Process::landfast_on(&arguments.landfast, &arguments.directory, &provider).await?;
        let targets = connect(address, clients).await?;
        let watched: Vec<Watched<'_>> =
            vec![("landfast", Box::new(|| landfast.cpu())), ("generator", Box::new(server::own_cpu))];
        let mut cells = vec![self.cell("HTTP", mix, targets, &watched, Watching::Times).await?];
        drop(watched);
        landfast.stop().await?;
        for value_bytes in [1_024, 4_096] {
            let mix = Mix { value_bytes, ..mix };
            let store = embedded(&arguments.directory.join("transactions")).await?;
            let (engine, background) = start(store.key_value(), Config::default()).await?;
            let targets = (0..=clients).map(|_| Target::engine(&engine)).collect();
            let watched: Vec<Watched<'_>> = vec![("both", Box::new(server::own_cpu))];
            cells.push(self.cell("in process", mix, targets, &watched, Watching::Times).await?);
            drop((engine, background));
            store.close().await;
        }
        Ok(cells)
    }

    /// What collection costs and what it keeps, on the embedded store.
    async fn collection(&self) -> Result<Option<Collection>> {
        let arguments = self.arguments;
        let seconds = Duration::from_secs(arguments.collection_seconds.into());
        if seconds.is_zero() || arguments.embedded_clients == 0 {
            return Ok(None);
        }
        let mix = Mix { clients: arguments.embedded_clients as usize, ..Mix::default() };
        let window = Duration::from_secs(arguments.window_seconds.into());
        let data = arguments.directory.join("collection");
        collection::measure(&data, mix, window, seconds, arguments.seed).await.map(Some)
    }

    /// How long transactions take that span more functions.
    async fn lengths(&self) -> Result<Vec<Length>> {
        let arguments = self.arguments;
        let each = arguments.length_transactions as usize;
        let data = arguments.directory.join("lengths");
        let mut lengths = Vec::new();
        for &functions in &arguments.lengths {
            let (clients, defaults) = (lengths::CLIENTS, Mix::default());
            let mix = Mix { functions, clients, transactions: clients * each, ..defaults };
            lengths.push(lengths::measure(&data, mix, arguments.seed).await?);
        }
        Ok(lengths)
    }

    /// What packed values cost an object store.
    async fn packing(&self) -> Result<Vec<Packing>> {
        let arguments = self.arguments;
        let (clients, data) = (arguments.packing_clients as usize, arguments.directory.join("packing"));
        let seconds = Duration::from_secs(arguments.packing_seconds.into());
        let mut packing = Vec::new();
        for &rate in arguments.packing.iter().filter(|rate| **rate > 0) {
            let mix = Mix { clients, ..Mix::default() };
            packing.push(packs::measure(&data, mix, rate, seconds, arguments.seed).await?);
        }
        Ok(packing)
    }

    /// Runs `mix` on all targets but the last, which prepares the keys.
    async fn cell(
        &self,
        store: &'static str,
        mix: Mix,
        mut targets: Vec<Target>,
        watched: &[Watched<'_>],
        watching: Watching,
    ) -> Result<Cell> {
        let mut first = targets.pop().context("a cell has targets")?;
        let order = run::prepare(&mut first, &mix).await.with_context(|| format!("prepare {store}"))?;
        let cpu = |watched: &[Watched<'_>]| watched.iter().map(|(_, cpu)| cpu()).collect::<Result<Vec<_>>>();
        let before = cpu(watched)?;
        let ran = run::run(targets, mix, self.arguments.seed, watching, order).await;
        let figures: Figures = ran.with_context(|| store.to_owned())?;
        let after = cpu(watched)?;
        let each = |taken: Duration| taken.as_secs_f64() * 1e6 / figures.transactions.max(1) as f64;
        let names = watched.iter().map(|(name, _)| (*name).to_owned());
        let taken = after.iter().zip(&before).map(|(after, before)| each(after.saturating_sub(*before)));
        let (zipf, clients, value_bytes) = (mix.zipf, mix.clients, mix.value_bytes);
        if !self.arguments.json {
            eprintln!(
                "{store:<20} zipf {zipf:.1}: {:.0} per second, p50 {:.2} ms",
                figures.per_second, figures.p50_ms
            );
        }
        Ok(Cell { store, zipf, clients, value_bytes, figures, cpu_us: names.zip(taken).collect() })
    }

    fn profile(&mut self, meter: &Meter, engine: &Engine) {
        let figures = engine.figures();
        let usage = meter.usage();
        let calls = usage.operations().filter(|(_, count)| count.calls > 0);
        let each = |calls: u64| calls as f64 / figures.committed.max(1) as f64;
        self.port_calls =
            calls.map(|(operation, count)| (operation.name().to_owned(), each(count.calls))).collect();
        self.commits_per_slot = figures.committed as f64 / figures.slots.max(1) as f64;
    }
}

/// Connections for `clients` and for who prepares the keys.
async fn connect(address: std::net::SocketAddr, clients: usize) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for _ in 0..=clients {
        targets.push(Target::Http(Http::connect(address).await?));
    }
    Ok(targets)
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let (markdown, json) = (report::markdown(report), serde_json::to_string_pretty(report)?);
    println!("{}", if arguments.json { &json } else { &markdown });
    fs::write(arguments.directory.join("transactions.json"), &json)?;
    if let Some(path) = &arguments.markdown {
        fs::write(path, &markdown).with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &arguments.svg {
        fs::write(path, chart::svg(report)).with_context(|| path.display().to_string())?;
    }
    if let (Some(path), Some(collection)) = (&arguments.curve, &report.collection) {
        fs::write(path, curve::svg(collection, &report.machine))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}
