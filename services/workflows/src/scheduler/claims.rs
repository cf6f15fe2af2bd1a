//! Which runs this process works on. Each part that begins, resumes or ends a run first claims it, and
//! reads the stored rows after that.
//!
//! Invariants
//! - A run has one claim at a time. So no task resumes a run that another ends, and no task of an
//!   ended run is active.
//! - A claim ends with its holder: a task that is aborted drops it.

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

use crate::{model::RunKey, run::Run};

#[derive(Debug, Default)]
pub(crate) struct Claims {
    entries: Mutex<BTreeMap<RunKey, Entry>>,
    next_number: AtomicU64,
    /// A claim was made, changed or dropped.
    changed: Notify,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// None: the holder has not read the stored rows yet.
    run: Option<Arc<Run>>,
    task: Option<AbortHandle>,
}

/// The right to execute a run, or to end it.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Arc<Claims>,
    pub(super) key: RunKey,
    /// Distinguishes the claims of one run.
    pub(super) number: u64,
}

/// Why a run cannot begin here.
#[derive(Debug)]
pub(super) enum Busy {
    /// A task executes it.
    Executing(Arc<Run>),
    /// The outcome of its begin is unknown; a task will read what is stored.
    InDoubt,
}

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Claims a run; none: it is claimed.
    pub(super) fn claim(self: &Arc<Self>, key: &RunKey) -> Option<Claim> {
        let mut entries = self.entries.lock();
        if entries.contains_key(key) {
            return None;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            number,
            run: None,
            task: None,
        };
        entries.insert(key.clone(), entry);
        Some(Claim {
            claims: Arc::clone(self),
            key: key.clone(),
            number,
        })
    }

    /// Claims a run, or waits until the holder of its claim has handed it to a task.
    pub(super) async fn claim_or_wait(self: &Arc<Self>, key: &RunKey) -> Result<Claim, Busy> {
        self.until(|| {
            if let Some(claim) = self.claim(key) {
                return Some(Ok(claim));
            }
            let entries = self.entries.lock();
            let entry = entries.get(key).filter(|entry| entry.task.is_some())?;
            let run = entry.run.clone();
            Some(Err(run.map_or(Busy::InDoubt, Busy::Executing)))
        })
        .await
    }

    /// Waits until `look` returns a value; calls it again after each change.
    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    /// Whether a claimed run is executed as `driver`, or its holder has not read the rows yet.
    pub(super) fn is_executed_as(&self, key: &RunKey, driver: Option<NodeId>) -> bool {
        let entries = self.entries.lock();
        let run = entries.get(key).and_then(|entry| entry.run.as_ref());
        run.is_none_or(|run| run.row.driver == driver)
    }

    /// Takes the claim of a run over: aborts its task, and waits for its commits under way.
    pub(super) async fn seize(self: &Arc<Self>, key: &RunKey) -> Claim {
        let mut stopped: Option<Arc<Run>> = None;
        let claim = self.until(|| {
            let claim = self.claim(key);
            if claim.is_none()
                && let Some(entry) = self.entries.lock().get(key)
            {
                stopped = entry.run.clone().or_else(|| stopped.take());
                entry.task.iter().for_each(AbortHandle::abort);
            }
            claim
        });
        let claim = claim.await;
        if let Some(stopped) = stopped {
            stopped.close().await;
        }
        claim
    }

    /// Becomes true when the execution of a run ends; none: this process does not execute it.
    pub(crate) fn watch_end(&self, key: &RunKey) -> Option<watch::Receiver<bool>> {
        let entries = self.entries.lock();
        Some(entries.get(key)?.run.as_ref()?.ended.subscribe())
    }

    pub(super) fn set_task(&self, (key, number): (&RunKey, u64), task: AbortHandle) {
        if let Some(entry) = self.entries.lock().get_mut(key)
            && entry.number == number
        {
            entry.task = Some(task);
        }
        self.changed.notify_waiters();
    }
}

impl Claim {
    /// Sets the run that its holder executes from now on.
    pub(super) fn set_run(&self, run: &Arc<Run>) {
        if let Some(entry) = self.claims.entries.lock().get_mut(&self.key) {
            entry.run = Some(Arc::clone(run));
        }
        self.claims.changed.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let removed = self.claims.entries.lock().remove(&self.key);
        if let Some(run) = removed.and_then(|entry| entry.run) {
            run.ended.send_replace(true);
        }
        self.claims.changed.notify_waiters();
    }
}
