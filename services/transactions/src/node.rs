//! One start of a node: its id, its view of the store, its log.
//!
//! A process restarts as a new node with a new id whenever its store, its lease or its log is lost.
//! Everything that belongs to one start lives here or is tagged with its id, so that it is dropped
//! together.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use ports::Monotonic;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::{
    Error, Result,
    context::Context,
    model::{Attempt, NodeId},
    packs::Packs,
    sequencer::{Followed, Sequencer},
    serializable::open_volumes::OpenVolumes,
    storage::{node_log::NodeLog, node_registry::NodeRow, secret::Secret, store::Store},
};

/// The most attempts of other nodes that are being closed; beyond it their ids are simply noted
/// once more.
const CLOSING_MAX: usize = 1_024;

/// State that is dropped when the node cannot go on, and created anew.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<Store>,
    pub(crate) log: NodeLog,
    /// Woken when housekeeping may have work.
    pub(crate) work: Notify,
    /// Woken when every other node has announced, and all of it waits to be merged.
    pub(crate) all_told: Notify,
    /// When it began to serve.
    pub(crate) started: Monotonic,
    pub(crate) packs: Packs,
    /// The secret that the nodes of the store share; `None` for a single node.
    pub(crate) secret: Option<Secret>,
    begun: AtomicU64,
    /// Set once this node orders the commits of sequenced keyspaces.
    sequencer: OnceLock<Sequencer>,
    /// The volumes whose logs it writes.
    pub(crate) volumes: OpenVolumes,
    /// Its progress in the sequencer's log, whichever node writes that.
    pub(crate) followed: Followed,
    /// Shared by writers; taken permanently by the shutdown.
    at_work: Arc<RwLock<()>>,
    is_leaving: AtomicBool,
    /// Set when data may be stored whose entry is not.
    has_traces: AtomicBool,
    /// Woken when logs of other nodes are to be read in the store.
    pub(crate) following: Notify,
    /// Rows of dead nodes that wait for housekeeping.
    left_behind: Mutex<Vec<NodeRow>>,
    /// Other nodes' attempts to be closed whose ids are noted, and that are not closed yet.
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
            volumes: OpenVolumes::default(),
            followed: Followed::default(),
            at_work: Arc::default(),
            is_leaving: AtomicBool::new(false),
            has_traces: AtomicBool::new(false),
            following: Notify::new(),
            left_behind: Mutex::default(),
            closing: Mutex::default(),
        }
    }

    /// The sequencer of sequenced keyspaces, if it is this node.
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

    /// No work is left for an entry in `slot`.
    pub(crate) fn settled(&self, slot: u64) {
        self.log.settled(slot);
        self.work.notify_one();
    }

    /// A guard that a writer holds until its work is done. Errors: `Unavailable` if the node is
    /// shutting down.
    pub(crate) fn at_work(&self) -> Result<OwnedRwLockReadGuard<()>> {
        let at_work = Arc::clone(&self.at_work).try_read_owned();
        at_work.map_err(|_| Error::unavailable("the server stops"))
    }

    /// Runs `work` as a task that the shutdown waits for; not at all if the shutdown has begun.
    pub(crate) fn spawn(&self, context: &Context, work: impl Future<Output = ()> + Send + 'static) {
        if let Ok(at_work) = self.at_work() {
            context.spawn(async move {
                let _at_work = at_work;
                work.await;
            });
        }
    }

    /// Waits until no writer is at work. While the guard is held, none starts.
    pub(crate) async fn all_work_done(&self) -> OwnedRwLockWriteGuard<()> {
        self.is_leaving.store(true, Ordering::SeqCst);
        Arc::clone(&self.at_work).write_owned().await
    }

    /// Whether long work should pause where it can.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Notes that data may have been written whose entry is not in the log.
    pub(crate) fn leaves_traces(&self) {
        self.has_traces.store(true, Ordering::SeqCst);
    }

    /// Whether the log names all that was written.
    pub(crate) fn is_traceless(&self) -> bool {
        !self.has_traces.load(Ordering::SeqCst)
    }

    /// Hands a dead node's row to housekeeping.
    pub(crate) fn leave_to_house(&self, row: NodeRow) {
        self.left_behind.lock().push(row);
        self.work.notify_one();
    }

    /// Takes the rows that housekeeping processes from now on.
    pub(crate) fn take_left_behind(&self) -> Vec<NodeRow> {
        std::mem::take(&mut self.left_behind.lock())
    }

    /// Whether the id of another node's attempt that is to be closed is noted.
    pub(crate) fn is_closing(&self, attempt: Attempt) -> bool {
        self.closing.lock().contains(&attempt)
    }

    /// Notes the id of another node's attempt that is to be closed.
    pub(crate) fn begins_to_close(&self, attempt: Attempt) {
        let mut closing = self.closing.lock();
        if closing.len() >= CLOSING_MAX {
            closing.clear();
        }
        closing.insert(attempt);
    }

    /// Notes that it is closed. Returns whether it was to be.
    pub(crate) fn has_closed(&self, attempt: Attempt) -> bool {
        self.closing.lock().remove(&attempt)
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
