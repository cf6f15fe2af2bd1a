//! The engine: one lock and one order for every port of this provider, from open to close.
//!
//! A mutation takes the lock, changes memory and takes the next position. It does not wait for the
//! disk. The journal thread ([`commit`]) makes the changes durable, and the checkpoint thread
//! ([`checkpoint`]) writes them to the checkpoint store.
//!
//! Invariants
//! - Unless [`Health`] is `Serving`, nothing is read or changed. After a failed write, memory is
//!   ahead of the state that can become durable, and callers must not see it (rule P6).
//! - Locks are taken in the order state, then spare or durability. No lock is held while the disk
//!   is written, except by a mutation that needs another segment.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use ports::{Error, ErrorKind, Result};
use tokio::time::Instant;

use self::{assembly::Parts, checkpoint::Checkpoints};
use crate::{
    config::Config,
    directory::lock::DirectoryLock,
    durability::Work,
    error::OpenError,
    journal::{recovery::TrustedEnd, writer::Journal},
    queues::Queues,
    status::{Health, RecoveryReport, Status},
    store::Store,
};

mod assembly;
mod checkpoint;
mod commit;

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) queues: Queues,
    pub(crate) health: Health,
}

/// The engine: the state and the parts that the two threads share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) parts: Parts,
    pub(crate) checkpoints: Checkpoints,
    state: Mutex<State>,
    recovery: RecoveryReport,
    lock: Mutex<Option<DirectoryLock>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The origin of the monotonic clock.
    origin: Instant,
}

impl Engine {
    /// Opens the directory, recovers it and starts the two threads.
    #[cfg(test)]
    pub(crate) fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let lock = DirectoryLock::take_or_make(&config)?;
        Self::open_locked(config, lock)
    }

    /// Recovers the directory, which the caller has locked, and starts the two threads.
    pub(crate) fn open_locked(config: Config, lock: DirectoryLock) -> Result<Arc<Self>, OpenError> {
        let mut parts = Parts::open(config)?;
        let assembled = parts.assemble(None)?;
        parts.format = parts
            .format
            .begin_journal(&*parts.config.storage, &parts.config.data_dir)?;
        let (incarnation, position) = (assembled.store.incarnation, assembled.store.position);
        parts
            .durability
            .restart(incarnation, position, assembled.ends);
        let state = State {
            store: assembled.store,
            queues: assembled.queues,
            health: Health::Serving,
        };
        let engine = Arc::new(Self {
            parts,
            checkpoints: Checkpoints::default(),
            state: Mutex::new(state),
            recovery: assembled.report,
            lock: Mutex::new(Some(lock)),
            threads: Mutex::default(),
            origin: Instant::now(),
        });
        engine
            .start(assembled.journal)
            .map_err(OpenError::io("start a thread"))?;
        Ok(engine)
    }

    fn start(self: &Arc<Self>, journal: Journal) -> std::io::Result<()> {
        let spawn = std::thread::Builder::new;
        let engine = Arc::clone(self);
        let journal_thread = spawn()
            .name("journal".into())
            .spawn(move || commit::run(&engine, journal))?;
        self.threads.lock().push(journal_thread);
        let engine = Arc::clone(self);
        let checkpoint_thread = spawn()
            .name("checkpoint".into())
            .spawn(move || checkpoint::run(&engine));
        // The journal thread keeps the directory open until it ends.
        let checkpoint_thread = checkpoint_thread.inspect_err(|_| self.shut_down(false))?;
        self.threads.lock().push(checkpoint_thread);
        Ok(())
    }

    /// The state. It may be read only if its health allows that.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The state, if the store serves.
    pub(crate) fn serving(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match &state.health {
            Health::Serving => Ok(state),
            Health::FallingBack(_) => {
                let kind = ErrorKind::Unavailable {
                    retry_after_ms: Some(100),
                };
                Err(Error::new(
                    kind,
                    "use a store that is returning to its durable state",
                ))
            }
            Health::Closed => Err(Error::unavailable("use a closed store")),
        }
    }

    /// Time since the store was opened.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The instant at `time` after the store was opened.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.origin + time
    }

    /// Stops serving. The journal thread then returns the store to its durable state. The caller
    /// holds the state, so that no other caller sees it in between.
    pub(crate) fn fail_from(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        state.health = Health::FallingBack(reason.to_owned());
        drop(state);
        tracing::error!(reason, "returning to the durable state");
        self.parts.durability.force();
    }

    /// Rebuilds the durable state up to `trusted`, and serves it as a new incarnation.
    pub(crate) fn reload(&self, trusted: TrustedEnd) -> Result<Journal, OpenError> {
        self.checkpoints.quiesce();
        // No view may be open while the store is opened again. The health keeps callers from
        // needing one.
        self.state.lock().store.view = None;
        let checkpoint_store = &self.parts.checkpoint_store;
        let reopened = checkpoint_store.reopen();
        reopened.map_err(OpenError::checkpoint(checkpoint_store.path()))?;
        let assembled = self.parts.assemble(Some(trusted))?;
        let mut state = self.state.lock();
        let (incarnation, position) = (assembled.store.incarnation, assembled.store.position);
        state.store = assembled.store;
        let earlier = std::mem::replace(&mut state.queues, assembled.queues);
        state.queues.take_over(earlier);
        state.health = Health::Serving;
        self.parts
            .durability
            .restart(incarnation, position, assembled.ends);
        state.queues.wake_all();
        tracing::warn!(incarnation, position, "serving the durable state again");
        Ok(assembled.journal)
    }

    /// Ends both threads and releases the directory. With `finish`, it first writes what is left.
    pub(crate) fn shut_down(&self, finish: bool) {
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        self.parts
            .durability
            .stop(if finish { Work::Finish } else { Work::Abandon });
        let mut threads = threads.into_iter();
        let joined =
            |thread: Option<JoinHandle<()>>| thread.is_some_and(|thread| thread.join().is_ok());
        let written = joined(threads.next());
        self.checkpoints.stop();
        let idle = joined(threads.next());
        if finish && written && idle {
            checkpoint::finish(self);
        }
        let mut state = self.state.lock();
        state.health = Health::Closed;
        state.store.view = None;
        state.queues.wake_all();
        drop(state);
        self.parts.durability.close();
        self.parts.checkpoint_store.close();
        drop(self.lock.lock().take());
    }

    /// The status of the store.
    pub(crate) fn status(&self) -> Status {
        let (checkpoints, checkpoint_error) = self.checkpoints.report();
        let mut state = self.state.lock();
        let store = &mut state.store;
        let is_full = !store.ask_for_room();
        let store = &state.store;
        Status {
            journal_bytes: self.parts.usage.bytes(),
            segments: self.parts.usage.segments(),
            overlay_records: store.overlay.len(),
            incarnation: store.point().incarnation,
            ordered: store.point(),
            durable: self.parts.durability.durable(),
            fsyncs: self.parts.usage.fsyncs(),
            checkpoints,
            blocked_groups: state.queues.blocked_count(),
            checkpoint_error,
            recovery: self.recovery.clone(),
            damage: self
                .parts
                .checkpoint_store
                .damage()
                .map(|damage| damage.to_string()),
            is_full,
            health: state.health.clone(),
        }
    }
}
