//! Workflows and invocations: near, over a distant store, and beside Restate.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use benches::{
    figures::Machine,
    http::Connection,
    server::Process,
    workflows::{
        application::{Deployer, Language},
        chart,
        distant::{Distance, distant},
        exchange::{self, Awake},
        report::{self, Cold, Far, Grading, Idle, Near, Report, Warm},
        restate::Restate,
        runs::{self, Pressure, Request},
        runtime,
        single_function::{self, Function, Protocol},
    },
};
use clap::{Parser, ValueEnum};
use redis_provider::Redis;

/// The write of each workflow step.
const WRITES: &str = "{\"bytes\":1024}";
const COLD_STARTS: usize = 20;
/// How long a pre-warmed interpreter may take to be ready.
const SPARE_MAX: Duration = Duration::from_secs(10);

/// The parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Figures 5.1 and 5.2 of the paper, in process.
    SingleFunction,
    /// Workflows over the distant store.
    Far,
    /// The paper's table 5.1.
    Grading,
    /// Workflows near, and Restate.
    Near,
    /// Empty functions, warm and cold.
    Invocations,
    /// Functions without callers.
    Idle,
}

/// Measures workflows and invocations of functions.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    landfast: PathBuf,
    /// The measured function.
    #[arg(long, default_value = "target/release/bench-function")]
    function: PathBuf,
    /// Directory where Restate and its Python kit are installed; Restate is skipped if they are
    /// missing.
    #[arg(long, default_value = "target/peers/restate")]
    restate: PathBuf,
    /// A Python interpreter that has awslambdaric.
    #[arg(long, default_value = "target/venv/bin/python")]
    python: PathBuf,
    /// Directory of the data directories, the logs and workflows.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// The parts to measure; all by default.
    #[arg(long, value_enum, num_args = 1.., value_delimiter = ',')]
    parts: Vec<Part>,
    /// Latency of any response of the distant store, in milliseconds.
    #[arg(long, default_value_t = 23)]
    round_trip_ms: u64,
    /// Total latency of the response to a write, in milliseconds.
    #[arg(long, default_value_t = 100)]
    write_ms: u64,
    /// How long each cell is measured, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Trials of each function of the paper's figures.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    trials: u64,
    /// Number of functions without callers.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    idle_functions: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Write the paper's figures here.
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
    let command = std::iter::once("bench-workflows".to_owned()).chain(std::env::args().skip(1));
    let mut report = Report {
        command: command.collect::<Vec<_>>().join(" "),
        machine: Machine::here()?,
        distance_ms: (arguments.round_trip_ms, arguments.write_ms),
        single_function: Vec::new(),
        far: Vec::new(),
        grading: Vec::new(),
        near: Vec::new(),
        warm: Vec::new(),
        cold: Vec::new(),
        import_ms: Vec::new(),
        machines_import_ms: Vec::new(),
        idle: None,
    };
    let bench = Bench { arguments };
    if bench.measures(Part::SingleFunction) {
        report.single_function = bench.single_function().await?;
    }
    if bench.measures(Part::Far) {
        report.far = bench.far().await?;
    }
    if bench.measures(Part::Grading) {
        report.grading = bench.grading().await?;
    }
    if bench.measures(Part::Near) {
        report.near = bench.near().await?;
    }
    if bench.measures(Part::Invocations) {
        (report.cold, report.warm) = bench.invocations().await?;
        report.import_ms = import_ms(&arguments.python, None)?;
        let (machines, packages) = machines_python(&arguments.python)?;
        report.machines_import_ms = import_ms(&machines, Some(&packages))?;
    }
    if bench.measures(Part::Idle) {
        report.idle = Some(bench.idle().await?);
    }
    show(arguments, &report)
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    fs::write(arguments.directory.join("workflows.json"), &json)?;
    let markdown = report::markdown(report);
    if let Some(path) = &arguments.markdown {
        fs::write(path, &markdown)?;
    }
    if let Some(path) = &arguments.svg {
        fs::write(path, chart::svg(report))?;
    }
    println!("{}", if arguments.json { json } else { markdown });
    Ok(())
}

struct Bench<'a> {
    arguments: &'a Arguments,
}

impl Bench<'_> {
    fn measures(&self, part: Part) -> bool {
        self.arguments.parts.is_empty() || self.arguments.parts.contains(&part)
    }

    fn distance(&self) -> Distance {
        Distance {
            round_trip: Duration::from_millis(self.arguments.round_trip_ms),
            write: Duration::from_millis(self.arguments.write_ms),
        }
    }

    fn pressure(&self, clients: usize) -> Pressure {
        Pressure {
            clients,
            warm_up: Duration::from_secs(1),
            measure: Duration::from_secs(self.arguments.seconds),
        }
    }

    fn deployer(&self, address: SocketAddr) -> Deployer<'_> {
        Deployer {
            landfast: &self.arguments.landfast,
            function: &self.arguments.function,
            directory: self.arguments.directory.clone(),
            address,
        }
    }

    async fn landfast(&self) -> Result<(Process, SocketAddr)> {
        let data = self.arguments.directory.join("landfast");
        let provider = ["--data-dir".to_owned(), data.display().to_string()];
        Process::landfast_on(
            &self.arguments.landfast,
            &self.arguments.directory,
            &provider,
        )
        .await
    }

    async fn single_function(&self) -> Result<Vec<single_function::Took>> {
        let along = |most: u64, step: usize| (0..=most).step_by(step);
        let one = |repetitions, pause_ms| Function {
            repetitions,
            pause_ms,
        };
        let by_pause = [1, 5, 10, 50]
            .into_iter()
            .flat_map(|writes| along(200, 25).map(move |pause| one(writes, pause)));
        let by_writes = [0, 50, 100, 150].into_iter().flat_map(|pause| {
            [1, 5, 10, 20, 50, 100, 150]
                .into_iter()
                .map(move |writes| one(writes, pause))
        });
        let mut functions: Vec<Function> = by_pause.chain(by_writes).chain([one(4, 0)]).collect();
        functions.sort_unstable();
        functions.dedup();
        let redis = Process::redis(&self.arguments.directory, "always").await?;
        let (address, _) = distant(redis.address, self.distance()).await?;
        let config = redis_provider::Config::from_url(&format!("redis://{address}"))?;
        let provider = Redis::open(&config).await?;
        let trials = self.arguments.trials as usize;
        let took = single_function::measure(
            &self.arguments.directory,
            provider.key_value(),
            &functions,
            trials,
        )
        .await?;
        drop(provider);
        redis.stop().await?;
        Ok(took)
    }

    async fn far(&self) -> Result<Vec<Far>> {
        let mut cells = Vec::new();
        for protocol in Protocol::ALL {
            // All data in one far store has one protocol and one owner.
            let redis = Process::redis(&self.arguments.directory, "always").await?;
            let (landfast, address) = self.landfast().await?;
            let (far, _) = distant(redis.address, self.distance()).await?;
            self.deployer(address)
                .four_steps(protocol.name(), Some((far, protocol)), 32)?;
            let mut cell = async |language: Language, clients, pause_ms| {
                let workflow = format!("{}-{}", protocol.name(), language.name());
                let input = format!("{{\"bytes\":1024,\"pause_ms\":{pause_ms}}}");
                let request = Request::run(&workflow, &input);
                let answered =
                    runs::measure(address, &request, self.pressure(clients), &landfast).await?;
                cells.push(Far {
                    protocol,
                    language,
                    pause_ms,
                    answered,
                });
                Ok::<_, anyhow::Error>(())
            };
            for pause_ms in [0, 25, 50, 100, 200] {
                cell(Language::Rust, 1, pause_ms).await?;
            }
            cell(Language::Rust, 32, 0).await?;
            cell(Language::Python, 1, 0).await?;
            cell(Language::Python, 32, 0).await?;
            landfast.stop().await?;
            redis.stop().await?;
        }
        Ok(cells)
    }

    async fn grading(&self) -> Result<Vec<Grading>> {
        let mut cells = Vec::new();
        for protocol in Protocol::ALL {
            let redis = Process::redis(&self.arguments.directory, "always").await?;
            let (landfast, address) = self.landfast().await?;
            let (far, _) = distant(redis.address, self.distance()).await?;
            let name = format!("grading-{}", protocol.name());
            self.deployer(address).grading(&name, (far, protocol))?;
            cells.push(grading_run(address, &name, protocol, self.arguments.trials).await?);
            landfast.stop().await?;
            redis.stop().await?;
        }
        Ok(cells)
    }

    async fn near(&self) -> Result<Vec<Near>> {
        let (landfast, address) = self.landfast().await?;
        self.deployer(address).four_steps("near", None, 32)?;
        let restate = if self.arguments.restate.exists() {
            Some(Restate::start(&self.arguments.restate, &self.arguments.directory).await?)
        } else {
            None
        };
        let mut cells = Vec::new();
        for clients in [1, 8, 32] {
            for language in Language::ALL {
                let request = Request::run(&format!("near-{}", language.name()), WRITES);
                let answered =
                    runs::measure(address, &request, self.pressure(clients), &landfast).await?;
                cells.push(Near {
                    system: format!("Landfast, {} functions", language.name()),
                    answered,
                });
            }
            if let Some(restate) = &restate {
                landfast.pause()?;
                let request = Restate::request();
                let answered = runs::measure(
                    restate.ingress,
                    &request,
                    self.pressure(clients),
                    &restate.process,
                )
                .await?;
                cells.push(Near {
                    system: "Restate, Python service".to_owned(),
                    answered,
                });
                landfast.resume()?;
            }
        }
        if let Some(restate) = restate {
            restate.stop().await?;
        }
        landfast.stop().await?;
        Ok(cells)
    }

    async fn invocations(&self) -> Result<(Vec<Cold>, Vec<Warm>)> {
        let (landfast, address) = self.landfast().await?;
        let mut cold = Vec::new();
        for language in Language::ALL {
            cold.push(self.cold(address, language).await?);
        }
        let mut warm = Vec::new();
        for language in Language::ALL {
            warm.push(self.warm(&landfast, address, language, None).await?);
            warm.push(
                self.warm(&landfast, address, language, Some(Awake::keep()?))
                    .await?,
            );
        }
        landfast.stop().await?;
        Ok((cold, warm))
    }

    async fn cold(&self, address: SocketAddr, language: Language) -> Result<Cold> {
        let name = empty(language);
        self.deployer(address)
            .many_without_spares(&name, language, COLD_STARTS)?;
        let mut cold_ms = Vec::new();
        let connection = Connection::to(address);
        for number in 0..COLD_STARTS {
            let request = Request::invocation(&format!("{name}-{number}"));
            cold_ms.push(runs::once(&connection, &request).await?.1.as_secs_f64() * 1e3);
        }
        cold_ms.sort_by(f64::total_cmp);
        let spare_ms = if language == Language::Python {
            let name = format!("{name}-spared");
            self.deployer(address)
                .many(&name, language, COLD_STARTS + 1)?;
            by_spares(&connection, &name).await?
        } else {
            Vec::new()
        };
        Ok(Cold {
            language,
            cold_ms,
            spare_ms,
        })
    }

    /// The first of the functions that were started cold, with the cores as `awake` keeps them.
    async fn warm(
        &self,
        landfast: &Process,
        address: SocketAddr,
        language: Language,
        awake: Option<Awake>,
    ) -> Result<Warm> {
        let request = Request::invocation(&format!("{}-0", empty(language)));
        let over_http = runs::measure(address, &request, self.pressure(1), landfast).await?;
        landfast.pause()?;
        let Arguments {
            landfast: program,
            function,
            directory,
            ..
        } = self.arguments;
        let took = runtime::warm(program, function, directory, language, self.pressure(1)).await?;
        let pressure = self.pressure(1);
        let bare = tokio::task::spawn_blocking(move || exchange::bare(pressure)).await??;
        landfast.resume()?;
        let is_awake = awake.is_some();
        if let Some(awake) = awake {
            awake.end()?;
        }
        let runtime::Took {
            back_to_back,
            at_rest,
        } = took;
        Ok(Warm {
            language,
            awake: is_awake,
            over_http,
            back_to_back,
            at_rest,
            bare,
        })
    }

    async fn idle(&self) -> Result<Idle> {
        let (landfast, address) = self.landfast().await?;
        let resident_before_bytes = landfast.resident_bytes()?;
        let functions = self.arguments.idle_functions as usize;
        self.deployer(address)
            .many("idle", Language::Python, functions)?;
        // The deployment's remaining work is not part of the cost of an idle function.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = landfast.cpu()?;
        let seconds = self.arguments.seconds.max(10);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let cpu = landfast.cpu()?.saturating_sub(before);
        let resident_bytes = landfast.resident_bytes()?;
        landfast.stop().await?;
        let cpu_ms_per_second = cpu.as_secs_f64() * 1e3 / seconds as f64;
        Ok(Idle {
            functions,
            resident_bytes,
            resident_before_bytes,
            cpu_ms_per_second,
        })
    }
}

/// The name of the empty functions, before their number.
fn empty(language: Language) -> String {
    format!("empty-{}", language.name())
}

#[derive(serde::Deserialize)]
struct Steps {
    steps: Vec<Step>,
}

#[derive(serde::Deserialize)]
struct Step {
    function: String,
    ended_ms: u64,
}

#[derive(serde::Deserialize)]
struct Run {
    began_ms: u64,
}

/// The median run of `trials`, after a first run that does not count.
async fn grading_run(
    address: SocketAddr,
    name: &str,
    protocol: Protocol,
    trials: u64,
) -> Result<Grading> {
    let connection = Connection::to(address);
    let mut all = Vec::new();
    for trial in 0..=trials {
        let id = format!("trial-{trial}");
        let request = Request {
            path: format!("/v1/workflows/{name}/runs?wait=60&id={id}"),
            body: WRITES.to_owned(),
            good: "\"succeeded\"",
        };
        let (_, took) = runs::once(&connection, &request).await?;
        let path = format!("/v1/workflows/{name}/runs/{id}");
        let run: Run = serde_json::from_slice(&connection.ask("GET", &path, &[], b"").await?.1)?;
        let steps = connection
            .ask("GET", &format!("{path}/steps"), &[], b"")
            .await?
            .1;
        let steps: Steps = serde_json::from_slice(&steps)?;
        let mut ended_ms: Vec<(String, f64)> = steps
            .steps
            .into_iter()
            .map(|step| {
                (
                    step.function
                        .trim_start_matches(name)
                        .trim_start_matches('-')
                        .to_owned(),
                    (step.ended_ms - run.began_ms) as f64,
                )
            })
            .collect();
        ended_ms.push(("the answer".to_owned(), took.as_secs_f64() * 1e3));
        if trial > 0 {
            all.push(ended_ms);
        }
    }
    let end = |ended: &Vec<(String, f64)>| ended.last().map_or(f64::NAN, |(_, ended)| *ended);
    all.sort_by(|one, other| end(one).total_cmp(&end(other)));
    let middle = all.len() / 2;
    Ok(Grading {
        protocol,
        ended_ms: all.swap_remove(middle),
    })
}

/// The first invocations of as many functions, each made once a spare interpreter is ready; one more comes before them, after which there is one.
async fn by_spares(connection: &Connection, name: &str) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    runs::once(connection, &Request::invocation(&format!("{name}-0"))).await?;
    for number in 1..=COLD_STARTS {
        let until = Instant::now() + SPARE_MAX;
        while !has_spare(connection).await? {
            ensure!(Instant::now() < until, "no spare interpreter became ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let request = Request::invocation(&format!("{name}-{number}"));
        times.push(runs::once(connection, &request).await?.1.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

async fn has_spare(connection: &Connection) -> Result<bool> {
    let (_, body) = connection.ask("GET", "/v1/status", &[], b"").await?;
    let status: serde_json::Value = serde_json::from_slice(&body).context("the status")?;
    Ok(status["functions"]["spares"].as_u64().unwrap_or_default() > 0)
}

/// How long a Python process takes that imports AWS's client of the Runtime API, found in
/// `packages`, and exits.
fn import_ms(python: &Path, packages: Option<&str>) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..COLD_STARTS {
        let mut command = Command::new(python);
        command
            .args(["-c", "import awslambdaric"])
            .stdin(Stdio::null());
        command.envs(packages.map(|packages| ("PYTHONPATH", packages)));
        let began = Instant::now();
        let status = command
            .status()
            .with_context(|| python.display().to_string())?;
        ensure!(
            status.success(),
            "{} cannot import awslambdaric",
            python.display()
        );
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The interpreter that runs functions here, and the directory where the one with awslambdaric has
/// that package.
fn machines_python(with_awslambdaric: &Path) -> Result<(PathBuf, String)> {
    let said = |python: &Path, code: &str| {
        let output = Command::new(python)
            .args(["-c", code])
            .stdin(Stdio::null())
            .output();
        let output = output.with_context(|| python.display().to_string())?;
        ensure!(
            output.status.success(),
            "{}: {}",
            python.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    // The `python3` on the path may be a script that looks for the interpreter.
    let machines = said("python3".as_ref(), "import sys; print(sys.executable)")?;
    let folder =
        "import awslambdaric, os; print(os.path.dirname(os.path.dirname(awslambdaric.__file__)))";
    Ok((machines.into(), said(with_awslambdaric, folder)?))
}
