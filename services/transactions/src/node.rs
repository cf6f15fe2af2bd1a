//! One start of a node: its id, its view of the store, its log.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use ports::Monotonic;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::{
    Error, Result,
    context::Context,
    model::{Attempt, NodeId},
    packs::Packs,
    sequencer::{Followed, Sequencer},
    storage::{
        node_log::NodeLog, node_registry::NodeRow, records::CommitRecord, secret::Secret,
        store::Store,
    },
};

/// Attempts of others that are being closed; were there more, the names of those before are noted once more.
const CLOSING_MAX: usize = 1_024;

/// What goes when the node cannot go on, and is made anew.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<Store>,
    pub(crate) log: NodeLog,
    /// Woken when there may be something to tidy.
    pub(crate) work: Notify,
    /// Woken when every other node has told something, and all of it waits to be merged.
    pub(crate) all_told: Notify,
    /// When it began to serve.
    pub(crate) started: Monotonic,
    pub(crate) packs: Packs,
    /// What the other nodes know it by; none: there are no others.
    secret: Option<Secret>,
    begun: AtomicU64,
    /// Once this node orders the commits of sequenced keyspaces.
    sequencer: OnceLock<Sequencer>,
    /// What it has read of the sequencer's log, whoever writes that.
    pub(crate) followed: Followed,
    /// Shared by whoever writes; taken for good by who leaves.
    at_work: Arc<RwLock<()>>,
    is_leaving: AtomicBool,
    /// Data may be at rest whose entry is not.
    has_traces: AtomicBool,
    /// Woken when logs of other nodes are to be read in the store.
    pub(crate) following: Notify,
    /// What nodes that are gone have left to whoever tidies.
    left_behind: Mutex<Vec<NodeRow>>,
    /// Attempts of others whose names are noted since they are to be closed, and that nobody has closed yet.
    closing: Mutex<BTreeSet<Attempt>>,
}

impl Node {
    pub(crate) fn new(
        context: &Context,
        id: NodeId,
        store: Arc<Store>,
        log: NodeLog,
        secret: Option<Secret>,
    ) -> Self {
        Self {
            id,
            store,
            log,
            work: Notify::new(),
            all_told: Notify::new(),
            started: context.clock.monotonic(),
            packs: Packs::new(&context.config),
            secret,
            begun: AtomicU64::new(0),
            sequencer: OnceLock::new(),
            followed: Followed::default(),
            at_work: Arc::default(),
            is_leaving: AtomicBool::new(false),
            has_traces: AtomicBool::new(false),
            following: Notify::new(),
            left_behind: Mutex::default(),
            closing: Mutex::default(),
        }
    }

    /// What the nodes of the store know each other by; none: there are no others.
    pub(crate) fn secret(&self) -> Option<Secret> {
        self.secret
    }

    /// Who orders the commits of sequenced keyspaces, if it is this node.
    pub(crate) fn sequencer(&self) -> Option<&Sequencer> {
        self.sequencer.get()
    }

    /// This node orders them from now on.
    pub(crate) fn set_sequencer(&self, sequencer: Sequencer) {
        self.followed.pass(sequencer.sealed());
        self.sequencer
            .set(sequencer)
            .expect("a node takes the sequencer's log over once");
    }

    /// Nothing is left to do or to clean for an entry in `slot`.
    pub(crate) fn settled(&self, slot: u64) {
        self.log.settled(slot);
        self.work.notify_one();
    }

    /// Held by whoever writes until all of that is done. Errors: `Unavailable` if the node leaves.
    pub(crate) fn at_work(&self) -> Result<OwnedRwLockReadGuard<()>> {
        let at_work = Arc::clone(&self.at_work).try_read_owned();
        at_work.map_err(|_| Error::unavailable("the server stops"))
    }

    /// Waits until nobody writes any more; nobody begins to meanwhile, nor as long as it is held.
    pub(crate) async fn all_work_done(&self) -> OwnedRwLockWriteGuard<()> {
        self.is_leaving.store(true, Ordering::SeqCst);
        Arc::clone(&self.at_work).write_owned().await
    }

    /// Whether long work should pause where it can.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Data may have been written whose entry does not stand in the log.
    pub(crate) fn leaves_traces(&self) {
        self.has_traces.store(true, Ordering::SeqCst);
    }

    /// Whether the log names all that was written.
    pub(crate) fn is_traceless(&self) -> bool {
        !self.has_traces.load(Ordering::SeqCst)
    }

    /// What a node that is gone has left is to be tidied.
    pub(crate) fn leave_to_house(&self, row: NodeRow) {
        self.left_behind
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(row);
        self.work.notify_one();
    }

    /// What is to be tidied from now on.
    pub(crate) fn take_left_behind(&self) -> Vec<NodeRow> {
        std::mem::take(
            &mut self
                .left_behind
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Whether the name of an attempt of another node is noted, which is to be closed.
    pub(crate) fn is_closing(&self, attempt: Attempt) -> bool {
        self.closing().contains(&attempt)
    }

    /// The name of an attempt of another node is noted, which is to be closed.
    pub(crate) fn begins_to_close(&self, attempt: Attempt) {
        let mut closing = self.closing();
        if closing.len() >= CLOSING_MAX {
            closing.clear();
        }
        closing.insert(attempt);
    }

    /// It is closed. Whether it was to be.
    pub(crate) fn has_closed(&self, attempt: Attempt) -> bool {
        self.closing().remove(&attempt)
    }

    fn closing(&self) -> MutexGuard<'_, BTreeSet<Attempt>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Timestamps given from now on lie above those of `records` (T-1).
    pub(crate) fn observe(&self, records: &[Arc<CommitRecord>]) {
        for record in records {
            self.log.observe(record.version.timed());
        }
    }

    /// A new attempt.
    pub(crate) fn next_attempt(&self) -> Attempt {
        Attempt {
            node: self.id,
            sequence: self.begun.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Whether it has begun this attempt.
    pub(crate) fn has_begun(&self, attempt: Attempt) -> bool {
        attempt.node == self.id && attempt.sequence <= self.begun.load(Ordering::Relaxed)
    }
}
