//! `landfast serve`: open, print `ready`, run, stop.
//!
//! The HTTP listener responds before anything else is open. So a probe can tell a long start (a
//! journal to recover) from one that hangs. The `ready` line follows once every listener accepts.
//!
//! A stop first waits for functions at work, for as long as the settings allow. The rest of it takes
//! at most [`STOP_MAX`], because supervisors kill a process soon after they asked it to stop.
//! Acknowledged writes are in the journal by then. The rest of the time is for the last checkpoint,
//! which only saves the next start from reading the journal. A checkpoint that takes longer is given
//! up with a warning, as after a crash. So is the release of a lease in a shared store that does not
//! respond; the lease expires by itself. A second signal stops the server at once.

use std::{
    env,
    io::{self, IsTerminal as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use http_frontend::status::Phase;
use tokio::runtime;
use tracing_subscriber::{
    filter::{LevelFilter, ParseError, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use super::signals::Stop;
use crate::{
    log::Log,
    overview::Overview,
    settings::{Options, Settings},
    startup_error,
    wiring::RunningServer,
};

/// The time for an orderly stop after the wait for functions. Acknowledged writes are kept in any case.
const STOP_MAX: Duration = Duration::from_secs(4);
/// The time for threads to end after that.
const THREADS_STOP_MAX: Duration = Duration::from_millis(500);

pub(crate) fn run(options: Options) -> anyhow::Result<ExitCode> {
    let settings = options.settle()?;
    let log = start_logs()?;
    let ended = serve_on_threads(&settings, &log);
    if let Err(error) = &ended {
        // The end of the process does not wait for a reader either.
        log.put(startup_error::line(error).as_bytes());
    }
    log.finish();
    Ok(ended.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

fn serve_on_threads(settings: &Settings, log: &Log) -> anyhow::Result<()> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(settings.threads)
        .thread_name("landfast")
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    let ended = runtime.block_on(serve(settings, log));
    runtime.shutdown_timeout(THREADS_STOP_MAX);
    ended
}

async fn serve(settings: &Settings, log: &Log) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let overview = Arc::new(Overview::new(settings.store.name(), log.clone()));
    let mut server = tokio::select! {
        biased;
        () = stop.asked() => return Ok(()),
        server = RunningServer::open(settings, &overview) => server?,
    };
    overview.enter(Phase::Ready);
    super::print(&server.ready_line()).context("the ready line, which scripts wait for")?;
    tracing::info!(store = %settings.place(), "{}", server.ready_line().trim_end());
    let ended = tokio::select! {
        biased;
        () = stop.asked() => Ok(()),
        ended = server.ended() => ended,
    };
    tracing::info!("stopping");
    let stop_max = settings.stop_wait + STOP_MAX;
    overview.enter(Phase::Stopping);
    tokio::select! {
        biased;
        () = stop.asked() => tracing::warn!("asked twice: stopping at once"),
        closed = tokio::time::timeout(stop_max, server.close(settings.stop_wait)) => if closed.is_err() {
            tracing::warn!("stopping takes longer than {stop_max:?}; acknowledged writes are kept, and the next start cleans up");
        },
    }
    tracing::info!("stopped");
    ended
}

/// The levels that a filter names; `info` if it names none. An empty part would mean "errors only".
fn levels(filter: &str) -> Result<Targets, ParseError> {
    let parts = filter.split(',').map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::INFO));
    }
    parts.join(",").parse()
}

/// Logs go to stderr: stdout holds the `ready` line alone.
fn start_logs() -> anyhow::Result<Log> {
    let set = ["LANDFAST_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| Some((name, env::var(name).ok()?)));
    // Not `EnvFilter`: its filters by span are of no use here, and need a regular expression engine.
    let levels: Targets = match set {
        Some((name, filter)) => levels(&filter).with_context(|| {
            let advice = "give levels, as in `debug` or `info,zookeeper_frontend=debug`";
            format!("{name}={filter}: {advice}")
        })?,
        None => levels("")?,
    };
    // It logs each refused request as an error, and computed signatures. The front end logs itself.
    let levels = levels.with_target("s3s", LevelFilter::OFF);
    // It logs each attempt of a request. What comes of it in the end is logged where it matters.
    let levels = levels.with_target("object_store", LevelFilter::WARN);
    let log = Log::to_stderr().context("the log could not be opened")?;
    log.take_panics();
    let writer = log.clone();
    let lines = fmt::layer()
        .with_writer(move || writer.clone())
        // The formatter would report a malformed line on stderr, and wait there for a reader.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(levels)
        .init();
    Ok(log)
}
