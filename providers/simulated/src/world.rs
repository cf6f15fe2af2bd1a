//! One cloud, and the handles to its ports.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use ports::{
    Clock, Entropy, Instances, KeyValue, Queue, QueueAdmin,
    objects::{ObjectLimits, ObjectStore},
};

use crate::{
    clock::{SimulatedClock, SimulatedEntropy},
    cloud::{Cloud, Kept, lock},
    config::Options,
    durability::SimulatedStore,
    faults::Faults,
    functions::Functions,
    instances::{Program, SimulatedInstances},
    objects::SimulatedObjects,
    trace::Trace,
};

/// The most that another machine's wall clock is wrong, either way.
const SKEW_MS_MAX: i64 = 2_000;

/// One cloud with one store, for any number of processes. Cloning it gives another handle.
///
/// ```
/// use ports::{Key, Update, key_value::Outcome};
/// use simulated::{World, run};
///
/// run(async {
///     let world = World::new(7);
///     let key_value = world.key_value();
///     let updated = key_value.update(Update::put(Key::new("a", "b"), vec![])).await.expect("calm");
///     assert!(matches!(updated.outcome, Outcome::Done(Some(_))));
///     world.crash();
///     let read = key_value.get(&Key::new("a", "b")).await.expect("calm");
///     assert_eq!(read.value, None, "it was never externalized");
/// });
/// ```
#[derive(Clone)]
pub struct World(Arc<Ports>);

struct Ports {
    seed: u64,
    cloud: Arc<Cloud>,
    functions: Arc<Functions>,
    objects: Arc<SimulatedObjects>,
    /// Where skews and streams of chance are drawn from: apart from the faults, so that asking for one more
    /// stream changes no fault.
    streams: Mutex<Rng>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.0.seed)
            .finish_non_exhaustive()
    }
}

impl World {
    /// A calm world with the default [`Options`].
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    /// A calm world that imitates another kind of cloud.
    pub fn with_options(seed: u64, options: Options) -> Self {
        let mut streams = Rng::with_seed(seed);
        let cloud = Arc::new(Cloud::new(streams.u64(..), options));
        Self(Arc::new(Ports {
            seed,
            functions: Arc::new(Functions::new(Arc::clone(&cloud))),
            objects: Arc::new(SimulatedObjects::new(Arc::clone(&cloud))),
            cloud,
            streams: Mutex::new(streams),
        }))
    }

    /// What it was made from.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// The key-value store.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        self.store()
    }

    /// The queues, in the same order as the items.
    pub fn queue(&self) -> Arc<dyn Queue> {
        self.store()
    }

    fn store(&self) -> Arc<SimulatedStore> {
        Arc::new(SimulatedStore(Arc::clone(&self.0.cloud)))
    }

    /// The functions; always the same ones.
    pub fn functions(&self) -> Arc<Functions> {
        Arc::clone(&self.0.functions)
    }

    /// Their administration.
    pub fn queue_admin(&self) -> Arc<dyn QueueAdmin> {
        self.store()
    }

    /// Instances that run `program`.
    pub fn instances(&self, program: Program) -> Arc<dyn Instances> {
        Arc::new(SimulatedInstances::new(Arc::clone(&self.0.cloud), program))
    }

    /// The objects; always the same ones.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0.objects) as Arc<dyn ObjectStore>
    }

    /// Their limits.
    pub fn object_limits(&self) -> ObjectLimits {
        crate::objects::LIMITS
    }

    /// A clock that is right.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock_off_by(0)
    }

    /// The clock of another machine: its wall time is wrong by up to two seconds, another amount each time.
    pub fn skewed_clock(&self) -> Arc<dyn Clock> {
        let skew_ms = lock(&self.0.streams).i64(-SKEW_MS_MAX..=SKEW_MS_MAX);
        self.clock_off_by(skew_ms)
    }

    /// A clock whose wall time is wrong by this much.
    pub fn clock_off_by(&self, skew_ms: i64) -> Arc<dyn Clock> {
        Arc::new(SimulatedClock::new(Arc::clone(&self.0.cloud), skew_ms))
    }

    /// A stream of chance of its own.
    pub fn entropy(&self) -> Arc<dyn Entropy> {
        Arc::new(SimulatedEntropy::new(lock(&self.0.streams).fork()))
    }

    /// What may go wrong.
    pub fn faults(&self) -> &Faults {
        &self.0.cloud.faults
    }

    /// The store's disk is full from now on: it has no reserve, and takes what needs no room. Queues and objects
    /// have disks of their own.
    pub fn fill_disk(&self) {
        self.0.cloud.store().is_full = true;
    }

    /// There is room again.
    pub fn empty_disk(&self) {
        self.0.cloud.store().is_full = false;
    }

    /// The disk of the objects is full from now on: none is put.
    pub fn fill_disk_of_objects(&self) {
        self.0.objects.set_full(true);
    }

    /// There is room again.
    pub fn empty_disk_of_objects(&self) {
        self.0.objects.set_full(false);
    }

    /// The store's process dies and starts again: everything not externalized is lost, deliveries become
    /// visible again, running invocations are ended, the incarnation grows.
    pub fn crash(&self) {
        self.0.cloud.crash(Kept::Durable);
    }

    /// The same, but as much of what was not externalized survives as chance has it: a prefix (D2).
    pub fn crash_keeping_some(&self) {
        self.0.cloud.crash(Kept::SomeMore);
    }

    /// The store fails to make something durable and goes back to its durable state, in process: the incarnation grows,
    /// transient messages are lost and other deliveries become visible again, but whoever was at work goes on with what
    /// it has seen (D4).
    pub fn fall_back(&self) {
        self.0.cloud.fall_back(Kept::Durable);
    }

    /// The same, but as much of what was not externalized survives as chance has it: a prefix (D2).
    pub fn fall_back_keeping_some(&self) {
        self.0.cloud.fall_back(Kept::SomeMore);
    }

    /// What happened so far.
    pub fn trace(&self) -> Trace {
        self.0.cloud.trace().clone()
    }

    /// How many port calls were made so far.
    pub fn port_calls(&self) -> u64 {
        self.0.cloud.trace().port_calls()
    }
}
