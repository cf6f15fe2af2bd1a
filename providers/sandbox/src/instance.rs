//! One instance of a function: its process, and what passes between the two of us.
//!
//! Whoever holds the instance decides; a task of its own serves its Runtime API, reads its output and waits for its end.
//! When the process ends, for whatever reason, all of it has ended: what it forked, its listener, its directory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hyper::header::HeaderValue;
use ports::runtime::Function;
use tokio::sync::watch;

use crate::{
    command::{self, Command},
    exchange::Exchange,
    output::Output,
    pool::Shared,
    process::{Control, ExitReason, Launch, Network, Process},
    receiving::Allowance,
    runtime_api::{self, Served},
};

/// A process that runs a function.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) output: Arc<Output>,
    control: Arc<Control>,
    ended: watch::Receiver<Option<ExitReason>>,
    frozen: AtomicBool,
}

impl Instance {
    /// Starts an instance. Errors: why it cannot be, and what to do about it.
    pub(crate) async fn start(
        shared: &Shared,
        function: &Function,
        allowance: Allowance,
    ) -> Result<Arc<Self>, String> {
        let Shared { launcher, interpreters, runtime, archives, logs, .. } = shared;
        let code = archives.path(&function.archive).join(&function.folder);
        let Command { command, folders } = command::command(function, &code, interpreters).await?;
        let launch = Launch {
            command,
            folders,
            environment: command::environment(function),
            code,
            runtime: runtime.to_owned(),
            memory_bytes: function.memory_bytes,
            processes_max: function.processes_max,
            scratch_bytes: function.scratch_bytes,
            network: if function.network { Network::Host } else { Network::None },
        };
        let Process { listener, stdout, stderr, control, mut exit } =
            launcher.start(launch).await.map_err(|error| error.to_string())?;
        let exchange = Arc::new(Exchange::new());
        let output = Arc::new(Output::new([stdout, stderr], Arc::clone(logs), function.name.clone()));
        let (tell, ended) = watch::channel(None);
        let arn = HeaderValue::from_str(&command::arn(function)).map_err(|error| error.to_string())?;
        let api = Arc::clone(&shared.api);
        let (served, read) = (Arc::clone(&exchange), Arc::clone(&output));
        tokio::spawn(async move {
            let serving = async {
                futures_util::join!(
                    runtime_api::serve(
                        listener,
                        Served { exchange: Arc::clone(&served), arn, api, allowance }
                    ),
                    read.read()
                );
            };
            let reason = tokio::select! {
                reason = exit.wait() => reason,
                () = serving => exit.wait().await,
            };
            // First why, then that nobody answers any more.
            tell.send_replace(Some(reason));
            served.end();
        });
        Ok(Arc::new(Self { exchange, output, control, ended, frozen: AtomicBool::new(false) }))
    }

    /// How its process ended, if it has.
    pub(crate) fn has_ended(&self) -> Option<ExitReason> {
        *self.ended.borrow()
    }

    /// Returns when its process has ended.
    pub(crate) async fn ended(&self) -> ExitReason {
        let mut ended = self.ended.clone();
        loop {
            if let Some(reason) = *ended.borrow_and_update() {
                return reason;
            }
            if ended.changed().await.is_err() {
                return ExitReason::Signalled(9);
            }
        }
    }

    /// Ends it, and everything it has started.
    pub(crate) fn kill(&self) {
        self.control.kill();
    }

    /// Nothing of it runs until it is thawed.
    pub(crate) fn freeze(&self) {
        match self.control.freeze() {
            Ok(()) => self.frozen.store(true, Ordering::Release),
            Err(error) => tracing::debug!(%error, "an idle instance could not be frozen"),
        }
    }

    /// It runs again. Whether it does.
    pub(crate) fn thaw(&self) -> bool {
        if !self.frozen.swap(false, Ordering::AcqRel) {
            return true;
        }
        match self.control.thaw() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a frozen instance could not be thawed, and is ended");
                self.kill();
                false
            }
        }
    }

    /// The most memory it has used, in bytes, where that is known.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        self.control.memory_peak()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}
