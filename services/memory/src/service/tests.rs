//! The service on simulated stores and instances.

mod abandoned;
mod buffer;
mod cache;
mod events;
mod metering;
mod races;
mod random_calls;
mod recovery;
mod rules;
mod shared;
mod streaming;
mod window;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use ports::{
    instances::Death,
    objects::{ObjectStoreExt as _, PutOptions},
};
use simulated::{
    World,
    instances::{End, Inside, Program},
    percent, run, seeds,
};

use super::*;
use crate::{
    function::{Function, Wire, serve},
    model::{ETags, NamedPart, PART_BYTES_MIN, UploadId},
    window::FunctionId,
};

/// The content of a stripe in these tests.
const STRIPE: usize = 4 * 1024;

struct Channel(End);

#[async_trait::async_trait]
impl Wire for Channel {
    async fn receive(&self) -> Option<Bytes> {
        self.0.receive().await
    }
    async fn send(&self, message: Bytes) -> bool {
        self.0.send(message).await
    }
}

/// Counts itself while it lives.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn program(count: Arc<AtomicUsize>) -> Program {
    Arc::new(move |inside: Inside| {
        let running = Running::new(&count);
        Box::pin(async move {
            let _running = running;
            let environment = inside.spec.environment.clone();
            let function = Function::from_environment(|name| environment.get(name).cloned());
            let function = function.expect("the daemon sets it");
            let wires = stream::unfold(inside, |mut inside| async move {
                Some((Channel(inside.accept().await?), inside))
            });
            serve(&function, wires).await;
            Death::Exited(0)
        })
    })
}

/// A start of the service. Dropping it ends it, as a crash of the process would.
struct Started {
    service: Service,
    /// The processes of instances that have not ended.
    running: Arc<AtomicUsize>,
    run: tokio::task::JoinHandle<()>,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.run.abort();
        self.service.end();
    }
}

fn config() -> Config {
    Config {
        command: vec!["function".to_owned()],
        instance_bytes: OVERHEAD_BYTES + (1 << 20),
        memory_bytes_max: 1 << 30,
        data_units: 4,
        parity_units: 2,
        unit_bytes: STRIPE as u32 / 4,
        ..Config::default()
    }
}

fn of(mutant: Mutant<Broken>, config: Config) -> Config {
    Config { mutant, ..config }
}

/// A group is full with two objects of [`LARGE`] bytes.
fn small() -> Config {
    Config {
        instance_bytes: OVERHEAD_BYTES + (64 << 10),
        ..config()
    }
}

/// The size of an object whose chunk takes 24 KiB of an instance.
const LARGE: usize = 20 * STRIPE;

fn start_with(world: &World, clock: Arc<dyn Clock>, config: &Config) -> Started {
    start_on(world, clock, config, (world.objects(), None))
}

/// A start on an object store and the buffer before it.
fn start_on(
    world: &World,
    clock: Arc<dyn Clock>,
    config: &Config,
    (objects, buffer): (Arc<dyn ObjectStore>, Option<Arc<dyn ObjectStore>>),
) -> Started {
    let count = Arc::<AtomicUsize>::default();
    let parts = Parts {
        key_value: world.key_value(),
        objects,
        buffer,
        instances: world.instances(program(Arc::clone(&count))),
        clock,
        entropy: world.entropy(),
    };
    let service = Service::new(parts, config);
    let running = service.clone();
    Started {
        service,
        running: count,
        run: tokio::spawn(async move { running.run().await }),
    }
}

fn start(world: &World) -> Started {
    start_with(world, world.clock(), &config())
}

/// An instance of the first group.
async fn instance(service: &Service, index: u8) -> Arc<crate::instance::Instance> {
    let function = FunctionId {
        group: crate::window::GroupId(0),
        index,
    };
    let instance = service.groups.instance(function).await;
    instance.expect("it is there")
}

async fn started(world: &World) -> Started {
    let started = start(world);
    started.service.create_bucket("b").await.expect("made");
    started
}

/// Content that differs from place to place.
fn content(seed: u64, bytes: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    content.into()
}

fn body(content: &Bytes) -> Body {
    let pieces: Vec<_> = content
        .chunks(1000)
        .map(Bytes::copy_from_slice)
        .map(Ok)
        .collect();
    Box::pin(stream::iter(pieces))
}

async fn store(service: &Service, content: &Bytes) -> Result<Stored> {
    let bytes = Some(content.len() as u64);
    service.store("b", body(content), bytes).await
}

async fn put_under(
    service: &Service,
    key: &str,
    content: &Bytes,
    conditions: &Conditions,
) -> Result<Object> {
    let stored = store(service, content).await?;
    let attributes = Attributes::default();
    service
        .commit("b", key, stored, attributes, conditions)
        .await
}

async fn put(service: &Service, key: &str, content: &Bytes) -> Object {
    let put = put_under(service, key, content, &Conditions::default()).await;
    put.expect("it is stored")
}

async fn read(opened: Opened, range: Range<u64>) -> Result<Vec<u8>> {
    let pieces: Vec<Bytes> = opened.read(range).try_collect().await?;
    Ok(pieces.concat())
}

async fn get(service: &Service, key: &str) -> Result<Vec<u8>> {
    let opened = service.open("b", key).await?;
    let bytes = opened.object().bytes;
    read(opened, 0..bytes).await
}

async fn stored_objects(world: &World) -> usize {
    let prefix = "memory".into();
    world.objects().list(Some(&prefix)).count().await
}

/// An hour of virtual time.
const WAITS_MAX: u32 = 60 * 60 * 100;

/// Waits until `holds`.
async fn until<F: Future<Output = bool>>(world: &World, holds: impl Fn() -> F) {
    let mut waits = 0;
    while !holds().await {
        world
            .clock()
            .sleep(std::time::Duration::from_millis(10))
            .await;
        waits += 1;
        assert!(waits < WAITS_MAX, "seed {}: in vain", world.seed());
    }
}

const SIZES: [usize; 9] = [
    0,
    1,
    8192,
    8193,
    3 * STRIPE - 1,
    3 * STRIPE,
    3 * STRIPE + 1,
    7 * STRIPE + 17,
    20 * STRIPE + 3,
];

/// M7.
#[test]
fn every_range_of_an_object_is_read_from_memory_from_parity_and_from_the_store() {
    run(async {
        let world = World::new(1);
        let started = started(&world).await;
        let service = &started.service;
        for (seed, bytes) in SIZES.into_iter().enumerate() {
            put(service, &format!("{bytes}"), &content(seed as u64, bytes)).await;
        }
        assert_eq!(service.figures().instances, 6);
        check_ranges(service).await;
        for dead in [0, 4] {
            let dead = instance(service, dead).await;
            dead.end();
            dead.died().await;
        }
        check_ranges(service).await;
        service.end();
        check_ranges(service).await;
    });
}

async fn check_ranges(service: &Service) {
    let mut random = fastrand::Rng::with_seed(5);
    for (seed, bytes) in SIZES.into_iter().enumerate() {
        let whole = content(seed as u64, bytes);
        assert_eq!(
            get(service, &format!("{bytes}"))
                .await
                .expect("it is there"),
            whole
        );
        for _ in 0..20 {
            let start = random.usize(0..=bytes);
            let end = random.usize(start..=bytes);
            let opened = service
                .open("b", &format!("{bytes}"))
                .await
                .expect("it is there");
            let part = read(opened, start as u64..end as u64)
                .await
                .expect("it is read");
            assert_eq!(part, whole[start..end], "{start}..{end} of {bytes}");
        }
    }
}

/// M7: chunks of a dead instance come back, and so do fragments that only the store has.
#[test]
fn function_memory_fills_again_after_deaths_and_restarts() {
    run(async {
        let world = World::new(2);
        let first = started(&world).await;
        let whole = content(1, 9 * STRIPE);
        put(&first.service, "k", &whole).await;
        let dead = instance(&first.service, 3).await;
        dead.end();
        dead.died().await;
        until(&world, || async {
            let function = FunctionId {
                group: crate::window::GroupId(0),
                index: 3,
            };
            let present = first.service.groups.instance(function).await;
            present.is_some_and(|one| one.id() != dead.id() && one.used_bytes() > 0)
        })
        .await;
        for index in [0, 1] {
            let dead = instance(&first.service, index).await;
            dead.end();
            dead.died().await;
        }
        assert_eq!(get(&first.service, "k").await.expect("it is there"), whole);
        drop(first);
        let second = start(&world);
        assert_eq!(second.service.figures().fragments, 0);
        assert_eq!(get(&second.service, "k").await.expect("it is there"), whole);
        until(&world, || async { second.service.figures().fragments == 1 }).await;
        assert_eq!(get(&second.service, "k").await.expect("it is there"), whole);
    });
}

#[test]
fn content_that_is_not_committed_is_collected_also_after_a_crash() {
    run(async {
        let world = World::new(5);
        let first = started(&world).await;
        let dropped = store(&first.service, &content(1, 3 * STRIPE)).await;
        drop(dropped.expect("it is stored"));
        until(&world, || async { stored_objects(&world).await == 0 }).await;
        let pending = store(&first.service, &content(1, 3 * STRIPE)).await;
        put(&first.service, "k", &content(2, 3 * STRIPE)).await;
        assert_eq!(stored_objects(&world).await, 2);
        std::mem::forget(pending);
        drop(first);
        let second = start(&world);
        until(&world, || async { stored_objects(&world).await == 1 }).await;
        assert_eq!(
            get(&second.service, "k").await.expect("it is there"),
            content(2, 3 * STRIPE)
        );
    });
}

#[test]
fn a_body_of_another_length_stores_nothing() {
    run(async {
        let world = World::new(6);
        let started = started(&world).await;
        for bytes in [100, 3 * STRIPE] {
            let content = content(1, bytes);
            for announced in [bytes as u64 - 1, bytes as u64 + 1] {
                let stored = started
                    .service
                    .store("b", body(&content), Some(announced))
                    .await;
                assert!(
                    matches!(stored, Err(Error::Body(_) | Error::TooLarge(_))),
                    "{stored:?}"
                );
            }
        }
        until(&world, || async { stored_objects(&world).await == 0 }).await;
    });
}

#[test]
fn a_full_object_store_refuses_large_objects_until_it_has_room() {
    run(async {
        let world = World::new(9);
        let started = started(&world).await;
        let service = &started.service;
        let (old, new) = (content(1, 9 * STRIPE), content(2, 9 * STRIPE));
        put(service, "k", &old).await;
        world.fill_disk_of_objects();
        let refused = put_under(service, "k", &new, &Conditions::default()).await;
        assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
        assert!(get(service, "k").await.expect("it is there") == old);
        world.empty_disk_of_objects();
        put(service, "k", &new).await;
        assert!(get(service, "k").await.expect("it is there") == new);
        until(&world, || async { stored_objects(&world).await == 1 }).await;
    });
}

async fn upload_parts(service: &Service, upload: UploadId, sizes: &[usize]) -> Vec<NamedPart> {
    let mut named = Vec::new();
    for (index, bytes) in sizes.iter().enumerate() {
        let number = index as u16 + 1;
        let stored = store(service, &content(u64::from(number), *bytes))
            .await
            .expect("stored");
        let part = service
            .commit_part("b", "k", upload, number, stored, BTreeMap::new())
            .await;
        named.push(NamedPart {
            number,
            etag: part.expect("committed").etag,
        });
    }
    named
}

/// M1, for uploads in parts.
#[test]
fn a_completed_upload_is_its_parts_in_order_and_leaves_nothing_else() {
    run(async {
        let world = World::new(7);
        let started = started(&world).await;
        let service = &started.service;
        let sizes = [PART_BYTES_MIN as usize, PART_BYTES_MIN as usize + 1, 10];
        let upload = service
            .begin_upload("b", "k", Attributes::default())
            .await
            .expect("begun");
        let named = upload_parts(service, upload, &sizes).await;
        // A part that is uploaded again, and one that is not used.
        let named = [
            &named[..],
            &upload_parts(service, upload, &sizes).await[..0],
        ]
        .concat();
        let stored = store(service, &content(9, 3 * STRIPE))
            .await
            .expect("stored");
        service
            .commit_part("b", "k", upload, 9, stored, BTreeMap::new())
            .await
            .expect("committed");
        assert!(matches!(
            service.head("b", "k").await,
            Err(Error::NoSuchObject)
        ));
        let none = Conditions::default();
        let completed = service
            .complete_upload("b", "k", upload, &named, BTreeMap::new(), &none)
            .await;
        let object = completed.expect("completed");
        assert!(object.etag.ends_with("-3"), "{}", object.etag);
        assert_eq!(object.parts, sizes.map(|bytes| bytes as u64));
        let whole: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(index, bytes)| content(index as u64 + 1, *bytes))
            .collect();
        assert!(get(service, "k").await.expect("it is there") == whole.concat());
        let again = service
            .complete_upload("b", "k", upload, &named, BTreeMap::new(), &none)
            .await;
        assert_eq!(again.expect("it was completed").version, object.version);
        until(&world, || async { stored_objects(&world).await == 2 }).await;
        service.delete("b", "k", &none).await.expect("deleted");
        let again = service
            .complete_upload("b", "k", upload, &named, BTreeMap::new(), &none)
            .await;
        assert!(matches!(again, Err(Error::NoSuchUpload)));
        until(&world, || async {
            stored_objects(&world).await == 0 && service.delete_bucket("b").await.is_ok()
        })
        .await;
    });
}

/// Keys to one bucket reach no upload of another by its id.
#[test]
fn an_upload_is_of_its_bucket_and_key_alone() {
    run(async {
        let world = World::new(11);
        let started = started(&world).await;
        let service = &started.service;
        service.create_bucket("other").await.expect("made");
        let begun = service.begin_upload("b", "k", Attributes::default()).await;
        let upload = begun.expect("begun");
        let named = upload_parts(service, upload, &[100]).await;
        let none = Conditions::default();
        for (bucket, key) in [("other", "k"), ("b", "other")] {
            let stored = store(service, &content(1, 100)).await.expect("stored");
            let part = service.commit_part(bucket, key, upload, 2, stored, BTreeMap::new());
            assert!(matches!(part.await, Err(Error::NoSuchUpload)));
            let parts = service.parts(bucket, key, upload, 0, 10).await;
            assert!(matches!(parts, Err(Error::NoSuchUpload)));
            let completed =
                service.complete_upload(bucket, key, upload, &named, BTreeMap::new(), &none);
            assert!(matches!(completed.await, Err(Error::NoSuchUpload)));
            let aborted = service.abort_upload(bucket, key, upload).await;
            assert!(matches!(aborted, Err(Error::NoSuchUpload)));
        }
        let completed = service.complete_upload("b", "k", upload, &named, BTreeMap::new(), &none);
        assert_eq!(completed.await.expect("completed").bytes, 100);
    });
}

#[test]
fn a_list_shows_each_key_or_common_prefix_once_in_the_order_of_bytes() {
    run(async {
        let world = World::new(8);
        let started = started(&world).await;
        let keys = [
            "a",
            "a/",
            "a/b",
            "a/c/d",
            "b//x",
            "b/y",
            "\u{ff5e}",
            "\u{1f600}",
        ];
        for key in keys {
            put(&started.service, key, &Bytes::new()).await;
        }
        for items_max in 1..10 {
            for (delimiter, expected) in [
                (None, keys.to_vec()),
                (
                    Some("/".to_owned()),
                    vec!["a", "a/", "b/", "\u{ff5e}", "\u{1f600}"],
                ),
            ] {
                let mut list = List {
                    delimiter,
                    items_max,
                    ..List::default()
                };
                let mut shown = Vec::new();
                loop {
                    let page = started.service.list("b", &list).await.expect("listed");
                    let keys = page.objects.into_iter().map(|object| object.key);
                    let mut items: Vec<_> = keys.chain(page.prefixes).collect();
                    assert!(items.len() <= items_max);
                    items.sort();
                    shown.extend(items);
                    let Some(next) = page.next else { break };
                    list.after = Some(next);
                }
                assert_eq!(shown, expected);
            }
        }
    });
}

/// Memory that ages all the time, and is released often.
fn ageing() -> Config {
    Config {
        gc_interval: Duration::from_millis(100),
        active_intervals: 2,
        degraded_intervals: 2,
        memory_bytes_max: 2 * 6 * small().instance_bytes,
        ..small()
    }
}

/// M1, M6, M7: with instances that die at any message, and a crash of the stores between changes.
#[test]
fn acknowledged_objects_survive_deaths_of_instances_and_crashes() {
    for seed in seeds(50) {
        run(async {
            let world = World::new(seed);
            let mut random = fastrand::Rng::with_seed(seed);
            let config = ageing();
            let start = || start_with(&world, world.clock(), &config);
            let mut current = start();
            let made = current.service.create_bucket("b").await;
            made.expect("made");
            world.faults().kill_instances(percent(2));
            let mut model = BTreeMap::new();
            for step in 0..60 {
                let key = format!("k{}", random.u8(0..4));
                let sizes = [0, 100, 3 * STRIPE, 5 * STRIPE + 1];
                match random.u8(0..10) {
                    0..4 => {
                        let content = content(step, sizes[random.usize(0..4)]);
                        put(&current.service, &key, &content).await;
                        model.insert(key, content);
                    }
                    4 => {
                        let deleted = current
                            .service
                            .delete("b", &key, &Conditions::default())
                            .await;
                        deleted.expect("deleted");
                        model.remove(&key);
                    }
                    5 => {
                        drop(current);
                        world.crash();
                        current = start();
                    }
                    6 => {
                        let pause = Duration::from_millis(random.u64(0..500));
                        world.clock().sleep(pause).await;
                    }
                    _ => match (get(&current.service, &key).await, model.get(&key)) {
                        (Ok(read), Some(expected)) => assert!(read == *expected, "seed {seed}"),
                        (Err(Error::NoSuchObject), None) => {}
                        (read, _) => {
                            panic!("seed {seed}, {key}: {:?}", read.map(|read| read.len()))
                        }
                    },
                }
            }
            let large = model
                .values()
                .filter(|content| content.len() > 8192)
                .count();
            until(&world, || async { stored_objects(&world).await == large }).await;
        });
    }
}
