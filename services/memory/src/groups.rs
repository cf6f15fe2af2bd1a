//! Groups of instances: the unit by which function memory grows and shrinks.
//!
//! The [`Window`] decides where a chunk goes, and when a group begins and ends. This module starts
//! the instances of new groups, and lets go of those of released groups. An instance ends once the
//! last reader of its chunks has ended.
//!
//! Invariants
//! - The window and `running` have the same groups.
//! - The instances of a group start only once the bound on the memory has room for them beside those
//!   of earlier groups, also of released ones that have not ended.
//! - A placed chunk keeps its group from being released until its [`Place`] is dropped. The chunk is
//!   durable then, or no object needs it.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use ports::{Clock, Entropy, Instances, LogThrottle, Monotonic};
use primitives::Mutant;
use tokio::sync::{Notify, watch};

use crate::{
    broken::Broken,
    function::Partition,
    instance::{ChunkName, Epoch, Instance, InstanceId, InstanceOptions, ReserveError, Slot},
    lost::Lost,
    restarts::{QUICK_DEATHS_MAX, Restarts},
    window::{
        Accessed, Changes, Failed, FunctionId, GroupId, Move, Options, Phase, Placement, Unplaced,
        Window,
    },
};

/// The attempts to replace a dead instance. Its function is dropped after them.
const STARTS_MAX: usize = 3;
/// How long a new group waits for the end of released ones. After that their readers are slow, and
/// chunks are not placed.
const ENDING_MAX: Duration = Duration::from_secs(1);

/// How groups are made.
#[derive(Debug, Clone)]
pub(crate) struct GroupOptions {
    pub(crate) window: Options,
    pub(crate) instance: InstanceOptions,
}

/// The numbers of groups at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GroupFigures {
    pub(crate) active: usize,
    pub(crate) degraded: usize,
    /// Released since the start.
    pub(crate) released: u64,
    /// The fragments without a place since the start.
    pub(crate) refused: u64,
    /// The instances that were replaced since the start.
    pub(crate) recoveries: u64,
}

/// A function group whose instances run, or are being started.
#[derive(Debug)]
struct Group {
    /// None: its instances are being started.
    is_running: watch::Sender<Option<bool>>,
    /// By index; none: the instance has died.
    instances: Vec<Mutex<Option<Arc<Instance>>>>,
    /// By index.
    restarts: Vec<Mutex<Restarts>>,
}

impl Group {
    fn starting(total: u8, now: Monotonic) -> Self {
        Self {
            is_running: watch::Sender::new(None),
            instances: (0..total).map(|_| Mutex::default()).collect(),
            restarts: (0..total).map(|_| Mutex::new(Restarts::new(now))).collect(),
        }
    }

    fn instances_count(&self) -> usize {
        if self.is_running.borrow().is_none() {
            return self.instances.len();
        }
        let instances = self.instances.iter().map(|instance| instance.lock());
        instances.filter(|instance| instance.is_some()).count()
    }

    async fn instance(&self, index: u8) -> Option<Arc<Instance>> {
        let mut is_running = self.is_running.subscribe();
        let started = is_running.wait_for(Option::is_some).await;
        if !started.is_ok_and(|is_running| *is_running == Some(true)) {
            return None;
        }
        self.instances[usize::from(index)].lock().clone()
    }
}

#[derive(Debug)]
struct State {
    window: Window,
    running: BTreeMap<GroupId, Arc<Group>>,
    /// When groups were released whose instances have not ended.
    ending: BTreeMap<GroupId, Monotonic>,
    is_ended: bool,
    released: u64,
    refused: u64,
    refusals: LogThrottle,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    instances: Arc<dyn Instances>,
    clock: Arc<dyn Clock>,
    options: GroupOptions,
    state: Mutex<State>,
    instances_started: AtomicU64,
    recoveries: AtomicU64,
    /// The functions to be recovered.
    pub(crate) lost: Arc<Lost>,
    grown: Notify,
    /// A group has ended.
    ended: Notify,
}

impl Groups {
    /// No instance is started before the first object.
    pub(crate) fn new(
        instances: Arc<dyn Instances>,
        clock: Arc<dyn Clock>,
        options: GroupOptions,
    ) -> Arc<Self> {
        let state = State {
            window: Window::new(options.window, clock.monotonic()),
            running: BTreeMap::new(),
            ending: BTreeMap::new(),
            is_ended: false,
            released: 0,
            refused: 0,
            refusals: LogThrottle::default(),
        };
        Arc::new(Self {
            instances,
            clock,
            options,
            state: Mutex::new(state),
            instances_started: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            lost: Arc::default(),
            grown: Notify::new(),
            ended: Notify::new(),
        })
    }

    /// Places `count` chunks of `bytes` bytes each in a partition. None: memory is full, or has ended.
    ///
    /// Also returns the groups that were released for them. The caller forgets their chunks.
    pub(crate) fn place(
        self: &Arc<Self>,
        count: usize,
        bytes: u64,
        partition: Partition,
    ) -> (Option<Vec<Place>>, Vec<GroupId>) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if state.is_ended {
            return (None, Vec::new());
        }
        if state.running.is_empty() {
            // Intervals that passed without any group do not age the first one.
            state.window.collect(now);
        }
        let ending = state.ending.values();
        let lingering = ending.filter(|since| now.since(**since) >= ENDING_MAX);
        let lingering_count = lingering.count();
        state.window.set_lingering(lingering_count);
        let chunks: Vec<_> = (0..count).map(|index| (index as u8, bytes)).collect();
        let (placed, Changes { added, released }) = match partition {
            Partition::Storage => state.window.place(&chunks),
            Partition::Cache => state.window.place_in_cache(&chunks),
        };
        self.release(&mut state, &released);
        for id in added {
            let group = self.start(id);
            state.running.insert(id, group);
        }
        match &placed {
            Ok(_) => drop(state.refusals.ended(now)),
            // The object store serves further reads.
            Err(_) if partition == Partition::Cache => {}
            Err(why) => {
                state.refused += 1;
                self.report(&mut state, *why);
            }
        }
        drop(state);
        let places = placed.ok().map(|placed| {
            let place = |placement| Place {
                groups: Arc::clone(self),
                placement,
                is_settled: false,
            };
            placed.into_iter().map(place).collect()
        });
        (places, released)
    }

    /// Lets go of groups. They count until their last instance has ended.
    fn release(self: &Arc<Self>, state: &mut State, released: &[GroupId]) {
        state.released += released.len() as u64;
        for id in released.iter().copied() {
            let Some(group) = state.running.remove(&id) else {
                continue;
            };
            state.ending.insert(id, self.clock.monotonic());
            let instances = group.instances.iter();
            let deaths = instances.filter_map(|one| Some(one.lock().as_ref()?.death()));
            let (deaths, groups) = (join_all(deaths), Arc::clone(self));
            tokio::spawn(async move {
                deaths.await;
                groups.state.lock().ending.remove(&id);
                groups.ended.notify_waiters();
            });
        }
    }

    fn report(&self, state: &mut State, why: Unplaced) {
        let now = self.clock.monotonic();
        if let Some(lasts) = state.refusals.failed(now, &why.to_string()) {
            tracing::warn!(%why, ?lasts, "an object has no place in function memory, and is in the object store alone. A higher bound on the memory helps");
        }
    }

    /// Starts the instances of a group, also if the request that needs them is dropped.
    fn start(self: &Arc<Self>, id: GroupId) -> Arc<Group> {
        let now = self.clock.monotonic();
        let group = Arc::new(Group::starting(self.options.window.total, now));
        tokio::spawn(Arc::clone(self).start_instances(id, Arc::clone(&group)));
        self.grown.notify_waiters();
        group
    }

    async fn start_instances(self: Arc<Self>, id: GroupId, group: Arc<Group>) {
        let mut started: Option<Vec<_>> = None;
        let has_room = self.wait_for_room(id).await;
        if has_room {
            let starts = group.instances.iter().map(|_| self.start_instance());
            started = join_all(starts).await.into_iter().collect();
        }
        let mut state = self.state.lock();
        if !has_room {
            state.refused += 1;
            self.report(&mut state, Unplaced::Full);
        }
        let started = started.filter(|_| state.running.contains_key(&id));
        let is_running = started.is_some();
        if let Some(instances) = started {
            for (index, instance) in (0..).zip(instances) {
                self.watch(FunctionId { group: id, index }, &instance);
                *group.instances[usize::from(index)].lock() = Some(instance);
            }
        } else {
            state.window.abandon(id);
            state.running.remove(&id);
        }
        drop(state);
        self.ended.notify_waiters();
        group.is_running.send_replace(Some(is_running));
    }

    /// Waits for the end of released groups, if a group has no room beside them. Whether it has room.
    async fn wait_for_room(&self, id: GroupId) -> bool {
        let room = async {
            loop {
                let mut ended = pin!(self.ended.notified());
                // A group that ends after the check wakes this call, too.
                ended.as_mut().enable();
                if self.has_room(id) {
                    return;
                }
                ended.await;
            }
        };
        tokio::select! {
            biased;
            () = room => true,
            () = self.clock.sleep(ENDING_MAX) => false,
        }
    }

    /// Whether the group has room beside earlier ones and those that have not ended.
    fn has_room(&self, id: GroupId) -> bool {
        let state = self.state.lock();
        let used = state.running.range(..=id).count() + state.ending.len();
        used <= self.options.window.groups_max
    }

    async fn start_instance(&self) -> Option<Arc<Instance>> {
        let number = self.instances_started.fetch_add(1, Ordering::Relaxed);
        let options = &self.options.instance;
        let started = Instance::start(
            &self.instances,
            options,
            InstanceId(number),
            Epoch(number),
            Arc::clone(&self.clock),
        )
        .await;
        let failed = |error: &_| {
            tracing::warn!(%error, "an instance of function memory cannot be started; objects are read from the object store");
        };
        started.inspect_err(failed).ok()
    }

    /// Reports the death of the instance. It does not keep the instance alive.
    fn watch(&self, function: FunctionId, instance: &Instance) {
        let (death, lost) = (instance.death(), Arc::clone(&self.lost));
        tokio::spawn(async move {
            death.await;
            lost.add(function);
        });
    }

    /// The instance of a function that gets chunks of `bytes` bytes back. A dead one is replaced. None:
    /// the function is dropped, or its group is released.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        function: FunctionId,
        bytes: u64,
    ) -> Option<Restored> {
        let (live, placement) = self.expect(function, bytes)?;
        let instance = match live {
            Some(instance) => instance,
            None => self.replace(function).await?,
        };
        Some(Restored {
            groups: Arc::clone(self),
            placement,
            instance,
        })
    }

    /// Seals a group: the free space of an instance is too scattered for a chunk.
    pub(crate) fn seal(&self, group: GroupId) {
        self.state.lock().window.seal(group);
    }

    /// Whether the group is neither released nor ended.
    pub(crate) fn has(&self, group: GroupId) -> bool {
        self.state.lock().running.contains_key(&group)
    }

    /// Counts the bytes that a function gets back, before PUTs can take their space. Also returns its
    /// instance, if that lives.
    fn expect(
        &self,
        function: FunctionId,
        bytes: u64,
    ) -> Option<(Option<Arc<Instance>>, Placement)> {
        let mut state = self.state.lock();
        let group = state.running.get(&function.group).cloned()?;
        let mut slot = group.instances[usize::from(function.index)].lock();
        slot.take_if(|instance| instance.is_dead());
        if slot.is_none() && state.window.failed(function) == Failed::Dropped {
            return None;
        }
        let placement = state.window.expect(function, bytes)?;
        Some((slot.clone(), placement))
    }

    /// Starts an instance in the place of a dead one. The function is dropped if that fails.
    async fn replace(&self, function: FunctionId) -> Option<Arc<Instance>> {
        let started = self.start_again(function).await;
        let mut state = self.state.lock();
        let group = state.running.get(&function.group).cloned()?;
        let Some(instance) = started else {
            state.window.drop_function(function);
            return None;
        };
        self.watch(function, &instance);
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        *group.instances[usize::from(function.index)].lock() = Some(Arc::clone(&instance));
        Some(instance)
    }

    /// Starts an instance after a pause. None: that fails, or the group is released.
    async fn start_again(&self, function: FunctionId) -> Option<Arc<Instance>> {
        let group = self.state.lock().running.get(&function.group).cloned()?;
        let restarts = &group.restarts[usize::from(function.index)];
        let pause = restarts.lock().died(self.clock.monotonic());
        let Some(pause) = pause else {
            tracing::warn!(
                group = function.group.0,
                function = function.index,
                "{QUICK_DEATHS_MAX} instances of function memory died soon after their start, and no further one is started in their place. Their chunks are decoded from others or read from the object store. See the causes of the deaths in this log: often the machine has less memory than the bound on function memory. A restart of the server starts them again"
            );
            return None;
        };
        if !pause.is_zero() {
            self.clock.sleep(pause).await;
        }
        for _ in 0..STARTS_MAX {
            if !self.has(function.group) {
                break;
            }
            if let Some(instance) = self.start_instance().await {
                restarts.lock().started(self.clock.monotonic());
                return Some(instance);
            }
        }
        None
    }

    /// The instance of a function, once its group runs.
    pub(crate) async fn instance(&self, function: FunctionId) -> Option<Arc<Instance>> {
        let group = self.state.lock().running.get(&function.group).cloned()?;
        group.instance(function.index).await
    }

    /// The rule that tests break.
    pub(crate) fn mutant(&self) -> Mutant<Broken> {
        self.options.instance.mutant
    }

    /// Notes a read of a chunk.
    pub(crate) fn accessed(
        &self,
        partition: Partition,
        chunk: ChunkName,
        function: FunctionId,
    ) -> Accessed {
        let now = self.clock.monotonic();
        let window = &mut self.state.lock().window;
        window.accessed_in(partition, chunk, function, now)
    }

    /// Notes that the move of a chunk has ended, with or without success.
    pub(crate) fn moved(&self, chunk: ChunkName) {
        self.state.lock().window.moved(chunk);
    }

    /// Moves the window on. Returns the groups that were released, and the chunks to be moved.
    pub(crate) fn slide(self: &Arc<Self>, entropy: &dyn Entropy) -> (Vec<GroupId>, Vec<Move>) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let Changes { released, .. } = state.window.collect(now);
        self.release(&mut state, &released);
        (released, state.window.compact(now, entropy))
    }

    /// Waits until there is a group.
    pub(crate) async fn wait_until_used(&self) {
        loop {
            let mut grown = pin!(self.grown.notified());
            // A group that is added after the check wakes this call, too.
            grown.as_mut().enable();
            if !self.state.lock().running.is_empty() {
                return;
            }
            grown.await;
        }
    }

    /// The running instances whose functions are to be called in their phase.
    pub(crate) fn to_warm_up(&self, is_called: impl Fn(Phase) -> bool) -> Vec<Arc<Instance>> {
        let mut state = self.state.lock();
        let State {
            window, running, ..
        } = &mut *state;
        let mut instances = Vec::new();
        for (id, group) in running {
            for (index, instance) in (0..).zip(&group.instances) {
                let function = FunctionId { group: *id, index };
                if window.phase(function).is_some_and(&is_called) {
                    instances.extend(instance.lock().clone());
                }
            }
        }
        instances
    }

    /// The number of instances, with those that are being started.
    pub(crate) fn instances_count(&self) -> usize {
        self.state
            .lock()
            .running
            .values()
            .map(|group| group.instances_count())
            .sum()
    }

    /// The numbers of groups.
    pub(crate) fn figures(&self) -> GroupFigures {
        let state = self.state.lock();
        let (active, degraded) = state.window.groups_by_phase();
        GroupFigures {
            active,
            degraded,
            released: state.released,
            refused: state.refused,
            recoveries: self.recoveries.load(Ordering::Relaxed),
        }
    }

    /// Ends all instances. None is started after that.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ended = true;
        let running = std::mem::take(&mut state.running);
        for id in running.keys() {
            state.window.abandon(*id);
        }
        drop(state);
        for slot in running.values().flat_map(|group| &group.instances) {
            if let Some(instance) = slot.lock().take() {
                instance.end();
            }
        }
    }
}

/// A chunk's place in a function. Drop it once the chunk is durable, or no object needs it.
#[derive(Debug)]
pub(crate) struct Place {
    groups: Arc<Groups>,
    placement: Placement,
    is_settled: bool,
}

impl Place {
    pub(crate) fn function(&self) -> FunctionId {
        self.placement.function
    }

    /// Reserves the space of the chunk. It may be called again after an error.
    pub(crate) async fn reserve(&mut self, chunk: ChunkName) -> Result<Slot, ReserveError> {
        let Placement {
            function,
            bytes,
            partition,
            ..
        } = self.placement;
        let instance = self.groups.instance(function).await;
        let instance = instance.ok_or(ReserveError::Dead)?;
        let slot = instance.reserve_in(partition, chunk, bytes).await?;
        let counts = Some(instance.counts());
        let window = &mut self.groups.state.lock().window;
        window.settled(self.placement, counts);
        self.is_settled = true;
        Ok(slot)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let window = &mut self.groups.state.lock().window;
        if self.is_settled {
            window.persisted(self.placement);
        } else {
            window.settled(self.placement, None);
        }
    }
}

/// A function that gets chunks back.
#[derive(Debug)]
pub(crate) struct Restored {
    groups: Arc<Groups>,
    placement: Placement,
    instance: Arc<Instance>,
}

impl Restored {
    /// One of its chunks, with `bytes` of the expected bytes.
    pub(crate) fn returning(&self, bytes: u64) -> Returning {
        Returning {
            groups: Arc::clone(&self.groups),
            placement: Placement {
                bytes,
                ..self.placement
            },
            instance: Arc::clone(&self.instance),
        }
    }
}

/// A chunk that comes back. Drop it once the instance has the chunk, or never will.
#[derive(Debug)]
pub(crate) struct Returning {
    groups: Arc<Groups>,
    placement: Placement,
    instance: Arc<Instance>,
}

impl Returning {
    /// Whether its instance has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.instance.is_dead()
    }

    /// Reserves the space of the chunk in its partition.
    pub(crate) async fn reserve(
        &self,
        partition: Partition,
        chunk: ChunkName,
        bytes: u64,
    ) -> Result<Slot, ReserveError> {
        self.instance.reserve_in(partition, chunk, bytes).await
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let counts = self.instance.counts();
        let window = &mut self.groups.state.lock().window;
        window.returned(self.placement, counts);
    }
}
