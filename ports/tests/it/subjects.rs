//! Subjects for every suite, each in a fresh simulated world.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ports::{
    Clock,
    contract::{
        Case, clock, code_store, durability, functions, instances, key_value, objects, queue,
        runtime,
    },
    functions::Definition,
    instances::Spec,
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{SharedQueue, SharedQueueAdmin},
    runtime::{Function, Language},
};
use simulated::{SimulatedCodeStore, World, runtime::SimulatedRuntime};

/// Opens a subject on a fresh world, and runs `case` on it in virtual time.
pub(crate) fn run<S>(case: Case<S>, open: impl FnOnce(&World) -> S) {
    simulated::run(async {
        let world = World::new(1);
        let subject = open(&world);
        case.run(subject).await;
    });
}

pub(crate) fn key_value(world: &World) -> key_value::Subject {
    key_value::Subject::new(world.key_value(), world.clock())
        .on(Arc::new(WorldsDisk(world.clone())))
}

/// The disk of a world's store.
#[derive(Debug)]
struct WorldsDisk(World);

impl key_value::Disk for WorldsDisk {
    fn fill(&self) {
        self.0.fill_disk();
    }
    fn empty(&self) {
        self.0.empty_disk();
    }
}

pub(crate) fn queue(world: &World) -> queue::Subject {
    queue::Subject::new(world.queue(), world.queue_admin(), world.clock()).beside(world.key_value())
}

pub(crate) fn functions(world: &World) -> functions::Subject {
    let functions = world.functions();
    functions::Subject {
        functions: functions.clone(),
        register: Arc::new(move |definition: Definition| functions.register(definition)),
        queue: world.queue(),
        admin: world.queue_admin(),
        clock: world.clock(),
    }
}

pub(crate) fn runtime(world: &World) -> runtime::Subject {
    let clock = world.clock();
    let function = Function {
        name: "obedient".to_owned(),
        revision: "1".to_owned(),
        language: Language::Executable,
        runtime_version: None,
        handler: "obey".to_owned(),
        archive: "none".to_owned(),
        folder: "code".to_owned(),
        memory_bytes: 128 << 20,
        timeout: Duration::from_secs(30),
        concurrency: 4,
        processes_max: 16,
        scratch_bytes: 1 << 20,
        environment: BTreeMap::new(),
        network: false,
        buckets: Vec::new(),
        volume: None,
        incarnation: 0,
    };
    let simulated = SimulatedRuntime::obedient(world.clock());
    runtime::Subject {
        logs: simulated.logs(),
        runtime: Arc::new(simulated),
        function,
        clock,
    }
}

pub(crate) fn code_store(_: &World) -> code_store::Subject {
    code_store::Subject {
        store: Arc::new(SimulatedCodeStore::default()),
        archive: SimulatedCodeStore::archive,
    }
}

pub(crate) fn instances(world: &World) -> instances::Subject {
    instances::Subject {
        instances: world.instances(simulated::instances::obedient()),
        spec: instances_spec(),
        clock: world.clock(),
    }
}

fn instances_spec() -> Spec {
    Spec {
        command: vec!["obedient".to_owned()],
        memory_bytes: 128 << 20,
        ..Spec::default()
    }
}

pub(crate) fn clock(world: &World) -> clock::Subject {
    let machine = world.clone();
    clock::Subject::new(move || machine.clock(), |seed| World::new(seed).entropy())
}

pub(crate) fn objects(world: &World) -> objects::Subject {
    objects::Subject::new(world.objects(), world.object_limits())
}

pub(crate) fn durability(world: &World) -> durability::Subject {
    decorated_durability(world, |store, _| store)
}

/// The same, with `around` put around the store of every start.
pub(crate) fn decorated_durability(world: &World, around: Around) -> durability::Subject {
    Box::new(Crashed {
        world: world.clone(),
        around,
    })
}

/// Puts a decorator around a store of a world.
pub(crate) type Around = fn(SharedKeyValue, &World) -> SharedKeyValue;

/// A world whose store dies and starts again.
#[derive(Debug)]
struct Crashed {
    world: World,
    around: Around,
}

#[async_trait]
impl durability::Crashable for Crashed {
    fn key_value(&self) -> SharedKeyValue {
        (self.around)(self.world.key_value(), &self.world)
    }
    fn queue(&self) -> Option<SharedQueue> {
        Some(self.world.queue())
    }
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        Some(self.world.queue_admin())
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        Some(self.world.objects())
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.world.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> durability::Subject {
        self.world.crash_keeping_some();
        self
    }
}
