//! The public API: composes the parts and routes each call to one of them.

use std::sync::Arc;

use bytes::Bytes;
use ports::{Clock, DurabilityPoint, Entropy, KeyValue};
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

/// The ports that the service uses.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The store. A single node fences every earlier node on it; several nodes share it.
    pub key_value: Arc<dyn KeyValue>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

/// Transactions on one node. Clones share it. When the last clone is dropped, all tasks stop where
/// they are.
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
            core: Arc::new(Core::new(Lower::new(
                &context,
                destinations,
                objects,
                membership,
                peers,
            ))),
            _tasks: tasks,
        }
    }

    /// Begins a transaction, or another attempt of it. Earlier attempts of the same client id end
    /// (T-5).
    ///
    /// The first serializable transaction that uses a keyspace makes it sequenced permanently, and
    /// waits for that.
    ///
    /// Errors: `TooManyOpen`, `Invalid`, `Expired`, `Unavailable`, `NoRoom`.
    pub async fn begin(&self, begin: Begin) -> Result<Shown<Begun>> {
        if begin.id.is_some() {
            // A client id needs a row. Without one, a transaction may read on a full disk.
            self.core.context.check_room()?;
        }
        self.core.calls.begin(begin).await
    }

    /// The value of `key` for this transaction, or `None` if the key is absent or deleted.
    ///
    /// Errors: `NoValidVersion`, `SnapshotTooOld`, `Invalid` in a keyspace that a serializable
    /// begin did not name, `TransactionFinished`, `NoSuchTransaction`, `TooLarge`,
    /// `TooMuchBuffered`, `Unavailable`.
    pub async fn get(&self, call: &Call, key: &Key) -> Result<Shown<Option<Bytes>>> {
        match self.core.calls.owner_elsewhere(call).await? {
            Some(owner) => self.core.calls.forward_get(&owner, call, key).await,
            None => self.core.calls.get(call, key).await,
        }
    }

    /// Sets `key` once the transaction commits.
    ///
    /// A large value is in the store when this returns, and invisible to other transactions until
    /// the commit.
    ///
    /// Errors: `NoRoom`, `TooLarge`, `TooMuchBuffered`, `TransactionFinished`, `NoSuchTransaction`,
    /// `Unavailable`. After `NoRoom` the transaction may be over: a value that cannot be spilled
    /// ends it.
    pub async fn put(&self, call: &Call, key: Key, value: Bytes) -> Result<()> {
        self.core.context.check_room()?;
        self.write(call, key, Some(value)).await
    }

    /// Deletes `key` once the transaction commits. Errors: those of [`Engine::put`].
    pub async fn delete(&self, call: &Call, key: Key) -> Result<()> {
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

    /// Runs `effect` at least once after the transaction has committed durably, under an id derived
    /// from the transaction's. `place` is the index of the effect in its transaction, from zero,
    /// which makes a repeat recognisable. `None` appends one.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `TooMuchBuffered`, `Invalid`,
    /// `TransactionFinished`, `NoSuchTransaction`, `Unavailable`.
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

    /// Checks whether an effect that the caller keeps until it may be sent is valid.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `Invalid`, `Unavailable`.
    pub async fn check_effect(&self, effect: &Effect) -> Result<()> {
        self.core.effects.check_effect(effect)?;
        self.core.effects.check_destination(effect).await
    }

    /// The most effects of one transaction.
    pub fn effects_max(&self) -> usize {
        self.core.context.config.effects_max
    }

    /// Sends an effect that the caller has kept, under an id of the caller's. When this returns,
    /// the destination has it durably. The effect may have been sent even if this fails: the caller
    /// repeats it under the same id.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `Unavailable`, `OutcomeUnknown`.
    pub async fn send_now(&self, effect: Effect, id: Bytes) -> Result<()> {
        self.core.effects.send_one(effect, id).await?;
        self.core.context.counters.sent();
        Ok(())
    }

    /// Commits all writes atomically and waits until they are durable. A repeat returns the same
    /// answer.
    ///
    /// Errors: `OutcomeUnknown`: repeat the commit. `Conflict` and `SnapshotTooOld` of a
    /// serializable transaction: begin again. `TransactionFinished`, `NoSuchTransaction`,
    /// `Expired`, `NoRoom`.
    pub async fn commit(&self, call: &Call) -> Result<Committed> {
        if let Some(owner) = self.core.calls.owner_elsewhere(call).await? {
            match self.core.calls.forward_commit(&owner, call).await {
                Err(Failed::Unreachable(_)) => note_unreachable(&owner),
                answer => return Ok(answer?),
            }
        }
        self.core.calls.commit(call).await
    }

    /// Commits all writes atomically without waiting for durability. A caller that externalizes the
    /// answer first [waits](Self::externalize) for its point. Errors: those of [`Engine::commit`].
    pub async fn commit_shown(&self, call: &Call) -> Result<Shown<Committed>> {
        if self.core.calls.owner_elsewhere(call).await?.is_some() {
            return self.commit(call).await.map(Shown::durable);
        }
        self.core.calls.commit_shown(call).await
    }

    /// Drops all writes. A repeat returns the same answer.
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

    /// The outcome of the latest attempt of a transaction. Errors: those of [`Engine::status_of`].
    pub async fn status(&self, id: &TransactionId) -> Result<Shown<Outcome>> {
        self.status_of(&Call::latest(id.clone())).await
    }

    /// The outcome of a transaction, or of one attempt. Errors: `NoSuchTransaction`, `Unavailable`.
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

    /// Plain state: a page of its keys with their values, each as of some moment during the read
    /// (T18).
    ///
    /// Errors: `TooMuchBuffered` if too much is being read, `Unavailable`.
    pub async fn list_now(&self, listing: &Listing) -> Result<Shown<Page>> {
        self.core.calls.list_now(listing).await
    }

    /// Plain state: a transaction of one write, or of one deletion if `value` is `None`. Durable
    /// when it returns.
    pub async fn put_now(&self, key: Key, value: Option<Bytes>) -> Result<Committed> {
        if value.is_some() {
            self.core.context.check_room()?;
        }
        self.core.calls.put_now(key, value).await
    }

    /// Waits until everything at or before `point` is durable.
    ///
    /// Errors: `Unavailable`, also if the store has lost it: then the answer must not be
    /// externalized.
    pub async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.core.context.key_value.is_durable(point) {
            return Ok(());
        }
        self.core.serving.node()?.store.externalize(point).await
    }

    /// Answers any message of another node.
    pub async fn answer_peer(&self, message: Bytes) -> Bytes {
        self.core.peer_server.answer_peer(message).await
    }

    /// The figures of this engine.
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

/// The row answers instead: a status closes an undecided row, which is safe even if the node is
/// alive.
fn note_unreachable(owner: &Owner) {
    tracing::debug!(
        ?owner,
        "the owner of a transaction does not answer; its decision row does"
    );
}

/// The parts below the calls, each given those that it stands on.
#[derive(Clone)]
struct Lower {
    context: Arc<Context>,
    serving: Arc<Serving>,
    cache: Arc<Cache>,
    attempts: Arc<Attempts>,
    cluster: Arc<Cluster>,
    serializable: Arc<Serializable>,
    idempotency_keys: Arc<IdempotencyKeys>,
    effects: Arc<Effects>,
    packing: Arc<Packing>,
    loader: Arc<Loader>,
}

impl Lower {
    fn new(
        context: &Arc<Context>,
        destinations: Destinations,
        objects: Option<SharedObjects>,
        membership: Arc<dyn Membership>,
        peers: Option<Arc<dyn Peers>>,
    ) -> Self {
        let given = || Arc::clone(context);
        let cache = Arc::new(Cache::new(&context.config));
        let attempts = Arc::<Attempts>::default();
        let cluster = Cluster::new(
            given(),
            Arc::clone(&cache),
            Arc::clone(&attempts),
            membership,
            peers,
        );
        let cluster = Arc::new(cluster);
        let idempotency_keys = Arc::new(IdempotencyKeys::new(given()));
        let serializable = Arc::new(Serializable::new(
            given(),
            Arc::clone(&cache),
            Arc::clone(&cluster),
            Arc::clone(&idempotency_keys),
        ));
        let packing = Arc::new(Packing::new(given(), objects));
        let loader = Arc::new(Loader::new(
            given(),
            Arc::clone(&cache),
            Arc::clone(&attempts),
            Arc::clone(&cluster),
            Arc::clone(&serializable),
            Arc::clone(&packing),
        ));
        Self {
            context: given(),
            serving: Arc::default(),
            cache,
            attempts,
            cluster,
            serializable,
            idempotency_keys,
            effects: Arc::new(Effects::new(given(), destinations)),
            packing,
            loader,
        }
    }
}

impl Core {
    fn new(lower: Lower) -> Self {
        let above = lower.clone();
        let collection = Arc::new(Collection {
            context: above.context,
            cache: above.cache,
            attempts: above.attempts,
            cluster: above.cluster,
            serializable: above.serializable,
            idempotency_keys: above.idempotency_keys,
            packing: above.packing,
            loader: above.loader,
        });
        let above = lower.clone();
        let calls = Arc::new(Calls {
            context: above.context,
            serving: above.serving,
            cache: above.cache,
            attempts: above.attempts,
            cluster: above.cluster,
            serializable: above.serializable,
            idempotency_keys: above.idempotency_keys,
            effects: above.effects,
            packing: above.packing,
            loader: above.loader,
            collection: Arc::clone(&collection),
            full_look_ups: Semaphore::new(FULL_LOOK_UPS_MAX),
        });
        Self::with_calls(lower, collection, calls)
    }

    fn with_calls(lower: Lower, collection: Arc<Collection>, calls: Arc<Calls>) -> Self {
        let above = lower.clone();
        let recovery = Recovery {
            context: above.context,
            serving: above.serving,
            cache: above.cache,
            attempts: above.attempts,
            cluster: above.cluster,
            serializable: above.serializable,
            idempotency_keys: above.idempotency_keys,
            effects: above.effects,
            packing: above.packing,
            collection,
            calls: Arc::clone(&calls),
        };
        let above = lower.clone();
        let peer_server = PeerServer {
            context: above.context,
            serving: above.serving,
            cluster: above.cluster,
            serializable: above.serializable,
            calls: Arc::clone(&calls),
        };
        Self {
            context: lower.context,
            serving: lower.serving,
            cache: lower.cache,
            attempts: lower.attempts,
            cluster: lower.cluster,
            idempotency_keys: lower.idempotency_keys,
            effects: lower.effects,
            calls,
            recovery: Arc::new(recovery),
            peer_server,
        }
    }
}
