//! Metered ports: they pass the suites, and count what was asked.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Condition, Functions, Instances, Key, KeyValue, Queue, Update,
    contract::{self, Case},
    functions::{Definition, QueueTrigger},
    key_value::{Action, Scan},
    metering::{
        Count, Meter, MeteredFunctions, MeteredKeyValue, MeteredObjects, MeteredQueue, Operation,
        function_memory::{FunctionMemoryMeter, MeteredInstances},
    },
    objects::{ObjectPath, ObjectStoreExt},
    queue::{Message, QueueOptions},
};
use simulated::World;

use crate::subjects;

fn meter() -> Arc<Meter> {
    Arc::default()
}

fn key_value(case: Case<contract::key_value::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::key_value(world);
        let store = Arc::new(MeteredKeyValue::new(subject.store, meter()));
        contract::key_value::Subject { store, ..subject }
    });
}

fn queue(case: Case<contract::queue::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::queue(world);
        let queue = Arc::new(MeteredQueue::new(subject.queue, meter()));
        contract::queue::Subject { queue, ..subject }
    });
}

fn functions(case: Case<contract::functions::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::functions(world);
        let (meter, honest) = (meter(), subject.register);
        let functions = Arc::new(MeteredFunctions::new(subject.functions, Arc::clone(&meter)));
        let register = move |definition: Definition| {
            honest.register(MeteredFunctions::metered(definition, Arc::clone(&meter)));
        };
        contract::functions::Subject {
            functions,
            register: Arc::new(register),
            ..subject
        }
    });
}

fn objects(case: Case<contract::objects::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::objects(world);
        let objects = MeteredObjects::around(subject.objects, meter());
        contract::objects::Subject { objects, ..subject }
    });
}

fn durability(case: Case<contract::durability::Subject>) {
    subjects::run(case, |world| {
        subjects::decorated_durability(world, |store, _| {
            Arc::new(MeteredKeyValue::new(store, meter()))
        })
    });
}

fn instances(case: Case<contract::instances::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::instances(world);
        let meter = FunctionMemoryMeter::new(world.clock());
        let instances = Arc::new(MeteredInstances::new(subject.instances, meter));
        contract::instances::Subject {
            instances,
            ..subject
        }
    });
}

mod instances_contract {
    ports::instances_contract!(super::instances);
}
mod key_value_contract {
    ports::key_value_contract!(super::key_value);
}
mod queue_contract {
    ports::queue_contract!(super::queue);
}
mod functions_contract {
    ports::functions_contract!(super::functions);
}
mod durability_contract {
    ports::durability_contract!(super::durability);
}
mod objects_contract {
    ports::objects_contract!(super::objects);
}

#[test]
fn a_store_counts_items_and_bytes() {
    simulated::run(async {
        let (world, meter) = (World::new(1), meter());
        let store = MeteredKeyValue::new(world.key_value(), Arc::clone(&meter));
        use_store(&store).await;

        let usage = meter.usage();
        let item = 4 + 1_500;
        assert_eq!(
            usage.of(Operation::KeyValueUpdate),
            Count {
                calls: 4,
                failures: 1,
                items: 3,
                bytes: 3 * item,
            }
        );
        assert_eq!(
            usage.of(Operation::KeyValueTransact),
            Count {
                calls: 1,
                items: 2,
                bytes: 2 * item,
                ..Count::default()
            }
        );
        assert_eq!(
            usage.of(Operation::KeyValueGet),
            Count {
                calls: 1,
                ..Count::default()
            }
        );
        let scanned = Count {
            calls: 1,
            items: 3,
            bytes: 3 * (item + 1),
            ..Count::default()
        };
        assert_eq!(usage.of(Operation::KeyValueScan), scanned);
    });
}

#[test]
fn queues_and_functions_count_requests_and_runs() {
    simulated::run(async {
        let (world, meter) = (World::new(1), meter());
        let subject = subjects::functions(&world);
        register_sleeper(&subject, &meter);
        let queue = MeteredQueue::new(subject.queue, Arc::clone(&meter));
        let functions = MeteredFunctions::new(subject.functions, Arc::clone(&meter));
        queue
            .create("q", QueueOptions::default())
            .await
            .expect("calm");
        let message = |body: &'static [u8]| Message {
            group: Bytes::from_static(b"g"),
            deduplication: None,
            body: Bytes::from_static(body),
        };
        queue
            .send("q", vec![message(b"one"), message(b"three")])
            .await
            .expect("calm");
        functions
            .invoke("sleeper", Bytes::from_static(b"call"))
            .await
            .expect("calm");
        let (queue_name, function) = ("q".to_owned(), "sleeper".to_owned());
        let trigger = QueueTrigger {
            queue: queue_name,
            function,
            batch_messages_max: 10,
            groups_max: 1,
        };
        functions.arm_queue(trigger).await.expect("calm");
        world.clock().sleep(std::time::Duration::from_secs(5)).await;

        let usage = meter.usage();
        let sent = Count {
            calls: 1,
            items: 2,
            bytes: 8,
            ..Count::default()
        };
        assert_eq!(usage.of(Operation::QueueSend), sent);
        assert_eq!(usage.of(Operation::FunctionInvoke).bytes, 4);
        assert_eq!(
            (
                usage.of(Operation::FunctionRun).calls,
                usage.of(Operation::FunctionArm).calls
            ),
            (2, 1)
        );
    });
}

/// Seven calls of every kind, one of which fails.
async fn use_store(store: &MeteredKeyValue) {
    let store: &dyn KeyValue = store;
    let place = |n: i64| Key::new("p", format!("{n}"));
    let body = Bytes::from(vec![b'x'; 1_500]);
    let set = |n| Update::modify(place(n), vec![Action::set("body", body.clone())]);
    store.update(set(1)).await.expect("calm");
    store
        .update(set(1).when(Condition::Absent))
        .await
        .expect("a conflict is an answer");
    store.update(set(1)).await.expect("calm");
    store.transact(vec![set(2), set(3)]).await.expect("calm");
    store.get(&place(9)).await.expect("calm");
    store.scan(&Scan::partition("p", 10)).await.expect("calm");
    let too_large = vec![Action::set("body", vec![0; 1 << 20])];
    store
        .update(Update::modify(place(4), too_large))
        .await
        .expect_err("too large");
}

/// Registers a metered [`Sleeper`].
fn register_sleeper(subject: &contract::functions::Subject, meter: &Arc<Meter>) {
    let definition = Definition {
        name: "sleeper".into(),
        options: ports::functions::FunctionOptions::default(),
        handler: Arc::new(Sleeper(Arc::clone(&subject.clock))),
    };
    subject
        .register
        .register(MeteredFunctions::metered(definition, Arc::clone(meter)));
}

/// Sleeps for a second.
#[derive(Debug)]
struct Sleeper(Arc<dyn ports::Clock>);

#[async_trait::async_trait]
impl ports::Handler for Sleeper {
    async fn handle(&self, _: ports::Event) -> Result<Bytes, ports::functions::Failure> {
        self.0.sleep(std::time::Duration::from_secs(1)).await;
        Ok(Bytes::new())
    }
}

#[test]
fn objects_count_requests_and_bytes() {
    simulated::run(async {
        let (world, meter) = (World::new(1), meter());
        let objects = MeteredObjects::around(world.objects(), Arc::clone(&meter));
        let path = ObjectPath::from("a/b");
        objects
            .put(&path, Bytes::from_static(b"twelve bytes").into())
            .await
            .expect("calm");
        objects
            .get(&path)
            .await
            .expect("calm")
            .bytes()
            .await
            .expect("calm");
        objects.get_range(&path, 0..5).await.expect("calm");
        objects.head(&path).await.expect("calm");
        objects
            .get(&ObjectPath::from("missing"))
            .await
            .expect_err("there is none");
        objects.delete(&path).await.expect("calm");

        let usage = meter.usage();
        let put = Count {
            calls: 1,
            items: 1,
            bytes: 12,
            ..Count::default()
        };
        assert_eq!(usage.of(Operation::ObjectPut), put);
        let got = Count {
            calls: 4,
            failures: 1,
            items: 3,
            bytes: 17,
        };
        assert_eq!(usage.of(Operation::ObjectGet), got);
        assert_eq!(usage.of(Operation::ObjectDelete).calls, 1);
    });
}

#[test]
fn an_instance_counts_its_memory_until_its_handle_is_dropped() {
    simulated::run(async {
        let world = World::new(1);
        let subject = subjects::instances(&world);
        let meter = FunctionMemoryMeter::new(world.clock());
        let metered = MeteredInstances::new(subject.instances, Arc::clone(&meter));
        let bytes = subject.spec.memory_bytes;
        let first = metered.start(&subject.spec).await.expect("calm");
        let second = metered.start(&subject.spec).await.expect("calm");
        let began = meter.usage().running.byte_seconds;
        world.clock().sleep(Duration::from_secs(10)).await;
        drop(first);
        world.clock().sleep(Duration::from_secs(5)).await;
        let running = meter.usage().running;
        assert_eq!((running.bytes, running.bytes_max), (bytes, 2 * bytes));
        assert_eq!(running.byte_seconds - began, u128::from(bytes) * 25);
        drop(second);
        world.clock().sleep(Duration::from_secs(5)).await;
        assert_eq!(meter.usage().running.byte_seconds, running.byte_seconds);
    });
}

#[test]
fn an_upload_in_parts_counts_its_begin_each_part_and_its_end() {
    simulated::run(async {
        let (world, meter) = (World::new(1), meter());
        let objects = MeteredObjects::around(world.objects(), Arc::clone(&meter));
        let path = ObjectPath::from("parts");
        let mut upload = objects.put_multipart(&path).await.expect("calm");
        for part in [&b"first"[..], b"second"] {
            upload
                .put_part(Bytes::from_static(part).into())
                .await
                .expect("calm");
        }
        upload.complete().await.expect("calm");
        let put = meter.usage().of(Operation::ObjectPut);
        assert_eq!((put.calls, put.items, put.bytes), (4, 1, 11));
        let ranges = [0..1, 2..4];
        objects.get_ranges(&path, &ranges).await.expect("calm");
        let get = meter.usage().of(Operation::ObjectGet);
        assert_eq!((get.calls, get.items, get.bytes), (2, 2, 3));
    });
}
