//! Pre-warmed interpreters (spares): started before a function needs them, one for each recent
//! kind.
//!
//! Most of a cold start is the interpreter's. Each cold start is therefore followed by the start of
//! a spare, which goes as far as an instance can without its function ([spare](crate::launcher)),
//! and waits. The next cold start of the same kind adopts it, for any function.
//!
//! Invariants
//! - A spare becomes at most one instance.
//! - A cold start never waits for a spare. It takes a ready one, or starts its own process, also if
//!   the spare turns out to be dead.
//! - A server that never runs Python has no spares. The first one comes after the first cold start
//!   of its kind. A spare ends after the idle time of instances, or as soon as memory is short.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use ports::runtime::{Function, Language};
use tokio::sync::oneshot;

use super::command::{spare_environment, starts_alike};
use crate::{
    machine::available_bytes,
    order::{Launch, Network},
    process::{Launcher, Process},
};

/// The most spares. One more replaces the oldest.
const SPARES_MAX: usize = 2;
/// The memory limit of a waiting spare. Functions with a lower limit get none, because its imports
/// may exceed that.
const MEMORY_BYTES: u64 = 128 << 20;
const PROCESSES_MAX: u32 = 16;
const SCRATCH_BYTES: u64 = 1 << 20;
/// A runtime client in the function's own code. Such a function starts as in the cloud, in a fresh
/// interpreter.
const OTHER_CLIENT: &str = "awslambdaric";

/// The properties that functions must have in common to share a spare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Without the handler.
    command: Vec<OsString>,
    folders: Vec<PathBuf>,
    network: Network,
}

impl Kind {
    /// The kind of `function` with this launch; none: no spare fits it.
    pub(crate) fn of(function: &Function, launch: &Launch) -> Option<Self> {
        let is_fit = matches!(function.language, Language::Python(_))
            && function.memory_bytes >= MEMORY_BYTES
            // A mount cannot enter the namespace of a process that runs.
            && function.volume.is_none()
            && starts_alike(function)
            && !launch.code.join(OTHER_CLIENT).exists();
        let (_handler, command) = launch.command.split_last()?;
        is_fit.then(|| Self {
            command: command.to_vec(),
            folders: launch.folders.clone(),
            network: launch.network,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Prewarmed {
    pub(crate) launcher: Arc<Launcher>,
    /// The folder with the code of all functions.
    pub(crate) code: PathBuf,
    pub(crate) runtime: PathBuf,
    pub(crate) idle_max: Duration,
    pub(crate) spares: Mutex<Spares>,
}

#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// The oldest comes first.
    all: Vec<Spare>,
    number: u64,
}

/// One spare. Dropping it ends the spare's process.
#[derive(Debug)]
struct Spare {
    kind: Kind,
    number: u64,
    /// None: it is still starting.
    ready: Option<Ready>,
}

/// Requests the process of a spare.
type Ready = oneshot::Sender<oneshot::Sender<Process>>;

impl Prewarmed {
    /// Turns a spare of this kind, if there is one, into the process of `launch`.
    pub(crate) async fn adopt(&self, kind: &Kind, launch: &Launch) -> Option<Process> {
        let spare = self.take(kind).await?;
        let adopted = self.launcher.adopt(spare, launch.clone()).await;
        adopted
            .inspect_err(
                |error| tracing::debug!(%error, "a spare interpreter could not be adopted"),
            )
            .ok()
    }

    async fn take(&self, kind: &Kind) -> Option<Process> {
        let ready = {
            let all = &mut self.spares.lock().all;
            let index = all
                .iter()
                .position(|spare| spare.kind == *kind && spare.ready.is_some())?;
            all.remove(index).ready?
        };
        let (give, given) = oneshot::channel();
        ready.send(give).ok()?;
        given.await.ok()
    }

    /// Starts a spare of this kind, if there is none, and memory is left for it and for another
    /// instance of `instance_bytes`.
    pub(crate) fn provide(self: &Arc<Self>, kind: &Kind, instance_bytes: u64) {
        let wanted = instance_bytes.saturating_add(MEMORY_BYTES);
        if !self.launcher.enforcement.has_namespaces()
            || available_bytes().is_some_and(|available| available < wanted)
        {
            return;
        }
        let Some(number) = self.spares.lock().reserve(kind) else {
            return;
        };
        let launch = Launch {
            command: kind.command.clone(),
            environment: spare_environment(),
            folders: kind.folders.clone(),
            code: self.code.clone(),
            runtime: self.runtime.clone(),
            memory_bytes: MEMORY_BYTES,
            processes_max: PROCESSES_MAX,
            scratch_bytes: SCRATCH_BYTES,
            network: kind.network,
            ..Launch::default()
        };
        let (launcher, spares, idle_max) = (
            Arc::clone(&self.launcher),
            Arc::downgrade(self),
            self.idle_max,
        );
        tokio::spawn(async move {
            match launcher.prewarm(launch).await {
                Ok(process) => keep(&spares, number, process, idle_max).await,
                Err(error) => tracing::debug!(%error, "a spare interpreter could not be started"),
            }
            if let Some(spares) = spares.upgrade() {
                spares.spares.lock().forget(number);
            }
        });
    }

    /// Ends all spares. Whether there were any.
    pub(crate) fn end_all(&self) -> bool {
        let all = std::mem::take(&mut self.spares.lock().all);
        !all.is_empty()
    }

    pub(crate) fn ready(&self) -> u64 {
        self.spares
            .lock()
            .all
            .iter()
            .filter(|spare| spare.ready.is_some())
            .count() as u64
    }
}

impl Spares {
    /// Reserves a place for a spare of this kind. None: there is one, or all others are still
    /// starting.
    fn reserve(&mut self, kind: &Kind) -> Option<u64> {
        if self.all.iter().any(|spare| spare.kind == *kind) {
            return None;
        }
        if self.all.len() >= SPARES_MAX {
            let oldest = self.all.iter().position(|spare| spare.ready.is_some())?;
            self.all.remove(oldest);
        }
        self.number += 1;
        self.all.push(Spare {
            kind: kind.clone(),
            number: self.number,
            ready: None,
        });
        Some(self.number)
    }

    fn forget(&mut self, number: u64) {
        self.all.retain(|spare| spare.number != number);
    }
}

/// Keeps a spare until it is requested, ended, idle for too long, or dead.
async fn keep(prewarmed: &Weak<Prewarmed>, number: u64, mut process: Process, idle_max: Duration) {
    let (ready, asked) = oneshot::channel();
    {
        let Some(prewarmed) = prewarmed.upgrade() else {
            return;
        };
        let all = &mut prewarmed.spares.lock().all;
        let Some(spare) = all.iter_mut().find(|spare| spare.number == number) else {
            return;
        };
        spare.ready = Some(ready);
    }
    let asked = tokio::select! {
        biased;
        asked = asked => asked.ok(),
        _ = process.exit.wait() => None,
        () = tokio::time::sleep(idle_max) => None,
    };
    if let Some(give) = asked {
        // If the caller is gone, the process is dropped here, which ends it.
        let _ = give.send(process);
    }
}
