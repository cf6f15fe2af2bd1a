//! The public API over all of it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ports::{DurabilityPoint, key_value::Room};
use tokio::sync::{self, Semaphore};

use crate::{
    Config, Result,
    attempts::open_attempts::Attempts,
    cache::Cache,
    calls::{
        begin::FULL_LOOK_UPS_MAX,
        list::{Listing, Page},
    },
    cluster::{
        announcement_batch::Cluster,
        forward::{Failed, Owner},
        membership::Membership,
        peers::Peers,
        probe::Looks,
    },
    collection::idempotency_keys::IdempotencyKeys,
    context::{Context, Tasks},
    effects::{Destinations, Effect, KnownQueues, outbox::Outbox},
    figures::{Counters, Figures},
    model::{Begin, Begun, Call, Committed, Key, Outcome, Shown, TransactionId},
    packing::SharedObjects,
    serializable::keyspace::Keyspaces,
    service::Parts,
    serving::Serving,
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
    pub(crate) context: Arc<Context>,
    pub(crate) membership: Arc<dyn Membership>,
    /// The way to the other nodes; none: this one is alone.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    pub(crate) destinations: Destinations,
    pub(crate) known_queues: KnownQueues,
    pub(crate) outbox: Outbox,
    /// Where packs go; none: values stay in the store.
    pub(crate) objects: Option<SharedObjects>,
    /// What the names of packs begin with, once that is known.
    pub(crate) home: OnceLock<String>,
    /// Memory for values in chunks that are being read, in bytes.
    pub(crate) reading: Arc<Semaphore>,
    pub(crate) serving: Serving,
    pub(crate) cache: Cache,
    pub(crate) attempts: Attempts,
    pub(crate) cluster: Cluster,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) idempotency_keys: IdempotencyKeys,
    /// Held while a keyspace is marked.
    pub(crate) marking: sync::Mutex<()>,
    /// How many more begins may ask the store at a time whether they have committed, while there is no room for them.
    pub(crate) full_look_ups: Semaphore,
    /// At which other nodes is being looked.
    pub(crate) looks: Looks,
}

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
        let cache = Cache::new(&config);
        let reading = config.read_bytes_max.min(Semaphore::MAX_PERMITS);
        let context = Context {
            key_value: parts.key_value,
            clock: parts.clock,
            entropy: parts.entropy,
            config,
            counters: Counters::default(),
            is_alone: peers.is_none(),
            tasks: Arc::downgrade(&tasks),
        };
        let core = Core {
            context: Arc::new(context),
            membership,
            peers,
            destinations,
            known_queues: KnownQueues::default(),
            outbox: Outbox::default(),
            objects,
            home: OnceLock::new(),
            reading: Arc::new(Semaphore::new(reading)),
            serving: Serving::default(),
            cache,
            attempts: Attempts::default(),
            cluster: Cluster::default(),
            keyspaces: Keyspaces::new(),
            idempotency_keys: IdempotencyKeys::default(),
            marking: sync::Mutex::default(),
            full_look_ups: Semaphore::new(FULL_LOOK_UPS_MAX),
            looks: Looks::default(),
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
            self.core.context.check_room(Room::Free)?;
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
        self.core.context.check_room(Room::Free)?;
        self.write(call, key, Some(value)).await
    }

    /// Deletes `key` once the transaction commits. Errors: as [`Engine::put`].
    pub async fn delete(&self, call: &Call, key: Key) -> Result<()> {
        self.core.context.check_room(Room::Scarce)?;
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
        self.core.context.config.effects_max
    }

    /// Sends an effect that somebody else has kept, under an id of theirs; durable where it was sent to when this returns. It may
    /// have been sent also if this fails: it is repeated under the same id.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `Unavailable`, `OutcomeUnknown`.
    pub async fn send_now(&self, effect: Effect, id: Bytes) -> Result<()> {
        self.core.send_one(effect, id).await?;
        self.core.context.counters.sent();
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
        self.core.context.check_room(if value.is_some() {
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
        if self.core.context.key_value.is_durable(point) {
            return Ok(());
        }
        self.core.serving.node()?.store.externalize(point).await
    }

    /// Answers a message of another node, whatever it says.
    pub async fn answer_peer(&self, message: Bytes) -> Bytes {
        self.core.answer_peer(message).await
    }

    /// What it has done and holds.
    pub fn figures(&self) -> Figures {
        let node = self.core.serving.current();
        let figures = self.core.context.counters.figures();
        let (effects_unsent, effects_failing) = self.core.outbox.counts();
        let (packs, packs_bytes) = node.as_ref().map_or((0, 0), |node| node.packs.sums());
        let (index_bytes, data_cache_bytes) = {
            let cache = self.core.cache.lock();
            (cache.index.bytes(), cache.data.bytes())
        };
        let (ahead, members_unheard) = {
            let cluster = self.core.cluster.lock();
            (cluster.neighbours.ahead(), cluster.neighbours.unheard())
        };
        Figures {
            packs,
            packs_bytes,
            starting_over: self.core.serving.has_fallen(),
            open: self.core.attempts.lock().len() as u64,
            slots: node.as_ref().map_or(0, |node| node.log.slots()),
            index_bytes,
            data_cache_bytes,
            effects_unsent,
            effects_failing,
            kept_names: self.core.idempotency_keys.lock().values().sum(),
            clock_ahead_ms: ahead.as_millis() as u64,
            members_unheard,
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
