//! The shards of all far stores that workflows name.
//!
//! All workflows of one far store share its shard, so they see each other's writes. Each run has a
//! lane of its own. A task of its own opens each shard, once for all callers, so an unreachable far
//! store delays no request to another one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use functions::manifest::workflow::{Synchrony as Mode, place_of};
use parking_lot::Mutex;
use ports::{Monotonic, key_value::SharedKeyValue};
use synchrony::{Awaited, Ended, Stores};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};
use transactions::Engine;

use super::{
    far_store::{FarStore, FarStores},
    location::StoreLocation,
    shard::{CHECK_EVERY, Shard},
    store_identity,
};
use crate::{Broken, Error, Result, env::Env, runner::Runner, storage::Store};

/// The prefix of a shard's name in both of its stores. The far store's place follows.
const SHARD_PREFIX: &str = "landfast/";
/// How long a caller waits for a shard to open. A shard of another process opens only after that
/// process's lease. This is shorter than callers wait for a response, so that they learn the cause.
const OPEN_MAX: Duration = Duration::from_millis(4_500);

/// A change of a shard that the scheduler reacts to.
#[derive(Debug)]
pub(crate) enum ShardEvent {
    /// The shard was opened: it may have runs that no process executes.
    Opened(StoreLocation),
    /// The shard ended with its near store: it may have unsent writes that no caller waits for.
    Ended(StoreLocation),
}

#[derive(Debug)]
pub(crate) struct Shards {
    pub(super) near_rows: SharedKeyValue,
    pub(super) engine: Engine,
    pub(super) runner: Arc<dyn Runner>,
    pub(super) far_stores: Arc<dyn FarStores>,
    pub(super) env: Arc<Env>,
    pub(super) slots: Mutex<BTreeMap<Arc<str>, Arc<Slot>>>,
    pub(super) events: mpsc::Sender<ShardEvent>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) place: Arc<str>,
    state: Mutex<SlotState>,
    /// What the opening under way waits for.
    awaited: watch::Sender<Awaited>,
    /// How many attempts to open the shard have ended.
    attempts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct SlotState {
    address: String,
    shard: Option<Shard>,
    opening: Option<AbortHandle>,
    /// Why the last attempt to open the shard failed.
    failed: Option<Arc<Error>>,
    /// The epoch of the last shard that was open here and has ended or is being released.
    ended_epoch: Option<u64>,
    /// When the shard was released, and the state of the store then.
    released: Option<(Monotonic, FarStore)>,
}

impl Slot {
    fn new(place: Arc<str>, address: &str) -> Arc<Self> {
        let state = SlotState {
            address: address.to_owned(),
            ..SlotState::default()
        };
        Arc::new(Self {
            place,
            state: Mutex::new(state),
            awaited: watch::Sender::default(),
            attempts: watch::Sender::new(0),
        })
    }

    /// Sets the address by which the far store is reached from now on.
    pub(super) fn set_address(&self, address: &str) {
        address.clone_into(&mut self.state.lock().address);
    }

    /// Why the shard is not open yet.
    fn trouble(&self) -> &'static str {
        match *self.awaited.borrow() {
            Awaited::Owner => {
                "another server is at work there, or was so seconds ago: \
                 ask that one, or this one again later"
            }
            Awaited::Stores => "it does not answer",
        }
    }

    fn health(&self, now: Monotonic) -> Option<FarStore> {
        let state = self.state.lock();
        match (&state.shard, &state.failed) {
            (Some(shard), _) => Some(FarStore::of(&shard.synchrony.health())),
            (None, Some(failed)) => Some(FarStore::unopened(failed.to_string())),
            (None, None) if state.opening.is_some() => {
                Some(FarStore::unopened(self.trouble().to_owned()))
            }
            (None, None) => {
                let (at, store) = state.released.clone()?;
                Some(store.after(now.since(at)))
            }
        }
    }

    /// Aborts an attempt to open the shard, or releases the open one.
    async fn release(&self) {
        let shard = {
            let mut state = self.state.lock();
            if let Some(opening) = state.opening.take() {
                opening.abort();
            }
            state.shard.take()
        };
        if let Some(shard) = shard {
            shard.release(&self.place).await;
        }
    }
}

impl Shards {
    fn slot(&self, place: &str) -> Option<Arc<Slot>> {
        self.slots.lock().get(place).cloned()
    }

    /// Makes a far store known. If it is known, its address stays.
    pub(super) fn add(&self, address: &str) -> Arc<Slot> {
        let place: Arc<str> = place_of(address).into();
        let mut slots = self.slots.lock();
        let slot = slots.entry(Arc::clone(&place));
        Arc::clone(slot.or_insert_with(|| Slot::new(place, address)))
    }

    /// The health of each far store that was requested, by place. Does not block.
    pub(crate) fn health(&self) -> BTreeMap<String, FarStore> {
        let (slots, now) = (self.slots.lock(), self.env.clock.monotonic());
        let health =
            |(place, slot): (&Arc<str>, &Arc<Slot>)| Some((place.to_string(), slot.health(now)?));
        slots.iter().filter_map(health).collect()
    }

    pub(super) fn is_failing(&self, place: &str) -> bool {
        self.slot(place).is_some_and(|slot| {
            let state = slot.state.lock();
            let shard = state.shard.as_ref();
            shard.is_some_and(|shard| shard.synchrony.health().failing.is_some())
        })
    }

    pub(crate) async fn release(&self) {
        let slots = std::mem::take(&mut *self.slots.lock());
        for slot in slots.into_values() {
            slot.release().await;
        }
    }

    /// A store in the shard, with a lane of its own.
    ///
    /// Errors: `Unavailable` after [`OPEN_MAX`], while the opening continues; those of opening.
    pub(super) async fn store(self: &Arc<Self>, place: &str) -> Result<Store> {
        let unknown = || ports::Error::unavailable("find a far store");
        let slot = self.slot(place).ok_or_else(unknown)?;
        let mut attempts = slot.attempts.subscribe();
        if let Some(store) = self.open_store(&slot)? {
            return Ok(store);
        }
        self.start_opening(&slot);
        let unavailable = || {
            let (place, trouble) = (&slot.place, slot.trouble());
            ports::Error::unavailable(format!("open the far store {place}: {trouble}"))
        };
        tokio::select! {
            biased;
            _ = attempts.changed() => {}
            () = self.env.clock.sleep(OPEN_MAX) => return Err(unavailable().into()),
        }
        if let Some(store) = self.open_store(&slot)? {
            return Ok(store);
        }
        let failed = slot.state.lock().failed.clone();
        Err(failed.map_or_else(|| unavailable().into(), |failed| failed.duplicate()))
    }

    /// A store in an open shard; none: the shard is not open, or has ended with its near store.
    fn open_store(&self, slot: &Slot) -> Result<Option<Store>> {
        let mut state = slot.state.lock();
        if let Some(ended) = state
            .shard
            .take_if(|shard| shard.synchrony.health().ended.is_some())
        {
            ended.outbox.stop();
            state.ended_epoch = Some(ended.synchrony.epoch());
        }
        let shard = state.shard.as_mut();
        let store = shard.map(|shard| shard.store(&self.env.options));
        store.transpose()
    }

    /// The strictest mode of the deployed workflows of this far store. A shard has it until it is
    /// opened again.
    fn strictest_mode(&self, place: &str) -> Mode {
        let deployed = self.runner.workflows();
        let is_here = |far: &str| place_of(far) == place;
        let here = deployed
            .values()
            .filter(|workflow| workflow.far.as_deref().is_some_and(is_here));
        here.map(|workflow| workflow.synchrony)
            .max()
            .unwrap_or_default()
    }

    /// Starts to open the shard, unless it is open or being opened.
    fn start_opening(self: &Arc<Self>, slot: &Arc<Slot>) {
        let mut state = slot.state.lock();
        if state.opening.is_some() || state.shard.is_some() {
            return;
        }
        slot.awaited.send_replace(Awaited::Stores);
        let (shards, slot) = (Arc::clone(self), Arc::clone(slot));
        let task = tokio::spawn(async move {
            let opened = shards.open(&slot).await;
            shards.finish_opening(&slot, opened).await;
        });
        state.opening = Some(task.abort_handle());
    }

    async fn finish_opening(&self, slot: &Arc<Slot>, opened: Result<Shard>) {
        let ended = opened.as_ref().ok().map(|shard| shard.synchrony.ended());
        {
            let mut state = slot.state.lock();
            state.opening = None;
            match opened {
                Ok(shard) => {
                    if self.env.options.among_others {
                        let (slot, env) = (Arc::downgrade(slot), Arc::clone(&self.env));
                        tokio::spawn(keep_or_release(slot, shard.synchrony.epoch(), env));
                    }
                    state.shard = Some(shard);
                    state.failed = None;
                }
                Err(error) => state.failed = Some(Arc::new(error)),
            }
        }
        slot.attempts.send_modify(|attempts| *attempts += 1);
        if let Some(ended) = ended {
            let location = StoreLocation::Far(Arc::clone(&slot.place));
            // No receiver exists before the service starts, nor after it stops.
            let _ = self.events.send(ShardEvent::Opened(location.clone())).await;
            if !self.env.breaks(Broken::WaitsForACaller) {
                let events = self.events.clone();
                tokio::spawn(async move {
                    // If another process has taken the shard, that process takes care of it.
                    if ended.await == Ended::NearLost {
                        let _ = events.send(ShardEvent::Ended(location)).await;
                    }
                });
            }
        }
    }

    async fn open(&self, slot: &Slot) -> Result<Shard> {
        let (address, ended_epoch) = {
            let state = slot.state.lock();
            (state.address.clone(), state.ended_epoch)
        };
        let far = self.far_stores.open(&address).await?;
        if store_identity::is_same_store(&*self.near_rows, &*far, &self.env).await? {
            return Err(Error::FarIsNear(slot.place.to_string()));
        }
        let stores = Stores {
            near: Arc::clone(&self.near_rows),
            far,
            shard: Bytes::from([SHARD_PREFIX, &slot.place].concat()),
        };
        let mode = self.strictest_mode(&slot.place);
        let parts = (self.engine.clone(), &self.env);
        Shard::open(stores, (mode, ended_epoch), slot.awaited.clone(), parts).await
    }
}

/// Renews the lease of a shard that other processes may want, or releases the shard once it is idle:
/// see [`shard`](super::shard).
async fn keep_or_release(slot: Weak<Slot>, epoch: u64, env: Arc<Env>) {
    loop {
        env.clock.sleep(CHECK_EVERY).await;
        let Some(slot) = slot.upgrade() else { return };
        let (idle, lane) = {
            let mut state = slot.state.lock();
            let is_awaited = slot.attempts.receiver_count() > 0;
            let Some(shard) = state
                .shard
                .as_mut()
                .filter(|shard| shard.synchrony.epoch() == epoch)
            else {
                return;
            };
            let (lane, health) = (shard.outbox.lane(), shard.synchrony.health());
            let idle = (shard.is_idle() && !is_awaited)
                .then(|| state.shard.take())
                .flatten();
            if idle.is_some() {
                state.released = Some((env.clock.monotonic(), FarStore::of(&health)));
                // Set this even if the release fails: this process no longer uses the shard, so its
                // next request need not wait for its own lease.
                state.ended_epoch = Some(epoch);
            }
            (idle, lane)
        };
        if let Some(shard) = idle {
            return shard.release(&slot.place).await;
        }
        // The users of the shard see this error in their own requests.
        let _ = lane.renew_lease().await;
    }
}
