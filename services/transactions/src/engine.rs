//! The public API over all of it.

use std::sync::Arc;

use bytes::Bytes;
use ports::{Clock, DurabilityPoint, Entropy, KeyValue, key_value::Room};
use tokio::sync::Semaphore;

use crate::{
    Config, Result,
    attempts::open_attempts::Attempts,
    cache::Cache,
    calls::{
        Calls,
        begin::FULL_LOOK_UPS_MAX,
        forward::Failed,
        list::{Listing, Page},
    },
    cluster::{Cluster, membership::Membership, owner::Owner, peers::Peers},
    collection::Collection,
    context::{Context, Tasks},
    effects::{Destinations, Effect, Effects},
    figures::{Counters, Figures},
    idempotency_keys::IdempotencyKeys,
    loader::Loader,
    model::{Begin, Begun, Call, Committed, Key, Outcome, Shown, TransactionId},
    packing::{Packing, SharedObjects},
    peer_server::PeerServer,
    recovery::Recovery,
    serializable::Serializable,
    serving::Serving,
};

/// What the service is made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Where everything lives. A node alone ends whoever had it before; others share it.
    pub key_value: Arc<dyn KeyValue>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
}

/// Transactions on one node. Clones share it; when the last one is dropped, everything under way stops where it is.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    _tasks: Arc<Tasks>,
}

/// The parts of the engine that its public face calls.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) context: Arc<Context>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) effects: Arc<Effects>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) recovery: Arc<Recovery>,
    pub(crate) peer_server: PeerServer,
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
        let context = Arc::new(Context {
            key_value: parts.key_value,
            clock: parts.clock,
            entropy: parts.entropy,
            config,
            counters: Counters::default(),
            is_alone: peers.is_none(),
            tasks: Arc::downgrade(&tasks),
        });
        Self {
            core: Arc::new(Core::new(context, destinations, objects, membership, peers)),
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
        self.core.calls.begin(begin).await
    }

    /// The value of `key` for this transaction; none: there is none, or it is deleted.
    ///
    /// Errors: `NoValidVersion`, `SnapshotTooOld`, `Invalid` in a keyspace that a serializable begin did not name,
    /// `TransactionFinished`, `NoSuchTransaction`, `TooLarge`, `TooMuchBuffered`, `Unavailable`.
    pub async fn get(&self, call: &Call, key: &Key) -> Result<Shown<Option<Bytes>>> {
        match self.core.calls.owner_elsewhere(call).await? {
            Some(owner) => self.core.calls.forward_get(&owner, call, key).await,
            None => self.core.calls.get(call, key).await,
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
        match self.core.calls.owner_elsewhere(call).await? {
            Some(owner) => {
                self.core
                    .calls
                    .forward_write(&owner, call, key, value)
                    .await
            }
            None => self.core.calls.write(call, key, value).await,
        }
    }

    /// Has `effect` happen once the transaction has committed, durably: at least once, under an id of the transaction's.
    /// `place` says which of its effects it is, from zero, so that a repeat is known for one; none: one more.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `TooMuchBuffered`, `Invalid`, `TransactionFinished`,
    /// `NoSuchTransaction`, `Unavailable`.
    pub async fn send(&self, call: &Call, effect: Effect, place: Option<u32>) -> Result<()> {
        match self.core.calls.owner_elsewhere(call).await? {
            Some(owner) => {
                self.core
                    .calls
                    .forward_send(&owner, call, effect, place)
                    .await
            }
            None => self.core.calls.send(call, effect, place).await,
        }
    }

    /// Whether an effect that somebody else keeps until it may leave could be sent.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `Invalid`, `Unavailable`.
    pub async fn check_effect(&self, effect: &Effect) -> Result<()> {
        self.core.effects.check_effect(effect)?;
        self.core.effects.check_destination(effect).await
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
        self.core.effects.send_one(effect, id).await?;
        self.core.context.counters.sent();
        Ok(())
    }

    /// Makes all writes count, all at once; durable when it returns. A repeat is answered alike.
    ///
    /// Errors: `OutcomeUnknown`: repeat it; `Conflict` and `SnapshotTooOld` of a serializable one: begin again;
    /// `TransactionFinished`, `NoSuchTransaction`, `Expired`, `NoRoom`.
    pub async fn commit(&self, call: &Call) -> Result<Committed> {
        if let Some(owner) = self.core.calls.owner_elsewhere(call).await? {
            match self.core.calls.forward_commit(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(answer?),
            }
        }
        self.core.calls.commit(call).await
    }

    /// Makes all writes count, all at once, and does not wait until that is durable: whoever takes the answer out of the house
    /// [waits](Self::externalize) for its point. Errors: as [`Engine::commit`].
    pub async fn commit_shown(&self, call: &Call) -> Result<Shown<Committed>> {
        if self.core.calls.owner_elsewhere(call).await?.is_some() {
            return self.commit(call).await.map(Shown::durable);
        }
        self.core.calls.commit_shown(call).await
    }

    /// Drops all writes. A repeat is answered alike.
    ///
    /// Errors: `TransactionFinished` if it has committed or was begun anew; `NoSuchTransaction`.
    pub async fn abort(&self, call: &Call) -> Result<()> {
        if let Some(owner) = self.core.calls.owner_elsewhere(call).await? {
            match self.core.calls.forward_abort(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(answer?),
            }
        }
        self.core.calls.abort(call).await
    }

    /// What has become of the latest attempt of a transaction. Errors: as [`Engine::status_of`].
    pub async fn status(&self, id: &TransactionId) -> Result<Shown<Outcome>> {
        self.status_of(&Call::latest(id.clone())).await
    }

    /// What has become of a transaction, or of one attempt of it. Errors: `NoSuchTransaction`, `Unavailable`.
    pub async fn status_of(&self, call: &Call) -> Result<Shown<Outcome>> {
        self.core.calls.end_if_begun_elsewhere(call).await?;
        if let Some(owner) = self.core.calls.owner_elsewhere(call).await? {
            match self.core.calls.forward_status(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(Shown::durable(answer?)),
            }
        }
        self.core.calls.status(call).await
    }

    /// Plain state: the newest committed value of `key`.
    pub async fn get_now(&self, key: &Key) -> Result<Shown<Option<Bytes>>> {
        self.core.calls.get_now(key).await
    }

    /// Plain state: a page of its keys with their values, as they are while it is read (T18).
    ///
    /// Errors: `TooMuchBuffered` if too much is being read, `Unavailable`.
    pub async fn list_now(&self, listing: &Listing) -> Result<Shown<Page>> {
        self.core.calls.list_now(listing).await
    }

    /// Plain state: a transaction of one write (none: a deletion); durable when it returns.
    pub async fn put_now(&self, key: Key, value: Option<Bytes>) -> Result<Committed> {
        self.core.context.check_room(if value.is_some() {
            Room::Free
        } else {
            Room::Scarce
        })?;
        self.core.calls.put_now(key, value).await
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
        self.core.peer_server.answer_peer(message).await
    }

    /// What it has done and holds.
    pub fn figures(&self) -> Figures {
        let node = self.core.serving.current();
        let figures = self.core.context.counters.figures();
        let (effects_unsent, effects_failing) = self.core.effects.outbox.counts();
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

impl Core {
    /// Each part is given those that it stands on.
    fn new(
        context: Arc<Context>,
        destinations: Destinations,
        objects: Option<SharedObjects>,
        membership: Arc<dyn Membership>,
        peers: Option<Arc<dyn Peers>>,
    ) -> Self {
        let serving = Arc::<Serving>::default();
        let cache = Arc::new(Cache::new(&context.config));
        let attempts = Arc::<Attempts>::default();
        let cluster = Arc::new(Cluster::new(
            Arc::clone(&context),
            Arc::clone(&cache),
            Arc::clone(&attempts),
            membership,
            peers,
        ));
        let idempotency_keys = Arc::new(IdempotencyKeys::new(Arc::clone(&context)));
        let serializable = Arc::new(Serializable::new(
            Arc::clone(&context),
            Arc::clone(&cache),
            Arc::clone(&cluster),
            Arc::clone(&idempotency_keys),
        ));
        let packing = Arc::new(Packing::new(Arc::clone(&context), objects));
        let effects = Arc::new(Effects::new(Arc::clone(&context), destinations));
        let loader = Arc::new(Loader::new(
            Arc::clone(&context),
            Arc::clone(&cache),
            Arc::clone(&attempts),
            Arc::clone(&cluster),
            Arc::clone(&serializable),
            Arc::clone(&packing),
        ));
        let collection = Arc::new(Collection {
            context: Arc::clone(&context),
            cache: Arc::clone(&cache),
            attempts: Arc::clone(&attempts),
            cluster: Arc::clone(&cluster),
            serializable: Arc::clone(&serializable),
            idempotency_keys: Arc::clone(&idempotency_keys),
            packing: Arc::clone(&packing),
            loader: Arc::clone(&loader),
        });
        let calls = Arc::new(Calls {
            context: Arc::clone(&context),
            serving: Arc::clone(&serving),
            cache: Arc::clone(&cache),
            attempts: Arc::clone(&attempts),
            cluster: Arc::clone(&cluster),
            serializable: Arc::clone(&serializable),
            idempotency_keys: Arc::clone(&idempotency_keys),
            effects: Arc::clone(&effects),
            packing: Arc::clone(&packing),
            loader,
            collection: Arc::clone(&collection),
            full_look_ups: Semaphore::new(FULL_LOOK_UPS_MAX),
        });
        let recovery = Arc::new(Recovery {
            context: Arc::clone(&context),
            serving: Arc::clone(&serving),
            cache: Arc::clone(&cache),
            attempts: Arc::clone(&attempts),
            cluster: Arc::clone(&cluster),
            serializable: Arc::clone(&serializable),
            idempotency_keys: Arc::clone(&idempotency_keys),
            effects: Arc::clone(&effects),
            packing,
            collection,
            calls: Arc::clone(&calls),
        });
        let peer_server = PeerServer {
            context: Arc::clone(&context),
            serving: Arc::clone(&serving),
            cluster: Arc::clone(&cluster),
            serializable,
            calls: Arc::clone(&calls),
        };
        Self {
            context,
            serving,
            cache,
            attempts,
            cluster,
            idempotency_keys,
            effects,
            calls,
            recovery,
            peer_server,
        }
    }
}
