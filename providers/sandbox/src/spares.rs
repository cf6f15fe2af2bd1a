//! Spares: interpreters that have started before anybody needs them, one for each kind that functions had last.
//!
//! Most of a cold start is the interpreter's own. So once an instance was started, another process is, which comes as far as an instance comes
//! without a function ([spare](crate::launcher)) and waits. The next cold start of its kind adopts it, whichever function that is of.
//!
//! Invariants
//! - A spare becomes one instance, or none.
//! - A cold start never waits for a spare: it takes one that is ready, or goes the ordinary way; so also where that turns out to be dead.
//! - Nothing is kept for who never runs Python: the first spare comes after the first cold start of its kind, and goes after as long as an
//!   idle instance does, or as soon as memory is short.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use ports::runtime::{Function, Language};
use tokio::sync::oneshot;

use crate::{
    command::{spare_environment, starts_alike},
    process::{Launch, Launcher, Network, Process},
    processes::available_bytes,
};

/// Spares at a time; for one more the oldest is given up.
const SPARES_MAX: usize = 2;
/// What one may use while it waits; functions with less start the ordinary way, since it may have imported what they need not.
const MEMORY_BYTES: u64 = 128 << 20;
const PROCESSES_MAX: u32 = 16;
const SCRATCH_BYTES: u64 = 1 << 20;
/// A client that the code brings itself: it is started as in the cloud, by an interpreter that has nothing of ours.
const OTHER_CLIENT: &str = "awslambdaric";

/// What functions have in common that one spare could become the instance of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Without the handler.
    command: Vec<OsString>,
    folders: Vec<PathBuf>,
    network: Network,
}

impl Kind {
    /// That of `function`, which is launched so; none: no spare fits it.
    pub(crate) fn of(function: &Function, launch: &Launch) -> Option<Self> {
        let is_fit = matches!(function.language, Language::Python(_))
            && function.memory_bytes >= MEMORY_BYTES
            && starts_alike(function)
            && !launch.code.join(OTHER_CLIENT).exists();
        let (_handler, command) = launch.command.split_last()?;
        let Launch {
            folders, network, ..
        } = launch;
        is_fit.then(|| Self {
            command: command.to_vec(),
            folders: folders.clone(),
            network: *network,
        })
    }
}

/// All spares.
#[derive(Debug)]
pub(crate) struct Spares {
    launcher: Arc<Launcher>,
    /// Where the code of all functions lies.
    code: PathBuf,
    runtime: PathBuf,
    /// How long one waits.
    idle_max: Duration,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// The first is the oldest.
    all: Vec<Place>,
    /// Of the next one.
    number: u64,
}

/// One of the spares. Who drops it gives the spare up.
#[derive(Debug)]
struct Place {
    kind: Kind,
    number: u64,
    /// None: it is on its way.
    ready: Option<Ready>,
}

/// By this a spare is asked for.
type Ready = oneshot::Sender<oneshot::Sender<Process>>;

impl Spares {
    pub(crate) fn new(
        launcher: Arc<Launcher>,
        code: PathBuf,
        runtime: PathBuf,
        idle_max: Duration,
    ) -> Self {
        Self {
            launcher,
            code,
            runtime,
            idle_max,
            places: Mutex::default(),
        }
    }

    /// A spare of this kind, if there is one, as what `launch` says.
    pub(crate) async fn adopted(&self, kind: &Kind, launch: &Launch) -> Option<Process> {
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
            let all = &mut self.places.lock().all;
            let index = all
                .iter()
                .position(|place| place.kind == *kind && place.ready.is_some())?;
            all.remove(index).ready?
        };
        let (give, given) = oneshot::channel();
        ready.send(give).ok()?;
        given.await.ok()
    }

    /// Has a spare of this kind started, if there is none and memory is left for it and another instance of so many bytes.
    pub(crate) fn provide(self: &Arc<Self>, kind: &Kind, instance_bytes: u64) {
        let wanted = instance_bytes.saturating_add(MEMORY_BYTES);
        if !self.launcher.has_spares()
            || available_bytes().is_some_and(|available| available < wanted)
        {
            return;
        }
        let Some(number) = self.places.lock().reserve(kind) else {
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
        };
        let (launcher, spares, idle_max) = (
            Arc::clone(&self.launcher),
            Arc::downgrade(self),
            self.idle_max,
        );
        tokio::spawn(async move {
            match launcher.prepare(launch).await {
                Ok(process) => keep(&spares, number, process, idle_max).await,
                Err(error) => tracing::debug!(%error, "a spare interpreter could not be started"),
            }
            if let Some(spares) = spares.upgrade() {
                spares.places.lock().forget(number);
            }
        });
    }

    /// Gives up all of them. Whether there were any.
    pub(crate) fn give_up(&self) -> bool {
        let all = std::mem::take(&mut self.places.lock().all);
        !all.is_empty()
    }

    /// How many are ready.
    pub(crate) fn ready(&self) -> u64 {
        self.places
            .lock()
            .all
            .iter()
            .filter(|place| place.ready.is_some())
            .count() as u64
    }
}

impl Places {
    /// A place for one of this kind; none: there is one, or all others are on their way.
    fn reserve(&mut self, kind: &Kind) -> Option<u64> {
        if self.all.iter().any(|place| place.kind == *kind) {
            return None;
        }
        if self.all.len() >= SPARES_MAX {
            let oldest = self.all.iter().position(|place| place.ready.is_some())?;
            self.all.remove(oldest);
        }
        self.number += 1;
        self.all.push(Place {
            kind: kind.clone(),
            number: self.number,
            ready: None,
        });
        Some(self.number)
    }

    fn forget(&mut self, number: u64) {
        self.all.retain(|place| place.number != number);
    }
}

/// Keeps a spare until it is asked for, given up, idle for too long, or dead. Who drops it ends it.
async fn keep(spares: &Weak<Spares>, number: u64, mut process: Process, idle_max: Duration) {
    let (ready, asked) = oneshot::channel();
    {
        let Some(spares) = spares.upgrade() else {
            return;
        };
        let places = &mut spares.places.lock().all;
        let Some(place) = places.iter_mut().find(|place| place.number == number) else {
            return;
        };
        place.ready = Some(ready);
    }
    let asked = tokio::select! {
        biased;
        asked = asked => asked.ok(),
        _ = process.exit.wait() => None,
        () = tokio::time::sleep(idle_max) => None,
    };
    if let Some(give) = asked {
        // Who asked may have gone meanwhile: what nobody has is ended.
        let _ = give.send(process);
    }
}
