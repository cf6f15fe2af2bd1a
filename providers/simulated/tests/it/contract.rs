//! The ports' contracts, on a calm cloud and on clouds of other kinds.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use ports::{
    Clock,
    contract::{Case, clock, durability, functions, key_value, objects, queue},
    functions::Definition,
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{SharedQueue, SharedQueueAdmin},
};
use simulated::{Options, World};

/// A cloud that answers at once.
fn calm() -> Options {
    Options::default()
}

/// A cloud with latency, so that calls overtake each other.
fn distant() -> Options {
    Options {
        latency: Some(Duration::ZERO..=Duration::from_millis(2)),
        ..Options::default()
    }
}

/// A cloud with minimal promises: transactions within a partition, pages that are no snapshots,
/// everything durable at once.
fn frugal() -> Options {
    let mut options = Options {
        durable_at_once: true,
        ..distant()
    };
    options.key_value.transact_across_partitions = false;
    options.key_value.page_is_snapshot = false;
    options.key_value.tells_room = false;
    options.key_value.page_items_max = 50;
    options.key_value.transact_items_max = 10;
    options
}

fn on<S>(options: Options, case: Case<S>, open: impl FnOnce(&World) -> S) {
    simulated::run(async {
        let subject = open(&World::with_options(1, options));
        case.run(subject).await;
    });
}

/// A task of the run.
fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let running = tokio::spawn(task);
    Box::pin(async move { running.await.expect("the task does not panic") })
}

fn key_value(world: &World) -> key_value::Subject {
    key_value::Subject::new(world.key_value(), world.clock())
        .spawning(spawn)
        .on(Arc::new(Disk(world.clone())))
}

/// The disk of a world's store.
#[derive(Debug)]
struct Disk(World);

impl key_value::Disk for Disk {
    fn fill(&self) {
        self.0.fill_disk();
    }
    fn empty(&self) {
        self.0.empty_disk();
    }
}

fn queue(world: &World) -> queue::Subject {
    queue::Subject::new(world.queue(), world.queue_admin(), world.clock())
        .beside(world.key_value())
        .spawning(spawn)
}

fn functions(world: &World) -> functions::Subject {
    let functions = world.functions();
    functions::Subject {
        functions: functions.clone(),
        register: Arc::new(move |definition: Definition| functions.register(definition)),
        queue: world.queue(),
        admin: world.queue_admin(),
        clock: world.clock(),
    }
}

fn clock(world: &World) -> clock::Subject {
    let machines = world.clone();
    clock::Subject::new(
        move || machines.skewed_clock(),
        |seed| World::new(seed).entropy(),
    )
    .spawning(spawn)
}

fn objects(world: &World) -> objects::Subject {
    objects::Subject::new(world.objects(), world.object_limits()).spawning(spawn)
}

fn durability(world: &World) -> durability::Subject {
    Box::new(Crashing(world.clone()))
}

/// A world whose store dies and starts again.
#[derive(Debug)]
struct Crashing(World);

#[async_trait]
impl durability::Crashable for Crashing {
    fn key_value(&self) -> SharedKeyValue {
        self.0.key_value()
    }
    fn queue(&self) -> Option<SharedQueue> {
        Some(self.0.queue())
    }
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        Some(self.0.queue_admin())
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        Some(self.0.objects())
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> durability::Subject {
        self.0.crash();
        self
    }
}

/// The suites of every port on one kind of cloud.
macro_rules! contracts {
    ($cloud:ident) => {
        mod $cloud {
            mod key_value {
                use crate::contract::{self, on};
                ports::key_value_contract!(|case| on(
                    contract::$cloud(),
                    case,
                    contract::key_value
                ));
            }
            mod queue {
                use crate::contract::{self, on};
                ports::queue_contract!(|case| on(contract::$cloud(), case, contract::queue));
            }
            mod functions {
                use crate::contract::{self, on};
                ports::functions_contract!(|case| on(
                    contract::$cloud(),
                    case,
                    contract::functions
                ));
            }
            mod clock {
                use crate::contract::{self, on};
                ports::clock_contract!(|case| on(contract::$cloud(), case, contract::clock));
            }
            mod objects {
                use crate::contract::{self, on};
                ports::objects_contract!(|case| on(contract::$cloud(), case, contract::objects));
            }
            mod durability {
                use crate::contract::{self, on};
                ports::durability_contract!(|case| on(
                    contract::$cloud(),
                    case,
                    contract::durability
                ));
            }
        }
    };
}

contracts!(calm);
contracts!(distant);
contracts!(frugal);
