//! Where runs lie: near, or in the range of a far store.
//!
//! All workflows of one far store share its range, so that they see what each other writes; each run has a lane of its own. A far store
//! that is not reached keeps nobody waiting who wants another: each is opened by a task of its own, once, however many ask.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use functions::manifest::workflow::{Synchrony as Said, Workflow, place_of};
use parking_lot::Mutex;
use ports::{Clock, Entropy, Monotonic, Update, key_value::SharedKeyValue};
use synchrony::{Awaited, Ended, Health, Stores};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};
use transactions::Engine;

use crate::{
    Broken, Error, Options, Result, layout, mark,
    range::{LOOK_AFTER, Opening, Range},
    service::Runner,
    store::Store,
};

/// What the name of a range begins with in both of its stores; the rest is the place of the far store, as workflows say it.
const RANGE: &str = "landfast/";

/// Finds far stores.
#[async_trait]
pub trait FarStores: Debug + Send + Sync {
    /// The store at `address`. Errors: `Invalid` if that is none, `Unavailable`.
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue>;
}

/// Ranges that were opened or have ended and are not yet seen to; more wait.
const EVENTS_MAX: usize = 16;
/// How long a caller waits for a range: one that somebody else had is opened once that one's lease has run out. Less than callers wait
/// for an answer, so that they hear why there is none.
const OPEN_MAX: Duration = Duration::from_millis(4_500);

/// Where runs lie. A far store is known by its place, without what is for that store alone: whoever knows the password today, and
/// another tomorrow, means the same range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    Near,
    Far(Arc<str>),
}

impl fmt::Display for Home {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near => formatter.write_str("near"),
            Self::Far(place) => formatter.write_str(place),
        }
    }
}

/// How a far store was when it was last asked for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarStore {
    /// Why it does not answer as it should; none: it does.
    pub trouble: Option<String>,
    /// How long ago it has answered last, to a write or a sign of life; none: it has not.
    pub answered: Option<Duration>,
    /// What is ordered near and not durable far, in bytes.
    pub waiting_bytes: u64,
    /// How long the oldest of that has waited.
    pub waiting_for: Duration,
    /// Runs whose writes a permanent error of it has stopped.
    pub stopped_runs: u64,
}

impl FarStore {
    fn of(health: &Health) -> Self {
        let ended = || {
            health
                .ended
                .map(|kind| format!("this server uses it no more: {kind}"))
        };
        Self {
            trouble: health
                .failing
                .as_ref()
                .map(|failing| failing.reason.clone())
                .or_else(ended),
            answered: health.answered,
            waiting_bytes: health.pending_bytes as u64,
            waiting_for: health.pending_for,
            stopped_runs: health.poisoned_lanes as u64,
        }
    }

    /// The same, when it has not been asked for anything meanwhile.
    fn later(self, meanwhile: Duration) -> Self {
        Self {
            answered: self.answered.map(|answered| answered + meanwhile),
            ..self
        }
    }

    /// One that could not be opened.
    fn unopened(trouble: String) -> Self {
        let (trouble, waiting_for) = (Some(trouble), Duration::ZERO);
        Self {
            trouble,
            answered: None,
            waiting_bytes: 0,
            waiting_for,
            stopped_runs: 0,
        }
    }
}

/// All homes.
#[derive(Debug)]
pub(crate) struct Homes {
    near: Store,
    ranges: Arc<Ranges>,
}

#[derive(Debug)]
struct Ranges {
    near_rows: SharedKeyValue,
    engine: Engine,
    runner: Arc<dyn Runner>,
    far_stores: Arc<dyn FarStores>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: Options,
    slots: Mutex<BTreeMap<Arc<str>, Arc<Slot>>>,
    told: mpsc::Sender<Event>,
}

/// What becomes of a range that somebody has to see to.
#[derive(Debug)]
pub(crate) enum Event {
    /// It was opened: there may be runs in it that nobody is at.
    Opened(Home),
    /// It has ended with its near store: there may be something unsent, for which nobody asks.
    Ended(Home),
}

/// What is known of one far store.
#[derive(Debug)]
struct Slot {
    place: Arc<str>,
    state: Mutex<Slotted>,
    /// How often it was tried to open it.
    tried: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Slotted {
    /// As it was said last.
    address: String,
    range: Option<Range>,
    opening: Option<UnderWay>,
    /// Why it was not opened the last time.
    failed: Option<Arc<Error>>,
    /// The epoch of the last range that was open here, and has ended or is being given back.
    ended_epoch: Option<u64>,
    /// When the range was given back, and how the store was then.
    given_back: Option<(Monotonic, FarStore)>,
}

/// A range that is being opened.
#[derive(Debug)]
struct UnderWay {
    task: AbortHandle,
    awaits: watch::Receiver<Awaited>,
}

impl Slotted {
    /// What the trouble is with one that is not open yet.
    fn trouble(&self) -> &'static str {
        match self
            .opening
            .as_ref()
            .map(|opening| *opening.awaits.borrow())
        {
            Some(Awaited::Owner) => {
                "another server is at work there, or was so seconds ago: ask that one, or this one again later"
            }
            Some(Awaited::Stores) | None => "it does not answer",
        }
    }
}

impl Homes {
    pub(crate) fn new(
        near_rows: SharedKeyValue,
        engine: Engine,
        (runner, far_stores): (Arc<dyn Runner>, Arc<dyn FarStores>),
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
        options: &Options,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (told, events) = mpsc::channel(EVENTS_MAX);
        let near = Store::of_transactions(Arc::clone(&near_rows), engine.clone(), options);
        let options = options.clone();
        let slots = Mutex::default();
        let ranges = Ranges {
            near_rows,
            engine,
            runner,
            far_stores,
            clock,
            entropy,
            options,
            slots,
            told,
        };
        (
            Self {
                near,
                ranges: Arc::new(ranges),
            },
            events,
        )
    }

    /// Where a workflow without a far store lies.
    pub(crate) fn near(&self) -> &Store {
        &self.near
    }

    /// Where new runs of `workflow` lie.
    pub(crate) fn of(&self, workflow: &Workflow) -> Home {
        let home = workflow
            .far
            .as_deref()
            .map_or(Home::Near, |address| self.at(address));
        if let Home::Far(place) = &home {
            self.ranges.agree(place, workflow.synchrony);
        }
        home
    }

    /// The far store at `address`, which is how it is reached from now on.
    pub(crate) fn at(&self, address: &str) -> Home {
        let home = self.found_at(address);
        if let Home::Far(place) = &home
            && let Some(slot) = self.ranges.slots.lock().get(place)
        {
            address.clone_into(&mut slot.state.lock().address);
        }
        home
    }

    /// The same, but one that is known stays reached as it is: who has noted this address may have been told an older one.
    pub(crate) fn found_at(&self, address: &str) -> Home {
        let place: Arc<str> = place_of(address).into();
        self.ranges
            .slots
            .lock()
            .entry(Arc::clone(&place))
            .or_insert_with(|| {
                let (place, tried) = (Arc::clone(&place), watch::Sender::new(0));
                let state = Slotted {
                    address: address.to_owned(),
                    ..Slotted::default()
                };
                Arc::new(Slot {
                    place,
                    state: Mutex::new(state),
                    tried,
                })
            });
        Home::Far(place)
    }

    /// A place for one run, or one look.
    ///
    /// Errors: `Unavailable` if that takes too long, and then it goes on being opened; those of opening.
    pub(crate) async fn store(&self, home: &Home) -> Result<Store> {
        match home {
            Home::Near => Ok(self.near.clone()),
            Home::Far(place) => {
                let slot = self.ranges.slots.lock().get(place).cloned();
                let slot = slot.ok_or_else(|| ports::Error::unavailable("find a far store"))?;
                self.ranges.store(&slot).await
            }
        }
    }

    /// The same to look for what is there; none: nothing is, and nothing can be.
    pub(crate) async fn store_to_search(&self, home: &Home) -> Result<Option<Store>> {
        match self.store(home).await {
            Err(Error::FarIsNear(_)) => Ok(None),
            store => store.map(Some),
        }
    }

    /// Takes back that workflows have rows there.
    pub(crate) async fn unlist(&self, home: &Home) -> Result<()> {
        let place = home.to_string();
        for (workflow, address) in self.near.listed_homes().await? {
            if place_of(&address) == place {
                let row = layout::home(&workflow, &place);
                self.ranges.near_rows.update(Update::delete(row)).await?;
            }
        }
        Ok(())
    }

    /// How the far stores are, by place, as far as they were wanted; returns at once.
    pub(crate) fn health(&self) -> BTreeMap<String, FarStore> {
        let (slots, now) = (self.ranges.slots.lock(), self.ranges.clock.monotonic());
        let health = |slot: &Slot| {
            let state = slot.state.lock();
            match (&state.range, &state.failed) {
                (Some(range), _) => Some(FarStore::of(&range.health())),
                (None, Some(failed)) => Some(FarStore::unopened(failed.to_string())),
                (None, None) if state.opening.is_some() => {
                    Some(FarStore::unopened(state.trouble().to_owned()))
                }
                (None, None) => state
                    .given_back
                    .clone()
                    .map(|(at, store)| store.later(now.since(at))),
            }
        };
        slots
            .iter()
            .filter_map(|(place, slot)| Some((place.to_string(), health(slot)?)))
            .collect()
    }

    /// Whether a far store does not answer as it should, as far as anybody has asked it; returns at once.
    pub(crate) fn is_failing(&self, home: &Home) -> bool {
        let Home::Far(place) = home else { return false };
        let slot = self.ranges.slots.lock().get(place).cloned();
        slot.is_some_and(|slot| {
            let state = slot.state.lock();
            state
                .range
                .as_ref()
                .is_some_and(|range| range.health().failing.is_some())
        })
    }

    /// Gives the ranges back, drained, so that whoever is next does not wait.
    pub(crate) async fn release(&self) {
        let slots = std::mem::take(&mut *self.ranges.slots.lock());
        for (place, slot) in slots {
            let range = {
                let mut state = slot.state.lock();
                if let Some(opening) = state.opening.take() {
                    opening.task.abort();
                }
                state.range.take()
            };
            if let Some(range) = range {
                range.give_back(&place).await;
            }
        }
    }
}

impl Ranges {
    async fn store(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<Store> {
        let mut tried = slot.tried.subscribe();
        if let Some(store) = self.lane_of(slot)? {
            return Ok(store);
        }
        self.have_opened(slot);
        let unavailable = || {
            let trouble = slot.state.lock().trouble();
            ports::Error::unavailable(format!("open the far store {}: {trouble}", slot.place))
        };
        tokio::select! {
            biased;
            _ = tried.changed() => {}
            () = self.clock.sleep(OPEN_MAX) => return Err(unavailable().into()),
        }
        if let Some(store) = self.lane_of(slot)? {
            return Ok(store);
        }
        let failed = slot.state.lock().failed.clone();
        Err(failed.map_or_else(|| unavailable().into(), |failed| failed.again()))
    }

    /// A lane of a range that is open; none: it is not. One that has ended, since its near store fell back, is not.
    fn lane_of(&self, slot: &Slot) -> Result<Option<Store>> {
        let mut state = slot.state.lock();
        if let Some(ended) = state.range.take_if(|range| range.health().ended.is_some()) {
            ended.stop();
            state.ended_epoch = Some(ended.epoch());
        }
        state
            .range
            .as_mut()
            .map(|range| range.store(&self.options))
            .transpose()
    }

    /// One of the workflows of a far store asks for `wanted`: another deployment may have changed what holds.
    fn agree(&self, place: &str, wanted: Said) {
        let slot = self.slots.lock().get(place).cloned();
        let Some(slot) = slot else { return };
        let mut state = slot.state.lock();
        let Some(range) = state.range.as_mut().filter(|range| range.says() != wanted) else {
            return;
        };
        range.say(self.said(place));
    }

    /// The strictest that a deployed workflow of this far store asks for.
    fn said(&self, place: &str) -> Said {
        let deployed = self.runner.workflows();
        let here = deployed.values().filter(|workflow| {
            workflow
                .far
                .as_deref()
                .is_some_and(|far| place_of(far) == place)
        });
        here.map(|workflow| workflow.synchrony)
            .max()
            .unwrap_or_default()
    }

    /// Has the range opened, unless somebody is at it.
    fn have_opened(self: &Arc<Self>, slot: &Arc<Slot>) {
        let mut state = slot.state.lock();
        if state.opening.is_some() || state.range.is_some() {
            return;
        }
        let (ranges, task_slot) = (Arc::clone(self), Arc::clone(slot));
        let (address, ended_epoch) = (state.address.clone(), state.ended_epoch);
        let (tells, awaits) = watch::channel(Awaited::default());
        let task = tokio::spawn(async move {
            let opened = ranges.open(&task_slot, &address, ended_epoch, tells).await;
            let ended = opened.as_ref().ok().map(Range::ended);
            {
                let mut state = task_slot.state.lock();
                state.opening = None;
                match opened {
                    Ok(range) => {
                        if ranges.options.among_others {
                            let (slot, clock) =
                                (Arc::downgrade(&task_slot), Arc::clone(&ranges.clock));
                            tokio::spawn(look_after(slot, range.epoch(), clock));
                        }
                        state.range = Some(range);
                        state.failed = None;
                    }
                    Err(error) => state.failed = Some(Arc::new(error)),
                }
            }
            task_slot.tried.send_modify(|tried| *tried += 1);
            if let Some(ended) = ended {
                let (told, home) = (ranges.told.clone(), Home::Far(Arc::clone(&task_slot.place)));
                // Nobody listens where nothing was started, or any more.
                let _ = told.send(Event::Opened(home.clone())).await;
                if !ranges.options.breaks(Broken::WaitsForACaller) {
                    tokio::spawn(tell_of_its_end(ended, home, told));
                }
            }
        });
        state.opening = Some(UnderWay {
            task: task.abort_handle(),
            awaits,
        });
    }

    async fn open(
        &self,
        slot: &Slot,
        address: &str,
        ended_epoch: Option<u64>,
        tells: watch::Sender<Awaited>,
    ) -> Result<Range> {
        let far = self.far_stores.open(address).await?;
        if mark::is_one_store(&*self.near_rows, &*far, (&*self.clock, &*self.entropy)).await? {
            return Err(Error::FarIsNear(slot.place.to_string()));
        }
        let name = Bytes::from([RANGE, &slot.place].concat());
        let opening = Opening {
            stores: Stores {
                near: Arc::clone(&self.near_rows),
                far,
                range: name,
            },
            said: self.said(&slot.place),
            ended_epoch,
            tells,
            engine: self.engine.clone(),
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&self.entropy),
            options: &self.options,
        };
        Range::open(opening).await
    }
}

/// Tells once a range has ended with its near store. One that another server has taken is that one's to see to.
async fn tell_of_its_end(
    ended: impl Future<Output = Ended>,
    home: Home,
    told: mpsc::Sender<Event>,
) {
    if ended.await == Ended::NearLost {
        // Nobody listens where nothing was started, or any more.
        let _ = told.send(Event::Ended(home)).await;
    }
}

/// Looks after a range that other processes may want, as long as it is open here: see [`range`](crate::range).
async fn look_after(slot: Weak<Slot>, epoch: u64, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(LOOK_AFTER).await;
        let Some(slot) = slot.upgrade() else { return };
        let (idle, lane) = {
            let mut state = slot.state.lock();
            let is_awaited = slot.tried.receiver_count() > 0;
            let Some(range) = state.range.as_mut().filter(|range| range.epoch() == epoch) else {
                return;
            };
            let (lane, health) = (range.lane(), range.health());
            let idle = (range.is_idle() && !is_awaited)
                .then(|| state.range.take())
                .flatten();
            if idle.is_some() {
                state.given_back = Some((clock.monotonic(), FarStore::of(&health)));
                // Also where that fails: nobody here has it any more, and who is asked just then need not wait for this one's lease.
                state.ended_epoch = Some(epoch);
            }
            (idle, lane)
        };
        if let Some(range) = idle {
            return range.give_back(&slot.place).await;
        }
        // Whoever uses it is told what is wrong.
        let _ = lane.renew_lease().await;
    }
}
