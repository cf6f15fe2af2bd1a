//! The runs that somebody here is at: whoever begins, goes on with or ends a run has claimed it before he looks at what is at rest.
//!
//! Invariants
//! - A run has one claim at a time. So nobody goes on with a run that is being ended, and nothing of one that was ended is under way.
//! - A claim lasts as long as its holder: a task that is aborted gives it back with its last breath.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};
use transactions::model::NodeId;

use crate::run::Run;

/// A workflow, and the id of a run.
pub(crate) type Key = (String, String);

/// All claims.
#[derive(Debug, Default)]
pub(crate) struct Active {
    claimed: Mutex<BTreeMap<Key, Entry>>,
    given: AtomicU64,
    /// A run was claimed, begun to be worked at, or given back.
    moved: Notify,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// None: its holder has yet to look.
    run: Option<Arc<Run>>,
    task: Option<AbortHandle>,
}

/// The right to go on with a run, or to end it.
#[derive(Debug)]
pub(crate) struct Claim {
    active: Arc<Active>,
    key: Key,
    number: u64,
}

/// Why a run is nobody else's to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Somebody is at work on it.
    AtWork,
    /// Its begin was not answered, and somebody will look what became of that.
    InDoubt,
}

impl Active {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.claimed.lock().len()
    }

    /// Claims a run; none: somebody has.
    pub(crate) fn claim(self: &Arc<Self>, key: &Key) -> Option<Claim> {
        let mut claimed = self.claimed.lock();
        if claimed.contains_key(key) {
            return None;
        }
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        claimed.insert(
            key.clone(),
            Entry {
                number,
                run: None,
                task: None,
            },
        );
        Some(Claim {
            active: Arc::clone(self),
            key: key.clone(),
            number,
        })
    }

    /// Claims a run, once whoever has claimed it has looked.
    pub(crate) async fn claim_idle(self: &Arc<Self>, key: &Key) -> Result<Claim, Taken> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if let Some(claim) = self.claim(key) {
                return Ok(claim);
            }
            if let Some(entry) = self
                .claimed
                .lock()
                .get(key)
                .filter(|entry| entry.task.is_some())
            {
                return Err(if entry.run.is_some() {
                    Taken::AtWork
                } else {
                    Taken::InDoubt
                });
            }
            moved.await;
        }
    }

    /// Whether who has claimed a run looks at it, or is at it as `driver`.
    pub(crate) fn is_at(&self, key: &Key, driver: Option<NodeId>) -> bool {
        let claimed = self.claimed.lock();
        let run = claimed.get(key).and_then(|entry| entry.run.as_ref());
        run.is_none_or(|run| run.row.driver == driver)
    }

    /// Claims a run in place of whoever is at work on it, who is stopped; with what was worked at.
    pub(crate) async fn seize(self: &Arc<Self>, key: &Key) -> (Claim, Option<Arc<Run>>) {
        let mut stopped = None;
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if let Some(claim) = self.claim(key) {
                return (claim, stopped);
            }
            if let Some(entry) = self.claimed.lock().get(key) {
                stopped = entry.run.clone().or(stopped);
                if let Some(task) = &entry.task {
                    task.abort();
                }
            }
            moved.await;
        }
    }

    /// Tells when what is at work on a run is done with it; none: nothing is.
    pub(crate) fn ended(&self, key: &Key) -> Option<watch::Receiver<bool>> {
        let claimed = self.claimed.lock();
        Some(claimed.get(key)?.run.as_ref()?.ended.subscribe())
    }
}

impl Claim {
    /// Whose it is.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// From here on `run` is worked at.
    pub(crate) fn works_at(&self, run: &Arc<Run>) {
        self.change(|entry| entry.run = Some(Arc::clone(run)));
    }

    /// What it takes to stop the holder; called by whoever has given the claim to a task.
    pub(crate) fn stopped_by(active: &Active, (key, number): (&Key, u64), task: AbortHandle) {
        if let Some(entry) = active
            .claimed
            .lock()
            .get_mut(key)
            .filter(|entry| entry.number == number)
        {
            entry.task = Some(task);
        }
        active.moved.notify_waiters();
    }

    /// Tells it from other claims of the same run.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.active.claimed.lock().get_mut(&self.key) {
            change(entry);
        }
        self.active.moved.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let gone = self.active.claimed.lock().remove(&self.key);
        if let Some(run) = gone.and_then(|entry| entry.run) {
            run.ended.send_replace(true);
        }
        self.active.moved.notify_waiters();
    }
}
