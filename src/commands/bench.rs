//! `bench`: how the placement of function memory behaves under a workload, in virtual time.
//!
//! It needs no server. All figures come from the crate of the replay.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use memory_replay::{
    cost::AWS,
    picture,
    replay::{Cluster, Options, replay},
    report::Report,
    scale_out,
    statistics::Statistics,
    trace::Trace,
    workload::{AZURE, IBM, Profile},
};

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay a trace of requests for objects against function memory, or generate such a trace
    Memory(Arguments),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true))]
pub(crate) struct Arguments {
    /// Print a trace with the published statistics of a workload
    #[arg(long, value_name = "WORKLOAD", group = "source")]
    generate: Option<Workload>,
    /// Replay a trace: CSV with the columns time_ms,operation,key,size
    #[arg(long, value_name = "FILE", group = "source")]
    trace: Option<PathBuf>,
    /// Let 10, 50 and 100 clients read objects of 10 MB until functions are overloaded
    #[arg(long, group = "source")]
    scale_out: bool,
    /// The hours to generate, or the first hours of the trace [default: all of the published run]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=8784))]
    hours: Option<u64>,
    /// The seed of the trace, or of failures and compaction in the replay
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The workload whose window and failures are the defaults of the replay
    #[arg(long, default_value = "ibm")]
    workload: Workload,
    /// The functions: with a sliding window, without the cache partition, or a static number
    #[arg(long, default_value = "window")]
    functions: Functions,
    /// Failures of functions during the trace [default: the workload's, by hours]
    #[arg(long)]
    failures: Option<u32>,
    /// The time between two GC steps [default: the workload's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    gc_interval_s: Option<u64>,
    /// Print JSON, with a sample per minute
    #[arg(long)]
    json: bool,
    /// Draw the number of functions and the working set over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// 50 hours of a container registry
    Ibm,
    /// 5 hours of blobs of serverless functions
    Azure,
}

impl Workload {
    fn profile(self) -> &'static Profile {
        match self {
            Self::Ibm => &IBM,
            Self::Azure => &AZURE,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Functions {
    Window,
    NoCache,
    #[value(name = "static-95")]
    Static95,
    #[value(name = "static-400")]
    Static400,
    #[value(name = "static-400-no-recovery")]
    Static400NoRecovery,
    /// A table of all of them
    All,
}

impl Functions {
    fn clusters(self) -> Vec<Cluster> {
        let fixed = |functions, recovers| Cluster::Fixed {
            functions,
            recovers,
        };
        let each = [
            (Self::Window, Cluster::Window { caches: true }),
            (Self::NoCache, Cluster::Window { caches: false }),
            (Self::Static95, fixed(95, true)),
            (Self::Static400, fixed(400, true)),
            (Self::Static400NoRecovery, fixed(400, false)),
        ];
        let is_wanted = |(name, _): &(Self, Cluster)| self == Self::All || self == *name;
        let wanted = each.into_iter().filter(is_wanted);
        wanted.map(|(_, cluster)| cluster).collect()
    }
}

/// Runs a command.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let Command::Memory(arguments) = command;
    match (&arguments.generate, &arguments.trace) {
        (Some(workload), _) => generate(workload.profile(), arguments),
        (None, Some(path)) => replay_file(path, arguments),
        (None, None) => scale_out(arguments),
    }
}

fn scale_out(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut runs = Vec::new();
    for cluster in arguments.functions.clusters() {
        let Cluster::Window { caches } = cluster else {
            continue;
        };
        let options = scale_out::Options::published(arguments.seed, caches);
        runs.push((Report::name(cluster), scale_out::run(&options)));
    }
    if runs.is_empty() {
        bail!("--scale-out measures the sliding window: give --functions window, no-cache or all");
    }
    if arguments.json {
        return super::print(&(serde_json::to_string(&runs)? + "\n"));
    }
    let rows = runs
        .iter()
        .map(|(name, steps)| scale_out::table(name, steps));
    super::print(&(scale_out::HEADING.to_owned() + &rows.collect::<String>()))
}

fn generate(profile: &Profile, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let hours = arguments.hours.unwrap_or(profile.hours);
    let trace = profile.generate(hours, arguments.seed);
    let found = serde_json::to_string(&Statistics::of(&trace))?;
    super::print_aside(&format!(
        "published: {}\nassumed:   {}\nthis trace: {found}\n",
        profile.published(),
        profile.assumptions()
    ));
    super::print_bytes(trace.text().as_bytes())
}

fn replay_file(path: &PathBuf, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    let mut trace = Trace::parse(&text).with_context(|| format!("{shown} is no trace"))?;
    drop(text);
    if let Some(hours) = arguments.hours {
        trace = trace.within(hours);
    }
    let profile = arguments.workload.profile();
    let mut options = Options::published(profile, trace.hours(), arguments.seed);
    options.failures = arguments.failures.unwrap_or(options.failures);
    if let Some(seconds) = arguments.gc_interval_s {
        options.pacing.gc_interval = Duration::from_secs(seconds);
    }
    let clusters = arguments.functions.clusters();
    let reports = clusters.into_iter().map(|cluster| {
        let outcome = replay(&trace, &Options { cluster, ..options });
        Report::new(cluster, outcome, &AWS)
    });
    let reports: Vec<Report> = reports.collect();
    if let (Some(file), [report, ..]) = (&arguments.plot, &reports[..]) {
        let title = format!(
            "Functions that hold objects, and the working set ({})",
            report.name
        );
        let svg = picture::svg(&report.outcome, &title);
        fs::write(file, svg).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    if arguments.json {
        return super::print(&(serde_json::to_string(&reports)? + "\n"));
    }
    if let [report] = &reports[..] {
        return super::print(&report.text());
    }
    let rows: String = reports.iter().map(Report::row).collect();
    super::print(&(Report::heading().to_owned() + &rows))
}
