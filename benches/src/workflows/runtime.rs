//! Warm invocations of an empty function through the runtime's port: the runtime's own cost,
//! without the caller's HTTP.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use hdrhistogram::Histogram;
use ports::{
    Runtime as _,
    runtime::{Function, Invocation, Language as Runs},
};
use sandbox::{
    Config, Sandbox,
    fuzzing::Nothing,
    process::{Enforcement, Launcher},
};
use tar::{Builder, Header};

use super::{
    application,
    application::Language,
    runs::{Pressure, Quantiles},
};

/// How long an instance rests in [`Took::at_rest`]. By then it has asked for its next invocation,
/// and it is not frozen yet.
const REST: Duration = Duration::from_millis(2);

/// The latencies of invocations.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Each begins with the response to the one before: its instance must first learn of that
    /// response, and ask for its next invocation.
    pub back_to_back: Quantiles,
    /// Each finds its instance waiting.
    pub at_rest: Quantiles,
}

/// One caller, for the time in `pressure` in each of the two ways. All runs on one thread, as in
/// the program on two cores.
///
/// `landfast` builds the sandbox, and `function` is the binary of the Rust function.
pub async fn warm(
    landfast: &Path,
    function: &Path,
    directory: &Path,
    language: Language,
    pressure: Pressure,
) -> Result<Took> {
    let (landfast, function) = (landfast.canonicalize()?, function.to_owned());
    let directory = directory.join(format!("runtime-{}", language.name()));
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let measured = invoked(landfast, function, directory, language, pressure);
        runtime.block_on(async { tokio::spawn(measured).await? })
    })
    .await?
}

async fn invoked(
    landfast: PathBuf,
    function: PathBuf,
    directory: PathBuf,
    language: Language,
    pressure: Pressure,
) -> Result<Took> {
    let launcher = Launcher::new(landfast.clone(), Enforcement::probe(&landfast))?;
    let (api, volumes) = (Arc::new(Nothing), Arc::new(Nothing));
    let idle_max = Duration::from_mins(10);
    let sandbox = Sandbox::open(Config {
        directory,
        launcher,
        api,
        bundled: &[],
        idle_max,
        volumes,
    })?;
    sandbox
        .code_store()
        .install("empty", archive(&function)?)
        .await?;
    let function = Arc::new(empty(language));
    let back_to_back = measured(&sandbox, &function, pressure, None).await?;
    let at_rest = measured(&sandbox, &function, pressure, Some(REST)).await?;
    sandbox.close().await;
    Ok(Took {
        back_to_back,
        at_rest,
    })
}

async fn measured(
    sandbox: &Sandbox,
    function: &Arc<Function>,
    pressure: Pressure,
    rest: Option<Duration>,
) -> Result<Quantiles> {
    let counts_from = Instant::now() + pressure.warm_up;
    let until = counts_from + pressure.measure;
    let mut times = Histogram::<u64>::new(3)?;
    while Instant::now() < until {
        if let Some(rest) = rest {
            tokio::time::sleep(rest).await;
        }
        let began = Instant::now();
        let invocation = Invocation::new("bench".to_owned(), Bytes::from_static(b"{}"), true);
        let ran = sandbox
            .run(function, invocation)
            .await
            .map_err(|refused| anyhow!("{refused}"))?;
        let took = began.elapsed();
        ensure!(
            ran.result.is_ok(),
            "an empty function failed: {:?}",
            ran.result
        );
        if began >= counts_from {
            times.record(took.as_micros() as u64)?;
        }
    }
    Ok(Quantiles::of(&times))
}

fn empty(language: Language) -> Function {
    let (runs, handler) = match language {
        Language::Rust => (Runs::Executable, "bench-function"),
        Language::Python => (Runs::Python(None), "app.handler"),
    };
    Function {
        name: "empty".to_owned(),
        revision: "1".to_owned(),
        language: runs,
        runtime_version: None,
        handler: handler.to_owned(),
        archive: "empty".to_owned(),
        folder: "code".to_owned(),
        memory_bytes: 128 << 20,
        timeout: Duration::from_secs(30),
        concurrency: 1,
        processes_max: 64,
        scratch_bytes: 16 << 20,
        environment: BTreeMap::new(),
        network: false,
        buckets: Vec::new(),
        volume: None,
        incarnation: 0,
    }
}

/// The code of both functions.
fn archive(function: &Path) -> Result<Bytes> {
    let binary = fs::read(function).with_context(|| function.display().to_string())?;
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, mode, content) in [
        ("code/app.py", 0o644, application::PYTHON.as_bytes()),
        ("code/bench-function", 0o755, &binary),
    ] {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        builder.append_data(&mut header, path, content)?;
    }
    Ok(Bytes::from(builder.into_inner()?.finish()?))
}
