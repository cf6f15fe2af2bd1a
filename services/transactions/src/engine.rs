//! The public API: composes the parts and routes each call to one of them.
//!
//! Public calls return boxed futures, here and in the other services: rustc compiles the body of an
//! `async fn` in each crate that polls it, and so compiled the services again in each front end.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use ports::{Clock, DurabilityPoint, Entropy, KeyValue, Read};
use tokio::sync::{self, Semaphore};

use crate::{
    Config, Error, Result,
    attempts::open_attempts::Attempts,
    cache::Cache,
    calls::{
        Calls,
        begin::FULL_LOOK_UPS_MAX,
        conditional::Expected,
        list::{Listing, Page},
        open::OpenAttempt,
        volumes::EngineVolumes,
        volumes_leader::VolumesLeader,
    },
    cluster::{
        Cluster,
        forwarded::{Asked, Said, not_understood},
        membership::Membership,
        peers::Peers,
        probe::Probes,
    },
    collection::Collection,
    context::{Context, SharedObjects, Tasks},
    effects::{Destinations, Effect, Effects, outbox::Outbox},
    figures::{Counters, Figures},
    idempotency_keys::IdempotencyKeys,
    loader::Loader,
    model::{Begin, Begun, Call, Committed, Key, NodeId, Outcome, TransactionId, Versioned},
    packing::Packing,
    recovery::Recovery,
    sequencing::{Sequencing, keyspace::Keyspaces},
    serializable::{
        Volumes,
        model::{CheckedObjects, Unreferenced},
        volumes::VolumeName,
    },
    serving::Serving,
    storage::node_registry,
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
    pub(crate) calls: Arc<Calls>,
    pub(crate) recovery: Arc<Recovery>,
    tasks: Arc<Tasks>,
}

impl Engine {
    pub(crate) fn new(
        parts: Parts,
        destinations: Destinations,
        (objects, volume_objects): (Option<SharedObjects>, Option<SharedObjects>),
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
            volume_objects,
            is_alone: peers.is_none(),
            tasks: Arc::downgrade(&tasks),
        });
        let cluster = Arc::new(Cluster {
            cache: Arc::new(Cache::new(&context.config)),
            attempts: Arc::<Attempts>::default(),
            membership,
            peers,
            probes: Probes::default(),
            state: Mutex::default(),
            context,
        });
        let calls = Arc::new(compose(cluster, destinations, objects));
        Self {
            recovery: Arc::new(Recovery {
                calls: Arc::clone(&calls),
            }),
            calls,
            tasks,
        }
    }

    /// The volumes of its store. Their handles are clones of the engine, too.
    pub fn volumes(&self) -> Arc<dyn Volumes> {
        Arc::new(EngineVolumes {
            calls: Arc::clone(&self.calls),
            _tasks: Arc::clone(&self.tasks),
        })
    }

    /// Reads all objects that hold large values of a volume, and finds those that hold none. Those of
    /// the volumes that it was cloned from are theirs. Works only if nothing else uses the volume.
    /// Errors: `NoSuchVolume`, `Unavailable`, `Corrupt`.
    pub fn check_objects<'a>(
        &'a self,
        name: &'a VolumeName,
        others: Unreferenced,
    ) -> BoxFuture<'a, Result<CheckedObjects>> {
        let volumes = EngineVolumes {
            calls: Arc::clone(&self.calls),
            _tasks: Arc::clone(&self.tasks),
        };
        Box::pin(async move { volumes.check_objects(name, others).await })
    }

    /// The node that serves volumes. Only there do calls of [`Self::volumes`] succeed. Errors:
    /// `Unavailable`, also while it is not known.
    pub fn volumes_leader(&self) -> Result<VolumesLeader> {
        self.calls.volumes_leader()
    }

    /// The first bytes of a connection for volumes to node `to`. They contain the store's secret.
    /// Errors: `Unavailable`.
    pub fn volumes_head(&self, to: NodeId) -> Result<Vec<u8>> {
        self.calls.volumes_head(to)
    }

    /// The sender of a connection for volumes, if this node serves them and `head` has the store's
    /// secret.
    pub fn admits_volumes(&self, head: &[u8]) -> Option<NodeId> {
        self.calls.admits_volumes(head)
    }

    /// Begins a transaction, or another attempt of it. Earlier attempts of the same client id end
    /// (T-5).
    ///
    /// The first serializable transaction that uses a keyspace makes it sequenced permanently, and
    /// waits for that.
    ///
    /// Errors: `TooManyOpen`, `Invalid`, `Expired`, `Unavailable`, `NoRoom`.
    pub fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Read<Begun>>> {
        Box::pin(async move {
            if begin.id.is_some() {
                // A client id needs a row. Without one, a transaction may read on a full disk.
                self.calls.context.check_room()?;
            }
            self.calls.begin(begin).await
        })
    }

    /// The value of `key` for this transaction, or `None` if the key is absent or deleted.
    ///
    /// Errors: `NoValidVersion`, `SnapshotTooOld`, `Invalid` in a keyspace that a serializable
    /// begin did not name, `TransactionFinished`, `NoSuchTransaction`, `TooLarge`,
    /// `TooMuchBuffered`, `Unavailable`.
    pub fn get<'a>(
        &'a self,
        call: &'a Call,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Read<Option<Bytes>>>> {
        Box::pin(async move {
            match self
                .calls
                .elsewhere(call, || Asked::Get(key.clone()))
                .await?
            {
                Some(Said::Value(value)) => Ok(Read::durable(value)),
                Some(_) => Err(not_understood()),
                None => self.calls.get(call, key).await,
            }
        })
    }

    /// Sets `key` once the transaction commits.
    ///
    /// A large value is in the store when this returns, and invisible to other transactions until
    /// the commit.
    ///
    /// Errors: `NoRoom`, `TooLarge`, `TooMuchBuffered`, `TransactionFinished`, `NoSuchTransaction`,
    /// `Unavailable`. After `NoRoom` the transaction may be over: a value that cannot be spilled
    /// ends it.
    pub fn put<'a>(&'a self, call: &'a Call, key: Key, value: Bytes) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.calls.context.check_room()?;
            self.write(call, key, Some(value)).await
        })
    }

    /// Deletes `key` once the transaction commits. Errors: those of [`Engine::put`].
    pub fn delete<'a>(&'a self, call: &'a Call, key: Key) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.write(call, key, None).await })
    }

    async fn write(&self, call: &Call, key: Key, value: Option<Bytes>) -> Result<()> {
        let asked = || Asked::Write(key.clone(), value.clone());
        if self.calls.elsewhere(call, asked).await?.is_some() {
            return Ok(());
        }
        self.calls.write(call, key, value).await
    }

    /// Runs `effect` at least once after the transaction has committed durably, under an id derived
    /// from the transaction's. `place` is the index of the effect in its transaction, from zero,
    /// which makes a repeat recognisable. `None` appends one.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `TooMuchBuffered`, `Invalid`,
    /// `TransactionFinished`, `NoSuchTransaction`, `Unavailable`.
    pub fn send<'a>(
        &'a self,
        call: &'a Call,
        effect: Effect,
        place: Option<u32>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let asked = || Asked::Send(effect.clone(), place);
            if self.calls.elsewhere(call, asked).await?.is_some() {
                return Ok(());
            }
            self.calls.send(call, effect, place).await
        })
    }

    /// Checks whether an effect that the caller keeps until it may be sent is valid.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `TooLarge`, `Invalid`, `Unavailable`.
    pub fn check_effect<'a>(&'a self, effect: &'a Effect) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.calls.effects.check_effect(effect)?;
            self.calls.effects.check_destination(effect).await
        })
    }

    /// The most effects of one transaction.
    pub fn effects_max(&self) -> usize {
        self.calls.context.config.effects_max
    }

    /// Sends an effect that the caller has kept, under an id of the caller's. When this returns,
    /// the destination has it durably. The effect may have been sent even if this fails: the caller
    /// repeats it under the same id.
    ///
    /// Errors: `NoSuchQueue`, `NoSuchFunction`, `Unavailable`, `OutcomeUnknown`.
    pub fn send_now(&self, effect: Effect, id: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.calls.effects.send_one(effect, id).await?;
            self.calls.context.counters.lock().effects_sent += 1;
            Ok(())
        })
    }

    /// Keeps `result` with the commit that follows, at most [`RESULT_BYTES_MAX`] bytes. A later
    /// begin of the same client id returns it. A transaction with a generated id keeps none.
    ///
    /// Errors: `NoRoom`, `TooLarge`, `TooMuchBuffered`, `TransactionFinished`, `NoSuchTransaction`,
    /// `Unavailable`.
    ///
    /// [`RESULT_BYTES_MAX`]: crate::model::RESULT_BYTES_MAX
    pub fn keep_result<'a>(&'a self, call: &'a Call, result: Bytes) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let asked = || Asked::Keep(result.clone());
            if self.calls.elsewhere(call, asked).await?.is_some() {
                return Ok(());
            }
            self.calls.keep_result(call, result).await
        })
    }

    /// The result that the commit of this id has kept, for a caller that knows of the commit.
    /// Errors: `Unavailable`.
    pub fn kept_result<'a>(
        &'a self,
        id: &'a TransactionId,
    ) -> BoxFuture<'a, Result<Read<Option<Bytes>>>> {
        Box::pin(async move {
            let (decision, point) = self.calls.serving.node()?.store.decision(id).await?;
            let value = decision.and_then(|decision| decision.result);
            Ok(Read { value, point })
        })
    }

    /// Commits all writes atomically and waits until they are durable. A repeat returns the same
    /// answer.
    ///
    /// Errors: `OutcomeUnknown`: repeat the commit. `Conflict` and `SnapshotTooOld` of a
    /// serializable transaction: begin again. `TransactionFinished`, `NoSuchTransaction`,
    /// `Expired`, `NoRoom`.
    pub fn commit<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Committed>> {
        Box::pin(async move {
            match self.calls.elsewhere(call, || Asked::Commit).await? {
                Some(Said::Committed(after)) => Ok(Committed { after }),
                Some(_) => Err(not_understood()),
                None => self.calls.commit(call).await,
            }
        })
    }

    /// Commits all writes atomically without waiting for durability. A caller that externalizes the
    /// answer first [waits](Self::externalize) for its point. Errors: those of [`Engine::commit`].
    pub fn commit_shown<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Read<Committed>>> {
        Box::pin(async move {
            match self.calls.elsewhere(call, || Asked::Commit).await? {
                Some(Said::Committed(after)) => Ok(Read::durable(Committed { after })),
                Some(_) => Err(not_understood()),
                None => self.calls.commit_shown(call).await,
            }
        })
    }

    /// Drops all writes. A repeat returns the same answer.
    ///
    /// Errors: `TransactionFinished` if it has committed or was begun anew; `NoSuchTransaction`.
    pub fn abort<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.calls.elsewhere(call, || Asked::Abort).await?.is_some() {
                return Ok(());
            }
            self.calls.abort(call).await
        })
    }

    /// The outcome of the latest attempt of a transaction. Errors: those of [`Engine::status_of`].
    pub fn status<'a>(&'a self, id: &'a TransactionId) -> BoxFuture<'a, Result<Read<Outcome>>> {
        Box::pin(async move { self.status_of(&Call::latest(id.clone())).await })
    }

    /// The outcome of a transaction, or of one attempt. Errors: `NoSuchTransaction`, `Unavailable`.
    pub fn status_of<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Read<Outcome>>> {
        Box::pin(async move {
            self.calls.end_if_begun_elsewhere(call).await?;
            match self.calls.elsewhere(call, || Asked::Status).await? {
                Some(Said::Outcome(outcome)) => Ok(Read::durable(outcome)),
                Some(_) => Err(not_understood()),
                None => self.calls.status(call).await,
            }
        })
    }

    /// Plain state: the newest committed value of `key`.
    pub fn get_now<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Read<Option<Bytes>>>> {
        Box::pin(async move { self.calls.get_now(key).await })
    }

    /// The same with the version of the value.
    pub fn get_version_now<'a>(
        &'a self,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Read<Option<Versioned>>>> {
        Box::pin(async move { self.calls.get_version_now(key).await })
    }

    /// Plain state: a page of its keys with their values, each as of some moment during the read
    /// (T18).
    ///
    /// Errors: `TooMuchBuffered` if too much is being read, `Unavailable`.
    pub fn list_now<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<Read<Page>>> {
        Box::pin(async move { self.calls.list_now(listing).await })
    }

    /// Plain state: a transaction of one write, or of one deletion if `value` is `None`. Durable
    /// when it returns.
    pub fn put_now(&self, key: Key, value: Option<Bytes>) -> BoxFuture<'_, Result<Committed>> {
        Box::pin(async move {
            if value.is_some() {
                self.calls.context.check_room()?;
            }
            self.calls.put_now(key, value).await
        })
    }

    /// Plain state: the same write if `expected` holds, as one serializable transaction. The first
    /// one makes the keyspace sequenced permanently (T-3). `None`: it does not hold, and nothing
    /// was written. Once begun, it runs to its end even if this is dropped.
    ///
    /// Errors: `Conflict` if other writes of the key got ahead too often, those of
    /// [`Engine::put_now`].
    pub fn put_now_if(
        &self,
        key: Key,
        value: Option<Bytes>,
        expected: Expected,
    ) -> BoxFuture<'_, Result<Read<Option<Committed>>>> {
        Box::pin(async move {
            if value.is_some() {
                self.calls.context.check_room()?;
            }
            self.calls.put_if(key, value, expected).await
        })
    }

    /// Waits until everything at or before `point` is durable.
    ///
    /// Errors: `Unavailable`, also if the store has lost it: then the answer must not be
    /// externalized.
    pub fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.calls.context.key_value.is_durable(point) {
                return Ok(());
            }
            self.calls.serving.node()?.store.externalize(point).await
        })
    }

    /// The present node of this process; it changes with every restart. Errors: `Unavailable` while
    /// there is none.
    pub fn node(&self) -> Result<NodeId> {
        let node = self.calls.serving.node()?;
        self.calls.cluster.may_answer(&node)?;
        Ok(node.id)
    }

    /// Whether no transaction of `node` can commit any more: for services over transactions that
    /// assign each job to one process.
    ///
    /// Membership alone does not prove that. A view may be older than a node that has just joined,
    /// and a lost member may have commits on their way. The node's row proves it, once its log is
    /// sealed and resolved.
    ///
    /// Errors: `Unavailable`, also while it is no longer a member and its log is not resolved yet.
    pub fn is_gone(&self, node: NodeId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let members = self.calls.cluster.membership.members();
            if members.nodes.contains_key(&node) {
                return Ok(false);
            }
            let serving = self.calls.serving.node()?;
            if node_registry::is_live(&serving.store, node).await? {
                let say = format!("node {} is missed, and its log is not resolved yet", node.0);
                return Err(Error::unavailable(&say));
            }
            Ok(true)
        })
    }

    /// Waits until the membership view differs from `view`; returns the new view. Zero: waits until
    /// there are members.
    pub fn members_changed(&self, view: u64) -> BoxFuture<'_, u64> {
        Box::pin(async move { self.calls.cluster.membership.changed(view).await.view })
    }

    /// Answers any message of another node.
    pub fn answer_peer(&self, message: Bytes) -> BoxFuture<'_, Bytes> {
        Box::pin(async move { self.calls.answer_peer(message).await })
    }

    /// The oldest open attempts of this node that began after the one at the place `after`, from
    /// zero. At most [`OPEN_PAGE_MAX`](crate::open::OPEN_PAGE_MAX).
    pub fn open_attempts(&self, after: u64) -> Vec<OpenAttempt> {
        self.calls.open_attempts(after)
    }

    /// The figures of this engine.
    pub fn figures(&self) -> Figures {
        let node = self.calls.serving.current();
        let figures = *self.calls.context.counters.lock();
        let (effects_unsent, effects_failing) = self.calls.effects.outbox.counts();
        let (packs, packs_bytes) = node.as_ref().map_or((0, 0), |node| node.packs.sums());
        let (index_bytes, data_cache_bytes) = {
            let cache = self.calls.cache.lock();
            (cache.index.bytes(), cache.data.bytes())
        };
        let (ahead, members_unheard) = {
            let cluster = self.calls.cluster.lock();
            (
                cluster.neighbours.ahead(),
                cluster.neighbours.silent_members(),
            )
        };
        Figures {
            packs,
            packs_bytes,
            starting_over: self.calls.serving.is_fenced(),
            open: self.calls.attempts.lock().len() as u64,
            sequenced_keyspaces: self.calls.sequencing.keyspaces.lock().count_sequenced(),
            slots: node.as_ref().map_or(0, |node| node.log.slots()),
            index_bytes,
            data_cache_bytes,
            effects_unsent,
            effects_failing,
            kept_names: self.calls.idempotency_keys.lock().values().sum(),
            clock_ahead_ms: ahead.as_millis() as u64,
            members_unheard,
            ..figures
        }
    }
}

/// Gives each part those that it stands on.
fn compose(
    cluster: Arc<Cluster>,
    destinations: Destinations,
    objects: Option<SharedObjects>,
) -> Calls {
    let (context, cache) = (cluster.context.clone(), cluster.cache.clone());
    let attempts = cluster.attempts.clone();
    let idempotency_keys = Arc::new(IdempotencyKeys {
        context: context.clone(),
        periods: Mutex::default(),
    });
    let sequencing = Arc::new(Sequencing {
        context: context.clone(),
        cache: cache.clone(),
        cluster: cluster.clone(),
        idempotency_keys: idempotency_keys.clone(),
        keyspaces: Keyspaces::default(),
        marking: sync::Mutex::default(),
    });
    let packing = Arc::new(Packing::new(context.clone(), objects));
    let reading = context.config.read_bytes_max.min(Semaphore::MAX_PERMITS);
    let loader = Arc::new(Loader {
        context: context.clone(),
        cache: cache.clone(),
        attempts: attempts.clone(),
        cluster: cluster.clone(),
        sequencing: sequencing.clone(),
        packing: packing.clone(),
        reading: Arc::new(Semaphore::new(reading)),
    });
    let collection = Arc::new(Collection {
        context: context.clone(),
        cache: cache.clone(),
        attempts: attempts.clone(),
        cluster: cluster.clone(),
        sequencing: sequencing.clone(),
        idempotency_keys: idempotency_keys.clone(),
        packing: packing.clone(),
        loader: loader.clone(),
    });
    Calls {
        serving: Serving::default(),
        cache,
        attempts,
        cluster,
        sequencing,
        idempotency_keys,
        effects: Arc::new(Effects {
            context: context.clone(),
            destinations,
            known_queues: Mutex::default(),
            outbox: Outbox::default(),
        }),
        packing,
        loader,
        collection,
        full_look_ups: Semaphore::new(FULL_LOOK_UPS_MAX),
        context,
    }
}
