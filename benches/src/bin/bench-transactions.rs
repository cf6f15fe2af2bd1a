//! Transactions beside plain Redis, and on the embedded store: anomalies, latency, throughput.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use benches::{
    figures::Machine,
    server::{self, Process},
    transactions::{
        chart,
        collection::{self, Collection},
        conditions::{self, Conditions},
        curve,
        disk::{Disk, DiskRate},
        engine::{embedded, start},
        http::Http,
        lengths::{self, Length},
        overwrites::{self, Overwrites, Steadily},
        packs::{self, Packing},
        plain::Plain,
        report::{self, Cell, Report},
        run::{Amount, Clients, Watching},
        servers::Servers,
        target::Target,
        turns::{self, Entrant, Watched},
    },
};
use clap::Parser;
use ports::metering::{Meter, MeteredKeyValue};
use redis_provider::Redis;
use simulation::transactions::workload::Mix;
use transactions::{Config, Engine};

/// The program's own allocator, so that the in-process engine runs as it does in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the same transactions on plain Redis and on Landfast over the same Redis, and on the embedded store.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    landfast: PathBuf,
    /// Directory of the data directories, the logs and transactions.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// Skews of the key popularity: exponents of Zipf's law; `--zipf` without a value skips Redis.
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1.0,1.5,2.0")]
    zipf: Vec<f64>,
    /// Concurrent clients beside Redis.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Transactions of each client beside Redis, in all rounds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    transactions: u32,
    /// How the Redis server syncs its append-only file: `always`, or `none` for no file and
    /// acknowledgements from memory.
    #[arg(long, default_value = "always", value_parser = ["always", "none"])]
    fsync: String,
    /// Run two masters with a replica each in place of the one Redis server.
    #[arg(long)]
    cluster: bool,
    /// How often stores beside each other are measured, in turns; the results of all turns are
    /// summed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Concurrent clients on the embedded store; 0 skips it.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    embedded_clients: u32,
    /// Transactions of each client on the embedded store, in all rounds.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    embedded_transactions: u32,
    /// Seconds of each turn that compares collection on and off.
    #[arg(long, default_value_t = 1.0)]
    collection_turn: f64,
    /// Seconds of steady overwrites, with collection and without; 0 skips both comparisons of
    /// collection.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    collection_seconds: u32,
    /// The retry window during the overwrites, which is also the retention of rows and slots; the
    /// service uses 120 s.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    window_seconds: u32,
    /// Functions in a transaction, on the embedded store with ten clients; `--lengths` without a
    /// value skips this part.
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1,2,4,6,8,10")]
    lengths: Vec<usize>,
    /// Transactions of each client at each length.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    length_transactions: u32,
    /// Plain writes of each client on the embedded store with and without a condition, in all
    /// rounds; 0 skips this part.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    conditional_writes: u32,
    /// Transactions per second, one run each, with values in packs among objects; none by default.
    /// A rate above the clients' reach runs at their maximum: each client waits up to 100 ms for
    /// its pack.
    #[arg(long, num_args = 0.., value_delimiter = ',')]
    packing: Vec<u32>,
    /// Clients at once in those runs.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    packing_clients: u32,
    /// Duration of each of those runs.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    packing_seconds: u32,
    /// Write the curve of the stored bytes under steady overwrites here, as an SVG.
    #[arg(long, value_name = "PATH")]
    curve: Option<PathBuf>,
    /// The seed of the transactions' content.
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
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.directory)?;
    let machine = Machine::here()?;
    let mut bench = Bench {
        arguments,
        port_calls: Vec::new(),
        commits_per_slot: 0.0,
    };
    let beside_redis = if arguments.zipf.is_empty() {
        Vec::new()
    } else {
        bench.beside_redis().await?
    };
    let (embedded, disk) = if arguments.embedded_clients == 0 {
        (Vec::new(), Vec::new())
    } else {
        bench.embedded().await?
    };
    let collection = bench.collection().await?;
    let overwrites = match &collection {
        Some(collection) => Some(bench.overwrites(collection.offered_per_second).await?),
        None => None,
    };
    let lengths = bench.lengths().await?;
    let conditions = bench.conditions().await?;
    let packing = bench.packing().await?;
    let command = std::iter::once("bench-transactions".to_owned()).chain(std::env::args().skip(1));
    let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let report = Report {
        command: command.collect::<Vec<_>>().join(" "),
        machine,
        redis: redis(arguments),
        rounds: arguments.rounds,
        chart: shown(&arguments.svg),
        curve: shown(&arguments.curve),
        beside_redis,
        embedded,
        disk,
        collection,
        overwrites,
        lengths,
        conditions,
        packing,
        port_calls: bench.port_calls,
        commits_per_slot: bench.commits_per_slot,
    };
    show(arguments, &report)
}

/// The Redis setup, and when it acknowledges.
fn redis(arguments: &Arguments) -> String {
    let servers = if arguments.cluster {
        "Redis is a cluster of two masters with a replica each. "
    } else {
        ""
    };
    let acknowledged = match arguments.fsync.as_str() {
        "always" => "what is synced to the append-only file (`appendfsync always`)",
        _ => "from memory",
    };
    format!("{servers}Redis and Landfast on it acknowledge {acknowledged}.")
}

struct Bench<'a> {
    arguments: &'a Arguments,
    port_calls: Vec<(String, f64)>,
    commits_per_slot: f64,
}

impl Bench<'_> {
    fn mix(&self, zipf: f64) -> Mix {
        let clients = self.arguments.clients as usize;
        Mix {
            zipf,
            clients,
            transactions: clients * self.arguments.transactions as usize,
            ..Mix::default()
        }
    }

    async fn beside_redis(&mut self) -> Result<Vec<Cell>> {
        let arguments = self.arguments;
        let servers = if arguments.cluster {
            Servers::cluster(&arguments.directory, &arguments.fsync).await?
        } else {
            Servers::one(&arguments.directory, &arguments.fsync).await?
        };
        let mut cells = Vec::new();
        for (number, &zipf) in arguments.zipf.iter().enumerate() {
            cells.extend(self.at_heat(&servers, number, self.mix(zipf)).await?);
        }
        servers.stop().await?;
        Ok(cells)
    }

    /// Measures plain Redis, the engine in this process and one of our servers, in turns.
    async fn at_heat(&mut self, servers: &Servers, number: usize, mix: Mix) -> Result<Vec<Cell>> {
        let arguments = self.arguments;
        let redis = || -> Watched<'_> { ("redis", Box::new(|| servers.cpu())) };
        let generator = |name: &'static str| -> Watched<'_> { (name, Box::new(server::own_cpu)) };

        let (urls, prefix, epoch) = (
            servers.masters(),
            format!("plain-{number}:"),
            Instant::now(),
        );
        let mut plain = Vec::new();
        for client in 0..mix.clients {
            plain.push(Target::Plain(
                Plain::connect(&urls, &prefix, client as u32, epoch).await?,
            ));
        }

        let store = servers.store(&format!("engine-{number}"));
        let provider = Redis::open(&redis_provider::Config::from_url(&store)?).await?;
        let meter = Arc::new(Meter::default());
        let metered = Arc::new(MeteredKeyValue::new(
            provider.key_value(),
            Arc::clone(&meter),
        ));
        let (engine, background) = start(metered, Config::default()).await?;
        let in_process = (0..mix.clients).map(|_| Target::engine(&engine)).collect();

        let store = servers.store(&format!("http-{number}"));
        let provider = ["--provider", "redis", "--store", &store].map(str::to_owned);
        let (landfast, address) =
            Process::landfast_on(&arguments.landfast, &arguments.directory, &provider).await?;
        let http = connect(address, mix.clients);
        let landfast_cpu: Watched<'_> = ("landfast", Box::new(|| landfast.cpu()));

        let (plain_watched, both) = (
            vec![redis(), generator("generator")],
            "engine and generator",
        );
        let http_watched = vec![redis(), generator("generator"), landfast_cpu];
        let watching = Watching::Anomalies;
        let mut entrants = [
            self.entrant("plain Redis", mix, plain, plain_watched, watching)
                .await?,
            self.entrant(
                "in process on Redis",
                mix,
                in_process,
                vec![redis(), generator(both)],
                watching,
            )
            .await?,
            self.entrant("HTTP on Redis", mix, http, http_watched, watching)
                .await?,
        ];
        for round in 0..arguments.rounds {
            turns::round(&mut entrants, round, self.turn(mix)).await?;
        }
        let cells = entrants
            .iter()
            .map(Entrant::cell)
            .collect::<Result<Vec<_>>>()?;
        drop(entrants);
        if number == 0 {
            self.profile(&meter, &engine);
        }
        drop((engine, background));
        landfast.stop().await?;
        self.tell(&cells);
        Ok(cells)
    }

    /// Measures the embedded store, over HTTP and in this process, in turns beside the disk.
    async fn embedded(&self) -> Result<(Vec<Cell>, Vec<DiskRate>)> {
        let arguments = self.arguments;
        let clients = arguments.embedded_clients as usize;
        let transactions = clients * arguments.embedded_transactions as usize;
        let mix = Mix {
            clients,
            transactions,
            ..Mix::default()
        };
        let data = arguments.directory.join("landfast").display().to_string();
        let provider = ["--data-dir".to_owned(), data];
        let (landfast, address) =
            Process::landfast_on(&arguments.landfast, &arguments.directory, &provider).await?;
        let targets = connect(address, clients);
        let watched: Vec<Watched<'_>> = vec![
            ("landfast", Box::new(|| landfast.cpu())),
            ("generator", Box::new(server::own_cpu)),
        ];
        let mut entrants = vec![
            self.entrant("HTTP", mix, targets, watched, Watching::Times)
                .await?,
        ];
        let mut running = Vec::new();
        for value_bytes in [1_024, 4_096] {
            let mix = Mix { value_bytes, ..mix };
            let store = embedded(
                &arguments
                    .directory
                    .join(format!("transactions-{value_bytes}")),
            )
            .await?;
            let (engine, background) = start(store.key_value(), Config::default()).await?;
            let targets = (0..clients).map(|_| Target::engine(&engine)).collect();
            let watched: Vec<Watched<'_>> =
                vec![("engine and generator", Box::new(server::own_cpu))];
            entrants.push(
                self.entrant("in process", mix, targets, watched, Watching::Times)
                    .await?,
            );
            running.push((store, background));
        }
        let mut disk = Disk::under(&arguments.directory)?;
        for round in 0..arguments.rounds {
            turns::round(&mut entrants, round, self.turn(mix)).await?;
            disk.turn()?;
        }
        let cells = entrants
            .iter()
            .map(Entrant::cell)
            .collect::<Result<Vec<_>>>()?;
        drop(entrants);
        landfast.stop().await?;
        for (store, background) in running {
            drop(background);
            store.close().await;
        }
        self.tell(&cells);
        Ok((cells, disk.rates()?))
    }

    async fn entrant<'a>(
        &self,
        store: &'static str,
        mix: Mix,
        targets: Vec<Target>,
        watched: Vec<Watched<'a>>,
        watching: Watching,
    ) -> Result<Entrant<'a>> {
        let clients = Clients::prepare(targets, mix, watching, self.arguments.seed).await;
        Ok(Entrant::new(
            store,
            mix,
            clients.with_context(|| format!("prepare {store}"))?,
            watched,
        ))
    }

    /// The share of a mix that one turn runs.
    fn turn(&self, mix: Mix) -> Amount {
        Amount::Transactions((mix.transactions / self.arguments.rounds as usize).max(mix.clients))
    }

    fn tell(&self, cells: &[Cell]) {
        for Cell {
            store,
            zipf,
            figures,
            ..
        } in cells.iter().filter(|_| !self.arguments.json)
        {
            eprintln!(
                "{store:<20} zipf {zipf:.1}: {:.0} per second, p50 {:.2} ms",
                figures.per_second, figures.p50_ms
            );
        }
    }

    /// The cost of collection on the embedded store.
    async fn collection(&self) -> Result<Option<Collection>> {
        let arguments = self.arguments;
        if arguments.collection_seconds == 0 || arguments.embedded_clients == 0 {
            return Ok(None);
        }
        let turn =
            Duration::try_from_secs_f64(arguments.collection_turn).context("--collection-turn")?;
        ensure!(
            !turn.is_zero(),
            "--collection-turn must be longer than nothing"
        );
        let mix = Mix {
            clients: arguments.embedded_clients as usize,
            ..Mix::default()
        };
        let data = arguments.directory.join("collection");
        collection::measure(&data, mix, arguments.rounds, turn, arguments.seed)
            .await
            .map(Some)
    }

    /// The bytes that this store holds.
    async fn overwrites(&self, offered_per_second: f64) -> Result<Overwrites> {
        let arguments = self.arguments;
        let steadily = Steadily {
            mix: Mix {
                clients: arguments.embedded_clients as usize,
                ..Mix::default()
            },
            offered_per_second,
            lasts: Duration::from_secs(arguments.collection_seconds.into()),
            window: Duration::from_secs(arguments.window_seconds.into()),
            seed: arguments.seed,
        };
        overwrites::measure(&arguments.directory.join("collection"), steadily).await
    }

    /// The duration of transactions that span more functions.
    async fn lengths(&self) -> Result<Vec<Length>> {
        let arguments = self.arguments;
        let each = arguments.length_transactions as usize;
        let data = arguments.directory.join("lengths");
        let mut lengths = Vec::new();
        for &functions in &arguments.lengths {
            let (clients, defaults) = (lengths::CLIENTS, Mix::default());
            let mix = Mix {
                functions,
                clients,
                transactions: clients * each,
                ..defaults
            };
            lengths.push(lengths::measure(&data, mix, arguments.seed).await?);
        }
        Ok(lengths)
    }

    /// The cost of a condition on a plain write, over HTTP and in this process.
    async fn conditions(&self) -> Result<Vec<Conditions>> {
        let arguments = self.arguments;
        let amount = conditions::Amount {
            clients: arguments.embedded_clients as usize,
            writes: arguments.conditional_writes as usize,
            rounds: arguments.rounds,
        };
        if amount.clients == 0 || amount.writes == 0 {
            return Ok(Vec::new());
        }
        let names = ["conditions-without", "conditions-with"];
        let data = names.map(|name| arguments.directory.join(name));
        let [without, with] = [&data[0], &data[1]].map(async |data| {
            let provider = ["--data-dir".to_owned(), data.display().to_string()];
            // Each writes its log there.
            fs::create_dir_all(data.with_extension("log"))?;
            let log = data.with_extension("log");
            Process::landfast_on(&arguments.landfast, &log, &provider).await
        });
        let ((one, without), (other, with)) = (without.await?, with.await?);
        let targets = |address| {
            let target = |_| conditions::Target::http(address);
            (0..amount.clients).map(target).collect()
        };
        let stores = (targets(without), targets(with));
        let mut rows = conditions::measure("HTTP", stores, amount).await?;
        one.stop().await?;
        other.stop().await?;

        let (one, other) = (embedded(&data[0]).await?, embedded(&data[1]).await?);
        let without = start(one.key_value(), Config::default()).await?;
        let with = start(other.key_value(), Config::default()).await?;
        let targets = |engine: &Engine| {
            let target = |_| conditions::Target::engine(engine);
            (0..amount.clients).map(target).collect()
        };
        let stores = (targets(&without.0), targets(&with.0));
        rows.extend(conditions::measure("in process", stores, amount).await?);
        drop((without, with));
        one.close().await;
        other.close().await;
        Ok(rows)
    }

    /// The cost of packed values on an object store.
    async fn packing(&self) -> Result<Vec<Packing>> {
        let arguments = self.arguments;
        let (clients, data) = (
            arguments.packing_clients as usize,
            arguments.directory.join("packing"),
        );
        let seconds = Duration::from_secs(arguments.packing_seconds.into());
        let mut packing = Vec::new();
        for &rate in arguments.packing.iter().filter(|rate| **rate > 0) {
            let mix = Mix {
                clients,
                ..Mix::default()
            };
            packing.push(packs::measure(&data, mix, rate, seconds, arguments.seed).await?);
        }
        Ok(packing)
    }

    fn profile(&mut self, meter: &Meter, engine: &Engine) {
        let figures = engine.figures();
        let usage = meter.usage();
        let calls = usage.operations().filter(|(_, count)| count.calls > 0);
        let each = |calls: u64| calls as f64 / figures.committed.max(1) as f64;
        self.port_calls = calls
            .map(|(operation, count)| (operation.name().to_owned(), each(count.calls)))
            .collect();
        self.commits_per_slot = figures.committed as f64 / figures.slots.max(1) as f64;
    }
}

/// A connection for each of `clients`.
fn connect(address: std::net::SocketAddr, clients: usize) -> Vec<Target> {
    (0..clients)
        .map(|_| Target::Http(Box::new(Http::to(address))))
        .collect()
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let (markdown, json) = (
        report::markdown(report),
        serde_json::to_string_pretty(report)?,
    );
    println!("{}", if arguments.json { &json } else { &markdown });
    fs::write(arguments.directory.join("transactions.json"), &json)?;
    if let Some(path) = &arguments.markdown {
        write(path, &markdown)?;
    }
    if let Some(path) = &arguments.svg {
        write(path, &chart::svg(report))?;
    }
    if let (Some(path), Some(overwrites)) = (&arguments.curve, &report.overwrites) {
        write(path, &curve::svg(overwrites, &report.machine))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}
