//! The public API over all of it.
//!
//! A named begin, a commit, a load and a clean-up run as tasks of the engine, never in the caller's future: a caller
//! that hangs up drops its future, and half a commit must not depend on that. The tasks end with the last handle of
//! the engine, wherever they are.

use std::{
    future::Future,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use bytes::Bytes;
use ports::{
    Clock, DurabilityPoint, Entropy,
    key_value::{Room, SharedKeyValue},
};
use tokio::{
    sync::{self, Notify, Semaphore, oneshot, watch},
    task::JoinSet,
};

use crate::{
    Config, Error, Result,
    attempts::open_attempts::Open,
    cache::{data_cache::DataCache, recent_commits::Recent, version_index::Index},
    calls::{
        begin::FULL_LOOK_UPS_MAX,
        list::{Listing, Page},
    },
    cluster::{
        announce::Neighbours,
        announcement_batch::Gathered,
        forward::{Failed, Owner},
        membership::Membership,
        peers::Peers,
        probe::Looks,
    },
    collection::idempotency_keys::Periods,
    effects::{Destinations, Effect, KnownQueues, outbox::Outbox},
    figures::{Counters, Figures},
    model::{Begin, Begun, Call, Committed, Key, NodeId, Outcome, Shown, TransactionId},
    packing::SharedObjects,
    serializable::keyspace::Keyspaces,
    service::Parts,
    storage::{frontier::Heard, node::Node},
};

/// Transactions on one node. Clones share it; when the last one is dropped, everything under way stops where it is.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    _tasks: Arc<Tasks>,
}

/// What the parts of the engine share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) key_value: SharedKeyValue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) config: Config,
    pub(crate) membership: Arc<dyn Membership>,
    /// The way to the other nodes; none: this one is alone.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    pub(crate) counters: Counters,
    pub(crate) destinations: Destinations,
    pub(crate) known_queues: KnownQueues,
    pub(crate) outbox: Outbox,
    /// Where packs go; none: values stay in the store.
    pub(crate) objects: Option<SharedObjects>,
    /// What the names of packs begin with, once that is known.
    pub(crate) home: OnceLock<String>,
    /// Memory for values in chunks that are being read, in bytes.
    pub(crate) reading: Arc<Semaphore>,
    /// Changes with each node that begins to serve.
    pub(crate) starts: watch::Sender<()>,
    /// Woken when the node cannot go on.
    pub(crate) fell: Arc<Notify>,
    /// Held while a keyspace is marked.
    pub(crate) marking: sync::Mutex<()>,
    /// How many more begins may ask the store at a time whether they have committed, while there is no room for them.
    pub(crate) full_look_ups: Semaphore,
    /// At which other nodes is being looked.
    pub(crate) looks: Looks,
    view: Mutex<View>,
    tasks: Weak<Tasks>,
}

/// What this node knows. Its lock is held for map operations alone.
#[derive(Debug)]
pub(crate) struct View {
    /// Who serves; none: nobody yet, or nobody again.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) index: Index,
    pub(crate) data: DataCache,
    pub(crate) recent: Recent,
    pub(crate) heard: Arc<Heard>,
    /// Up to where logs are retained no longer.
    pub(crate) dropped: Arc<Heard>,
    pub(crate) open: Open,
    /// About how many bytes the commits that are known here have superseded.
    pub(crate) superseded_bytes: u64,
    /// Names kept for days.
    pub(crate) names: Periods,
    /// Whether somebody waits for attempts to run out of time.
    pub(crate) is_timer_armed: bool,
    /// Which keyspaces are sequenced.
    pub(crate) keyspaces: Keyspaces,
    /// The other nodes.
    pub(crate) neighbours: Neighbours,
    /// What they have told, and is not merged.
    pub(crate) gathered: Gathered,
}

/// What runs for the engine; bounded by the attempts that are open and those that have effects to send.
#[derive(Debug, Default)]
struct Tasks(Mutex<JoinSet<()>>);

impl Engine {
    pub(crate) fn new(
        parts: Parts,
        destinations: Destinations,
        objects: Option<SharedObjects>,
        membership: Arc<dyn Membership>,
        peers: Option<Arc<dyn Peers>>,
        config: Config,
    ) -> Self {
        let tasks = Arc::<Tasks>::default();
        let view = View {
            node: None,
            index: Index::new(config.index_bytes_max),
            data: DataCache::new(config.data_cache_bytes_max),
            recent: Recent::new(config.recent_bytes_max),
            heard: Arc::default(),
            dropped: Arc::default(),
            open: Open::default(),
            superseded_bytes: 0,
            names: Periods::new(),
            is_timer_armed: false,
            keyspaces: Keyspaces::new(),
            neighbours: Neighbours::default(),
            gathered: Gathered::default(),
        };
        let reading = config.read_bytes_max.min(Semaphore::MAX_PERMITS);
        let core = Core {
            key_value: parts.key_value,
            clock: parts.clock,
            entropy: parts.entropy,
            config,
            membership,
            peers,
            counters: Counters::default(),
            destinations,
            known_queues: KnownQueues::default(),
            outbox: Outbox::default(),
            objects,
            home: OnceLock::new(),
            reading: Arc::new(Semaphore::new(reading)),
            starts: watch::Sender::new(()),
            fell: Arc::default(),
            marking: sync::Mutex::default(),
            full_look_ups: Semaphore::new(FULL_LOOK_UPS_MAX),
            looks: Looks::default(),
            view: Mutex::new(view),
            tasks: Arc::downgrade(&tasks),
        };
        Self {
            core: Arc::new(core),
            _tasks: tasks,
        }
    }

    /// Begins a transaction, or another attempt of it: earlier ones of the same name end (T-5).
    ///
    /// The first serializable one that uses a keyspace has it sequenced for good, and waits for that.
    ///
    /// Errors: `TooManyOpen`, `Invalid`, `Expired`, `Unavailable`, `NoRoom`.
    pub async fn begin(&self, begin: Begin) -> Result<Shown<Begun>> {
        if begin.id.is_some() {
            // A name is written down; without one a transaction may read on a full disk.
            self.core.check_room(Room::Free)?;
        }
        self.core.begin(begin).await
    }

    /// The value of `key` for this transaction; none: there is none, or it is deleted.
    ///
    /// Errors: `NoValidVersion`, `SnapshotTooOld`, `Invalid` in a keyspace that a serializable begin did not name,
    /// `TransactionFinished`, `NoSuchTransaction`, `TooLarge`, `TooMuchBuffered`, `Unavailable`.
    pub async fn get(&self, call: &Call, key: &Key) -> Result<Shown<Option<Bytes>>> {
        match self.core.owner_elsewhere(call).await? {
            Some(owner) => self.core.forward_get(&owner, call, key).await,
            None => self.core.get(call, key).await,
        }
    }

    /// Sets `key` once the transaction commits.
    ///
    /// A large value is in the store when this returns, as yet visible to nobody else.
    ///
    /// Errors: `NoRoom`, `TooLarge`, `TooMuchBuffered`, `TransactionFinished`, `NoSuchTransaction`, `Unavailable`. After
    /// `NoRoom` the transaction may be over: a value that cannot be written ahead ends it.
    pub async fn put(&self, call: &Call, key: Key, value: Bytes) -> Result<()> {
        self.core.check_room(Room::Free)?;
        self.write(call, key, Some(value)).await
    }

    /// Deletes `key` once the transaction commits. Errors: as [`Engine::put`].
    pub async fn delete(&self, call: &Call, key: Key) -> Result<()> {
        self.core.check_room(Room::Scarce)?;
        self.write(call, key, None).await
    }

    async fn write(&self, call: &Call, key: Key, value: Option<Bytes>) -> Result<()> {
        match self.core.owner_elsewhere(call).await? {
            Some(owner) => self.core.forward_write(&owner, call, key, value).await,
            None => self.core.write(call, key, value).await,
        }
    }

    /// Has `effect` happen once the transaction has committed, durably: at least once, under an id of the transaction's.
    /// `place` says which of its effects it is, from zero, so that a repeat is known for one; none: one more.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `TooMuchBuffered`, `Invalid`, `TransactionFinished`,
    /// `NoSuchTransaction`, `Unavailable`.
    pub async fn send(&self, call: &Call, effect: Effect, place: Option<u32>) -> Result<()> {
        match self.core.owner_elsewhere(call).await? {
            Some(owner) => self.core.forward_send(&owner, call, effect, place).await,
            None => self.core.send(call, effect, place).await,
        }
    }

    /// Whether an effect that somebody else keeps until it may leave could be sent.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `Invalid`, `Unavailable`.
    pub async fn check_effect(&self, effect: &Effect) -> Result<()> {
        self.core.check_effect(effect)?;
        self.core.check_destination(effect).await
    }

    /// How many effects one transaction has at the most.
    pub fn effects_max(&self) -> usize {
        self.core.config.effects_max
    }

    /// Sends an effect that somebody else has kept, under an id of theirs; durable where it was sent to when this returns. It may
    /// have been sent also if this fails: it is repeated under the same id.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `Unavailable`, `OutcomeUnknown`.
    pub async fn send_now(&self, effect: Effect, id: Bytes) -> Result<()> {
        self.core.send_one(effect, id).await?;
        self.core.counters.sent();
        Ok(())
    }

    /// Makes all writes count, all at once; durable when it returns. A repeat is answered alike.
    ///
    /// Errors: `OutcomeUnknown`: repeat it; `Conflict` and `SnapshotTooOld` of a serializable one: begin again;
    /// `TransactionFinished`, `NoSuchTransaction`, `Expired`, `NoRoom`.
    pub async fn commit(&self, call: &Call) -> Result<Committed> {
        if let Some(owner) = self.core.owner_elsewhere(call).await? {
            match self.core.forward_commit(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(answer?),
            }
        }
        self.core.commit(call).await
    }

    /// Makes all writes count, all at once, and does not wait until that is durable: whoever takes the answer out of the house
    /// [waits](Self::externalize) for its point. Errors: as [`Engine::commit`].
    pub async fn commit_shown(&self, call: &Call) -> Result<Shown<Committed>> {
        if self.core.owner_elsewhere(call).await?.is_some() {
            return self.commit(call).await.map(Shown::durable);
        }
        self.core.commit_shown(call).await
    }

    /// Drops all writes. A repeat is answered alike.
    ///
    /// Errors: `TransactionFinished` if it has committed or was begun anew; `NoSuchTransaction`.
    pub async fn abort(&self, call: &Call) -> Result<()> {
        if let Some(owner) = self.core.owner_elsewhere(call).await? {
            match self.core.forward_abort(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(answer?),
            }
        }
        self.core.abort(call).await
    }

    /// What has become of the latest attempt of a transaction. Errors: as [`Engine::status_of`].
    pub async fn status(&self, id: &TransactionId) -> Result<Shown<Outcome>> {
        self.status_of(&Call::latest(id.clone())).await
    }

    /// What has become of a transaction, or of one attempt of it. Errors: `NoSuchTransaction`, `Unavailable`.
    pub async fn status_of(&self, call: &Call) -> Result<Shown<Outcome>> {
        self.core.end_if_begun_elsewhere(call).await?;
        if let Some(owner) = self.core.owner_elsewhere(call).await? {
            match self.core.forward_status(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(Shown::durable(answer?)),
            }
        }
        self.core.status(call).await
    }

    /// Plain state: the newest committed value of `key`.
    pub async fn get_now(&self, key: &Key) -> Result<Shown<Option<Bytes>>> {
        self.core.get_now(key).await
    }

    /// Plain state: a page of its keys with their values, as they are while it is read (T18).
    ///
    /// Errors: `TooMuchBuffered` if too much is being read, `Unavailable`.
    pub async fn list_now(&self, listing: &Listing) -> Result<Shown<Page>> {
        self.core.list_now(listing).await
    }

    /// Plain state: a transaction of one write (none: a deletion); durable when it returns.
    pub async fn put_now(&self, key: Key, value: Option<Bytes>) -> Result<Committed> {
        self.core.check_room(if value.is_some() {
            Room::Free
        } else {
            Room::Scarce
        })?;
        self.core.put_now(key, value).await
    }

    /// Waits until everything at or before `point` is durable.
    ///
    /// Errors: `Unavailable`, also if the store has lost it: then what was shown never was.
    pub async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.core.key_value.is_durable(point) {
            return Ok(());
        }
        self.core.serving()?.store.externalize(point).await
    }

    /// Answers a message of another node, whatever it says.
    pub async fn answer_peer(&self, message: Bytes) -> Bytes {
        self.core.answer_peer(message).await
    }

    /// What it has done and holds.
    pub fn figures(&self) -> Figures {
        let view = self.core.view();
        let figures = self.core.counters.figures();
        let (effects_unsent, effects_failing) = self.core.outbox.counts();
        let (packs, packs_bytes) = view.node.as_ref().map_or((0, 0), |node| node.packs.sums());
        Figures {
            packs,
            packs_bytes,
            starting_over: view
                .node
                .as_ref()
                .is_none_or(|node| node.store.standing().is_err()),
            open: view.open.len() as u64,
            slots: view.node.as_ref().map_or(0, |node| node.log.slots()),
            index_bytes: view.index.bytes(),
            data_cache_bytes: view.data.bytes(),
            effects_unsent,
            effects_failing,
            kept_names: view.names.values().sum(),
            clock_ahead_ms: view.neighbours.ahead().as_millis() as u64,
            members_unheard: view.neighbours.unheard(),
            ..figures
        }
    }
}

/// Whoever asks hears what the row says, which is closed if it says nothing: however alive its node is.
fn note_unreachable(owner: &Owner) {
    tracing::debug!(
        ?owner,
        "the node of a transaction does not answer: its row does"
    );
}

impl Core {
    /// Asked before a value is taken in (it needs all the room there is), and before a deletion or a commit, which may
    /// use half of the store's reserve (rule P6): nothing gives back what they take, and the rest is for others.
    pub(crate) fn check_room(&self, least: Room) -> Result<()> {
        if self.key_value.room() < least {
            Err(Error::NoRoom)
        } else {
            Ok(())
        }
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that serves. Errors: `Unavailable` if there is none, or if the store is no longer the one it began on.
    pub(crate) fn serving(&self) -> Result<Arc<Node>> {
        let node = self
            .view()
            .node
            .clone()
            .ok_or_else(|| Error::unavailable("the node starts"))?;
        node.store.look()?;
        Ok(node)
    }

    /// Whether no other node shares the work.
    pub(crate) fn is_alone(&self) -> bool {
        self.peers.is_none()
    }

    /// Whether there is no node that serves, or one that cannot go on.
    pub(crate) fn has_fallen(&self) -> bool {
        self.view()
            .node
            .as_ref()
            .is_none_or(|node| node.store.standing().is_err())
    }

    /// Waits before something is tried again.
    pub(crate) async fn pause(&self, delays: &mut primitives::Delays) {
        self.clock
            .sleep(delays.next_delay(&*self.entropy).unwrap_or_default())
            .await;
    }

    /// Runs `task` for the engine, whoever goes away meanwhile. Not at all if the engine is on its way out.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(tasks) = self.tasks.upgrade() else {
            return;
        };
        let mut running = tasks.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.spawn(task);
        while let Some(ended) = running.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    /// The same, and waits for what it comes to.
    pub(crate) async fn spawn_and_wait<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (told, hears) = oneshot::channel();
        self.spawn(async move {
            // Whoever asked may be gone; what was done stays done.
            let _ = told.send(task.await);
        });
        hears
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the engine stops")))
    }
}

impl View {
    /// The sequencer's log was taken over: it was sealed in this slot, and all before it is visible. Deletions among that
    /// may be collected.
    pub(crate) fn hear_sequencer(&mut self, sealed: u64) {
        Arc::make_mut(&mut self.heard).advance(NodeId::SEQUENCER, sealed);
        Arc::make_mut(&mut self.dropped).advance(NodeId::SEQUENCER, sealed);
    }

    /// Whether `node` is the one that serves: what others find out must not be kept.
    pub(crate) fn is_served_by(&self, node: &Arc<Node>) -> bool {
        self.node
            .as_ref()
            .is_some_and(|serving| Arc::ptr_eq(serving, node))
    }
}
