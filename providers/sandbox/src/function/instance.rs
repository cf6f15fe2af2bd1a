//! One instance of a function: its process, its invocation channel and its output.
//!
//! The holder of an instance decides what it does. A task serves the instance's Runtime API, reads
//! its output and waits for its end. When the process ends, for any reason, everything of it ends:
//! its children, its listener, its folder. An answer that it has sent before still counts.

use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use hyper::header::HeaderValue;
use ports::{VolumeMount, VolumeMounts, runtime::Function};
use tokio::sync::Mutex;

use super::{
    command,
    interpreters::Interpreters,
    invocation_channel::InvocationChannel,
    output::Output,
    prewarmed::{Kind, Prewarmed},
    request_body::Allowance,
    runtime_api::{self, Api, Served},
};
use crate::{
    code_store::Archives,
    figures::Counters,
    logs::Logs,
    order::{Launch, Network},
    process::{Launcher, Process, Running},
};

/// The parts that instances of all functions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) interpreters: Interpreters,
    pub(crate) runtime: PathBuf,
    pub(crate) archives: Arc<Archives>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) prewarmed: Arc<Prewarmed>,
    pub(crate) counters: Counters,
    pub(crate) volumes: Arc<dyn VolumeMounts>,
    /// How long an idle instance lives.
    pub(crate) idle_max: Duration,
}

/// A process that runs a function.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) channel: Arc<InvocationChannel>,
    pub(crate) output: Arc<Output>,
    /// The kind of spares that fit it; none: no spare does.
    pub(crate) kind: Option<Kind>,
    pub(crate) is_adopted: bool,
    pub(crate) running: Running,
    /// Its volume. It is unmounted with the instance.
    pub(crate) volume: Option<Arc<dyn VolumeMount>>,
}

impl Shared {
    /// How to launch `function`. Errors: what is missing, and what to do about it.
    async fn launch(&self, function: &Function) -> Result<Launch, String> {
        let archive = self.archives.path(&function.archive);
        let code = archive.join(&function.folder);
        let (command, folders) = command::command(function, &code, &self.interpreters).await?;
        Ok(Launch {
            command,
            folders,
            environment: command::environment(function)
                .into_iter()
                .chain(self.api.variables(function))
                .collect(),
            has_objects: !function.buckets.is_empty(),
            code,
            runtime: self.runtime.clone(),
            memory_bytes: function.memory_bytes,
            processes_max: function.processes_max,
            scratch_bytes: function.scratch_bytes,
            network: if function.network {
                Network::Host
            } else {
                Network::None
            },
            ..Launch::default()
        })
    }

    async fn start(&self, launch: Launch) -> Result<Process, String> {
        let started = self.launcher.start(launch).await;
        started.map_err(|error| error.to_string())
    }

    /// Mounts the volume of `function`, if it has one. Errors: why it cannot be mounted.
    async fn mount(&self, function: &Function) -> Result<Option<Arc<dyn VolumeMount>>, String> {
        let Some(volume) = &function.volume else {
            return Ok(None);
        };
        if !self.launcher.enforcement.has_namespaces() {
            return Err(format!(
                "{}: it has a volume, and volumes need isolated functions: `landfast doctor` says what this machine lacks",
                function.name
            ));
        }
        self.volumes.mount(volume).await.map(Some)
    }
}

impl Instance {
    /// Starts an instance. Errors: why it cannot be started, and what to do about it.
    pub(crate) async fn start(
        shared: &Shared,
        function: &Function,
        allowance: Allowance,
    ) -> Result<Arc<Self>, String> {
        let hold = shared.archives.hold(&function.archive);
        let mut launch = shared.launch(function).await?;
        let volume = shared.mount(function).await?;
        if let (Some(mounted), Some(at)) = (&volume, &function.volume) {
            launch.volume = Some((mounted.path().to_owned(), at.folder.clone().into()));
        }
        let kind = Kind::of(function, &launch);
        let spare = match &kind {
            Some(kind) => shared.prewarmed.adopt(kind, &launch).await,
            None => None,
        };
        let is_adopted = spare.is_some();
        let process = match spare {
            Some(process) => process,
            None => shared.start(launch).await?,
        };
        let channel = Arc::new(InvocationChannel::new());
        let (logs, log) = (Arc::clone(&shared.logs), shared.logs.log(&function.name));
        let output = Arc::new(Output::new([process.stdout, process.stderr], logs, log));
        let arn =
            HeaderValue::from_str(&command::arn(function)).map_err(|error| error.to_string())?;
        let served = Served {
            channel: Arc::clone(&channel),
            arn,
            api: Arc::clone(&shared.api),
            volume: volume.as_ref().map(Arc::downgrade),
            allowance,
            receiving: Mutex::default(),
        };
        let read = Arc::clone(&output);
        let (listener, peers) = (process.listener, process.peers);
        let serving = async move |has_ended| {
            let serving = pin!(runtime_api::serve(listener, peers, served, has_ended));
            // The end of an invocation reads the rest of the output.
            if let Either::Right(((), serving)) = select(serving, pin!(read.read())).await {
                serving.await;
            }
        };
        // The death is known before the channel ends: a waiting caller then finds its cause.
        let ended = Arc::clone(&channel);
        let on_death = move || {
            drop(hold);
            ended.end();
        };
        Ok(Arc::new(Self {
            channel,
            output,
            kind,
            is_adopted,
            running: Running::watch(process.control, process.exit, serving, on_death),
            volume,
        }))
    }
}
