//! One instance of a function: its process, and what passes between the two of us.
//!
//! Whoever holds the instance decides; a task of its own serves its Runtime API, reads its output and waits for its end.
//! When the process ends, for whatever reason, all of it has ended: what it forked, its listener, its directory.

use std::{mem, sync::Arc, time::Duration};

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use ports::runtime::Function;
use tokio::{sync::watch, time::Instant};

use crate::{
    command::{self, Command},
    exchange::Exchange,
    logs::Share,
    output::Output,
    pool::Shared,
    process::{Control, ExitReason, Launch, Network, Process},
    receiving::Allowance,
    runtime_api::{self, Served},
    spares::Kind,
};

/// How long all processes of an instance may take to stand still.
const FREEZE_MAX: Duration = Duration::from_secs(1);
const FREEZE_LOOK: Duration = Duration::from_millis(1);

/// A process that runs a function.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) output: Arc<Output>,
    /// What spares it could have been; none: none.
    pub(crate) kind: Option<Kind>,
    control: Arc<Control>,
    ended: watch::Receiver<Option<ExitReason>>,
    frost: Mutex<Frost>,
}

/// How far it is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frost {
    None,
    /// Not all of it stands still yet.
    Freezing,
    Frozen,
}

impl Instance {
    /// Starts an instance. Errors: why it cannot be, and what to do about it.
    pub(crate) async fn start(
        shared: &Shared,
        function: &Function,
        allowance: Allowance,
        printing: Arc<Share>,
    ) -> Result<Arc<Self>, String> {
        let Shared {
            launcher,
            interpreters,
            runtime,
            archives,
            logs,
            ..
        } = shared;
        let hold = archives.hold(&function.archive);
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
            network: if function.network {
                Network::Host
            } else {
                Network::None
            },
        };
        let kind = Kind::of(function, &launch);
        let spare = match &kind {
            Some(kind) => shared
                .spares
                .adopted(kind, &launch)
                .await
                .inspect(|_| shared.tally.adopted()),
            None => None,
        };
        let process = match spare {
            Some(process) => process,
            None => launcher
                .start(launch)
                .await
                .map_err(|error| error.to_string())?,
        };
        let Process {
            listener,
            peers,
            stdout,
            stderr,
            control,
            mut exit,
        } = process;
        let exchange = Arc::new(Exchange::new());
        let output = Arc::new(Output::new([stdout, stderr], Arc::clone(logs), printing));
        let (tell, ended) = watch::channel(None);
        let arn =
            HeaderValue::from_str(&command::arn(function)).map_err(|error| error.to_string())?;
        let api = Arc::clone(&shared.api);
        let (served, read) = (Arc::clone(&exchange), Arc::clone(&output));
        tokio::spawn(async move {
            let serving = async {
                futures_util::join!(
                    runtime_api::serve(
                        listener,
                        peers,
                        Served::new(Arc::clone(&served), arn, api, allowance)
                    ),
                    read.read()
                );
            };
            let reason = tokio::select! {
                reason = exit.wait() => reason,
                () = serving => exit.wait().await,
            };
            drop(hold);
            // First why, then that nobody answers any more.
            tell.send_replace(Some(reason));
            served.end();
        });
        let frost = Mutex::new(Frost::None);
        Ok(Arc::new(Self {
            exchange,
            output,
            kind,
            control,
            ended,
            frost,
        }))
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

    /// Soon nothing of it runs until it is thawed.
    pub(crate) fn freeze(&self) {
        let mut frost = self.frost.lock();
        match self.control.freeze() {
            Ok(()) => *frost = Frost::Freezing,
            Err(error) => tracing::debug!(%error, "an idle instance could not be frozen"),
        }
    }

    /// Returns once nothing of it runs, after [`Self::freeze`], or once it is thawed. False: it does not come to stand still.
    pub(crate) async fn stands_still(&self) -> bool {
        let until = Instant::now() + FREEZE_MAX;
        loop {
            {
                let mut frost = self.frost.lock();
                if *frost != Frost::Freezing {
                    return true;
                }
                if self.control.is_frozen() {
                    *frost = Frost::Frozen;
                    return true;
                }
                // What was started while others were stopped is not.
                if let Err(error) = self.control.freeze() {
                    tracing::debug!(%error, "an idle instance could not be frozen");
                }
            }
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(FREEZE_LOOK).await;
        }
    }

    /// It runs again. Whether it does.
    pub(crate) fn thaw(&self) -> bool {
        let mut frost = self.frost.lock();
        if mem::replace(&mut *frost, Frost::None) == Frost::None {
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

    /// Whether nothing of it runs.
    pub(crate) fn is_frozen(&self) -> bool {
        *self.frost.lock() == Frost::Frozen
    }

    /// The most memory it has used, in bytes, where that is known.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        self.control.memory_peak()
    }

    /// How many of its processes were ended for want of memory, where that is known.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        self.control.out_of_memory_kills()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}
