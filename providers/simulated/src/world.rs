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
    cloud::{Cloud, Kept},
    config::Options,
    durability::SimulatedStore,
    faults::Faults,
    functions::Functions,
    instances::{Program, SimulatedInstances},
    objects::SimulatedObjects,
    run::lock,
    trace::Trace,
};

/// The largest error of another machine's wall clock, in either direction.
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
    /// The source of clock errors and random streams. It is separate from the faults, so that one
    /// more stream changes no fault.
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

    /// A calm world with other options.
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

    /// The seed of the world.
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

    /// The clock of another machine: its wall time is wrong by up to two seconds. Each clock has
    /// another error.
    pub fn skewed_clock(&self) -> Arc<dyn Clock> {
        let skew_ms = lock(&self.0.streams).i64(-SKEW_MS_MAX..=SKEW_MS_MAX);
        self.clock_off_by(skew_ms)
    }

    /// A clock whose wall time is wrong by `skew_ms`.
    pub fn clock_off_by(&self, skew_ms: i64) -> Arc<dyn Clock> {
        Arc::new(SimulatedClock::new(Arc::clone(&self.0.cloud), skew_ms))
    }

    /// A new random stream.
    pub fn entropy(&self) -> Arc<dyn Entropy> {
        Arc::new(SimulatedEntropy::new(lock(&self.0.streams).fork()))
    }

    /// The faults of this world.
    pub fn faults(&self) -> &Faults {
        &self.0.cloud.faults
    }

    /// Fills the store's disk: it has no reserve, and only accepts changes that need no space.
    /// Queues and objects have their own disks.
    pub fn fill_disk(&self) {
        self.0.cloud.store().is_full = true;
    }

    /// Frees space on the store's disk.
    pub fn empty_disk(&self) {
        self.0.cloud.store().is_full = false;
    }

    /// Fills the disk of the objects: every put fails.
    pub fn fill_disk_of_objects(&self) {
        self.0.objects.set_full(true);
    }

    /// Frees space on the disk of the objects.
    pub fn empty_disk_of_objects(&self) {
        self.0.objects.set_full(false);
    }

    /// The store's process dies and starts again. Everything that is not durable is lost,
    /// deliveries become visible again, running invocations end, and the incarnation advances.
    pub fn crash(&self) {
        self.0.cloud.crash(Kept::Durable);
    }

    /// The same, but a random prefix of the mutations that are not durable survives (D2).
    pub fn crash_keeping_some(&self) {
        self.0.cloud.crash(Kept::SomeMore);
    }

    /// The store fails to make something durable and returns to its durable state without a
    /// restart. The incarnation advances, transient messages are lost, and other deliveries become
    /// visible again. Running processes continue with what they have read (D4).
    pub fn fall_back(&self) {
        self.0.cloud.fall_back(Kept::Durable);
    }

    /// The same, but a random prefix of the mutations that are not durable survives (D2).
    pub fn fall_back_keeping_some(&self) {
        self.0.cloud.fall_back(Kept::SomeMore);
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        self.0.cloud.trace().clone()
    }

    /// The number of port calls so far.
    pub fn port_calls(&self) -> u64 {
        self.0.cloud.trace().port_calls()
    }
}
