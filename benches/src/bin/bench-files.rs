//! Files: ext4, GlusterFS with two mounts, and Landfast with two mounts, under the same loads.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use benches::{
    figures::Machine,
    files::{
        directory, operations,
        personalities::{self, Personality},
        report::{Figures, Part, Report},
        sequential,
        targets::{self, Kind, Running, Setting, Target},
        tpcc::{self, Mode},
        web,
    },
};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the same loads on each file system in turn. All have their data on the disk of `--directory`.
#[derive(Debug, Clone, Parser)]
#[command(version)]
struct Arguments {
    /// The program under test.
    #[arg(long, default_value = "target/release/landfast")]
    program: PathBuf,
    /// Two directories that show one volume, for example two mounts; the bench then starts no server.
    #[arg(long, num_args = 1..=2, value_delimiter = ',', value_name = "DIR")]
    landfast: Vec<PathBuf>,
    /// Directory of the scratch directories and of files.json.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
    /// The file systems.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "ext4,glusterfs,glusterfs-strict,landfast")]
    targets: Vec<Kind>,
    /// The parts.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_value = "operations,personalities,tpcc,web,sequential,directory")]
    parts: Vec<Part>,
    /// The loads of Filebench.
    #[arg(long, num_args = 1.., value_delimiter = ',', default_values_t = Personality::ALL)]
    personalities: Vec<Personality>,
    /// Clients of a load of Filebench.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Seconds of each load of Filebench and TPC-C.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The script of TPC-C.
    #[arg(long, default_value = "benches/files/tpcc.py")]
    tpcc: PathBuf,
    /// The script of the web application.
    #[arg(long, default_value = "benches/files/web.py")]
    web: PathBuf,
    /// The interpreter of both.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// MiB of the long file.
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
    /// Files of the long directory.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    files: u32,
    /// About three minutes: a tenth of the files and bytes, two seconds for each load.
    #[arg(long)]
    quick: bool,
    /// Only makes the cached calls on a file of this directory, as the measurement in a transaction
    /// does, and prints their times.
    #[arg(long, value_name = "DIR", hide = true)]
    cached_calls_in: Option<PathBuf>,
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
            self.seconds = self.seconds.min(2.0);
            self.mebibytes = self.mebibytes.min(100);
            self.files = self.files.min(2000);
        }
        self
    }

    fn calls(&self) -> operations::Calls {
        if self.quick {
            operations::Calls::QUICK
        } else {
            operations::Calls::ALL
        }
    }
}

fn main() -> Result<ExitCode> {
    // The program is also a function of its own loads.
    if let Ok(host) = std::env::var("AWS_LAMBDA_RUNTIME_API") {
        personalities::serve(host)?;
    }
    let arguments = Arguments::parse().settled();
    if let Some(directory) = &arguments.cached_calls_in {
        operations::print_cached(directory, arguments.calls())?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(arguments))
}

/// Measures on a thread. A signal stops the processes and mounts, which ends the calls of that thread.
async fn run(arguments: Arguments) -> Result<ExitCode> {
    fs::create_dir_all(&arguments.directory)?;
    let scratch = arguments.directory.canonicalize()?.join("files");
    let running = Arc::new(Running::default());
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let measuring = {
        let (scratch, running) = (scratch.clone(), Arc::clone(&running));
        tokio::task::spawn_blocking(move || measure(&arguments, scratch, &running))
    };
    let ended = tokio::select! {
        ended = measuring => Some(ended?),
        _ = interrupted.recv() => None,
        _ = terminated.recv() => None,
    };
    running.stop();
    if let Some(ended) = ended {
        // Without a report the logs of the servers stay.
        ended?;
        targets::clear(&scratch)?;
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("stopped; {} stays", scratch.display());
    // The measuring thread may wait for a file system; it must not hold up the exit.
    std::process::exit(130)
}

fn measure(arguments: &Arguments, scratch: PathBuf, running: &Running) -> Result<()> {
    let setting = Setting {
        landfast: arguments.program.clone(),
        scratch,
        given: match arguments.landfast.as_slice() {
            [] => None,
            [one, rest @ ..] => Some([one.clone(), rest.first().unwrap_or(one).clone()]),
        },
    };
    fs::create_dir_all(&setting.scratch)?;
    let command = std::iter::once("bench-files".to_owned()).chain(std::env::args().skip(1));
    let mut report = Report {
        command: command.collect::<Vec<_>>().join(" "),
        machine: Machine::here()?,
        skipped: Vec::new(),
        figures: Vec::new(),
    };
    let started = start(arguments, &setting, running, &mut report)?;
    for part in &arguments.parts {
        for target in &started {
            let begun = Instant::now();
            let measured = measure_part(arguments, *part, target, &setting, running);
            let name = target.kind.name();
            match measured {
                Ok(figures) => report
                    .figures
                    .extend(figures.into_iter().flat_map(Figures::into_inner)),
                // The other figures of the run are still worth something.
                Err(error) => {
                    eprintln!("{part:?} on {name} failed: {error:#}");
                    report
                        .skipped
                        .push(format!("{part:?} on {name} failed: {error:#}"));
                }
            }
            eprintln!(
                "{name}: {part:?} took {:.0} s",
                begun.elapsed().as_secs_f64()
            );
        }
    }
    show(arguments, &report)
}

fn start(
    arguments: &Arguments,
    setting: &Setting,
    running: &Running,
    report: &mut Report,
) -> Result<Vec<Target>> {
    let mut started = Vec::new();
    for kind in &arguments.targets {
        let missing = targets::missing_programs(*kind);
        if !missing.is_empty() {
            let name = kind.name();
            let line = format!(
                "{name} is left out: {} is not installed; scripts/install-glusterfs installs it",
                missing.join(", ")
            );
            eprintln!("{line}");
            report.skipped.push(line);
            continue;
        }
        started.push(Target::start(*kind, setting, running)?);
    }
    if started.is_empty() {
        bail!("no file system is there to measure");
    }
    Ok(started)
}

fn measure_part(
    arguments: &Arguments,
    part: Part,
    target: &Target,
    setting: &Setting,
    running: &Running,
) -> Result<Vec<Figures>> {
    let time = Duration::try_from_secs_f64(arguments.seconds)?;
    match part {
        Part::Operations => Ok(vec![operations::measure(target, arguments.calls())?]),
        Part::Personalities => {
            let scale = personalities::Scale {
                clients: arguments.clients,
                time,
                files: if arguments.quick { 200 } else { 1000 },
            };
            let mut modes = vec![personalities::Mode::Mounts];
            if target.server.is_some() {
                modes.push(personalities::Mode::Functions(&setting.scratch));
            }
            let mut figures = Vec::new();
            for personality in &arguments.personalities {
                for mode in &modes {
                    figures.push(personalities::measure(target, *personality, scale, *mode)?);
                }
            }
            Ok(figures)
        }
        Part::Tpcc => {
            let load = tpcc::Load {
                script: arguments.tpcc.clone(),
                python: arguments.python.clone(),
                clients: [1, 2, 4][..if arguments.quick { 2 } else { 3 }].to_vec(),
                seconds: arguments.seconds,
                scale: 0.02,
            };
            let mut modes = vec![Mode::Mounts];
            modes.extend(target.server.is_some().then_some(Mode::Functions));
            let modes = modes.into_iter();
            modes
                .map(|mode| tpcc::measure(target, &load, mode, &setting.scratch, running))
                .collect()
        }
        Part::Web => {
            let load = web::Load {
                script: arguments.web.clone(),
                python: arguments.python.clone(),
                program: arguments.program.clone(),
                seconds: arguments.seconds,
            };
            web::measure(target, &load, &setting.scratch, running).map(|figures| vec![figures])
        }
        Part::Sequential => Ok(vec![sequential::measure(
            target,
            arguments.mebibytes << 20,
        )?]),
        Part::Directory => Ok(vec![directory::measure(target, arguments.files as usize)?]),
    }
}

fn show(arguments: &Arguments, report: &Report) -> Result<()> {
    let (markdown, json) = (report.markdown(), serde_json::to_string_pretty(report)?);
    println!("{}", if arguments.json { &json } else { &markdown });
    fs::write(arguments.directory.join("files.json"), &json)?;
    if let Some(path) = &arguments.markdown {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, &markdown).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
