//! The window over function memory: it slides, releases memory, and keeps what is read.

use async_trait::async_trait;
use ports::{Monotonic, Timestamp, metering::function_memory::Category};

use super::*;
use crate::window::GroupId;

pub(super) const MINUTE: Duration = Duration::from_mins(1);

/// A clock that counts its sleeps.
#[derive(Debug)]
struct Counting {
    clock: Arc<dyn Clock>,
    sleeps: Arc<AtomicUsize>,
}

#[async_trait]
impl Clock for Counting {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
    fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
    async fn sleep(&self, duration: Duration) {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.clock.sleep(duration).await;
    }
}

/// Two active intervals of a minute, two degraded ones, and two objects to a group.
pub(super) fn by_minutes() -> Config {
    Config {
        gc_interval: MINUTE,
        active_intervals: 2,
        degraded_intervals: 2,
        ..small()
    }
}

pub(super) async fn started_with(world: &World, config: &Config) -> Started {
    let started = start_with(world, world.clock(), config);
    started.service.create_bucket("b").await.expect("made");
    started
}

pub(super) async fn put_large(service: &Service, keys: std::ops::Range<u64>) {
    for key in keys {
        put(service, &key.to_string(), &content(key, LARGE)).await;
    }
}

pub(super) async fn all_are_read(service: &Service, keys: std::ops::Range<u64>) {
    for key in keys {
        let read = get(service, &key.to_string()).await;
        assert!(
            read.expect("it is there") == content(key, LARGE),
            "object {key}"
        );
    }
}

/// The oldest group that has a chunk of the object; none: it is not in memory.
pub(super) async fn group_of(service: &Service, key: &str) -> Option<GroupId> {
    let opened = service.open("b", key).await.expect("it is there");
    let fragment = opened.place.segments[0].fragments().next().expect("one");
    let chunks = service.reader.residency.chunks(fragment.name)?;
    Some(chunks.oldest()?.group)
}

/// M7: memory is released by time, and every object stays readable.
#[test]
fn memory_is_released_as_the_window_slides_and_every_object_stays_readable() {
    run(async {
        let world = World::new(1);
        let started = started_with(&world, &by_minutes()).await;
        let service = &started.service;
        for minute in 0..12 {
            put_large(service, 2 * minute..2 * minute + 2).await;
            world.clock().sleep(MINUTE).await;
            let figures = service.figures();
            let groups = figures.groups_active + figures.groups_degraded;
            assert!(groups <= 6, "{figures:?} in minute {minute}");
            assert_eq!(figures.instances, 6 * groups);
        }
        let figures = service.figures();
        assert!(figures.groups_released >= 6, "{figures:?}");
        assert!(figures.groups_degraded > 0, "{figures:?}");
        assert!(figures.fragments <= 12, "{figures:?}");
        assert_eq!(figures.fragments_refused, 0);
        until(&world, || async {
            started.running.load(Ordering::SeqCst) == service.figures().instances
        })
        .await;
        assert_eq!(group_of(service, "0").await, None);
        all_are_read(service, 0..24).await;
        all_are_read(service, 0..24).await;
    });
}

/// Section 5.3.3: on-demand migration.
#[test]
fn a_read_of_a_degraded_fragment_keeps_it_in_memory() {
    run(async {
        let world = World::new(2);
        let started = started_with(&world, &by_minutes()).await;
        let service = &started.service;
        put_large(service, 0..3).await;
        assert_eq!(group_of(service, "0").await, Some(GroupId(0)));
        until(&world, || async { service.figures().groups_degraded == 1 }).await;
        all_are_read(service, 0..1).await;
        all_are_read(service, 0..1).await;
        until(&world, || async {
            group_of(service, "0").await == Some(GroupId(1))
        })
        .await;
        until(&world, || async { service.figures().groups_released == 1 }).await;
        assert_eq!(group_of(service, "0").await, Some(GroupId(1)));
        assert_eq!(
            group_of(service, "1").await,
            None,
            "it was released with its group"
        );
        all_are_read(service, 0..3).await;
    });
}

/// Section 5.3.3: compaction.
#[test]
fn fragments_of_active_groups_that_are_read_again_move_in_rounds() {
    run(async {
        let world = World::new(3);
        let started = started_with(&world, &by_minutes()).await;
        let service = &started.service;
        put_large(service, 0..3).await;
        world.clock().sleep(MINUTE + MINUTE / 2).await;
        assert_eq!(service.figures().groups_degraded, 0);
        all_are_read(service, 0..1).await;
        assert_eq!(group_of(service, "0").await, Some(GroupId(0)));
        world.clock().sleep(MINUTE / 4).await;
        assert_eq!(service.figures().groups_degraded, 0);
        assert_eq!(group_of(service, "0").await, Some(GroupId(1)));
        assert_eq!(group_of(service, "1").await, Some(GroupId(0)));
        all_are_read(service, 0..3).await;
    });
}

#[test]
fn at_the_bound_the_oldest_group_is_released_early() {
    run(async {
        let world = World::new(4);
        let config = Config {
            memory_bytes_max: 2 * 6 * by_minutes().instance_bytes,
            ..by_minutes()
        };
        let started = started_with(&world, &config).await;
        let service = &started.service;
        put_large(service, 0..10).await;
        let figures = service.figures();
        assert_eq!((figures.groups_released, figures.instances), (3, 12));
        assert_eq!((figures.fragments, figures.fragments_refused), (4, 0));
        assert_eq!(group_of(service, "0").await, None);
        assert_eq!(group_of(service, "9").await, Some(GroupId(4)));
        until(&world, || async {
            started.running.load(Ordering::SeqCst) == 12
        })
        .await;
        all_are_read(service, 0..10).await;
    });
}

/// M6: units that are being sent keep their instance, and with it the memory of a group.
#[test]
fn memory_that_a_slow_reader_keeps_counts_against_the_bound() {
    run(async {
        let world = World::new(8);
        let config = Config {
            memory_bytes_max: 2 * 6 * by_minutes().instance_bytes,
            ..by_minutes()
        };
        let started = started_with(&world, &config).await;
        let service = &started.service;
        put_large(service, 0..4).await;
        let opened = service.open("b", "0").await.expect("it is there");
        let held = opened.read(0..100).next().await;
        for key in 4..10 {
            put_large(service, key..key + 1).await;
            let running = started.running.load(Ordering::SeqCst);
            assert!(running <= 12, "{running} after object {key}");
        }
        let figures = service.figures();
        assert_eq!((figures.fragments_refused, figures.instances), (1, 6));
        let held = held.expect("some").expect("it is read");
        assert_eq!(held, content(0, LARGE)[..100]);
        drop(held);
        put_large(service, 10..14).await;
        let figures = service.figures();
        assert_eq!((figures.fragments_refused, figures.instances), (1, 12));
        all_are_read(service, 0..14).await;
    });
}

#[test]
fn a_reader_that_stops_keeps_no_memory() {
    run(async {
        let world = World::new(9);
        let started = started_with(&world, &by_minutes()).await;
        let service = &started.service;
        put_large(service, 0..1).await;
        let opened = service.open("b", "0").await.expect("it is there");
        let mut reading = opened.read(0..LARGE as u64);
        let first = reading.next().await.expect("some").expect("it is read");
        world.clock().sleep(10 * MINUTE).await;
        assert_eq!(started.running.load(Ordering::SeqCst), 0);
        let rest: Vec<Bytes> = reading.try_collect().await.expect("it is read");
        assert_eq!([vec![first], rest].concat().concat(), content(0, LARGE));
    });
}

#[test]
fn an_object_without_a_place_in_memory_is_in_the_store_alone() {
    run(async {
        let world = World::new(5);
        let started = started_with(&world, &by_minutes()).await;
        let service = &started.service;
        let too_large = content(1, 4 * LARGE);
        put(service, "k", &too_large).await;
        assert_eq!(service.figures().fragments_refused, 1);
        assert_eq!(service.figures().instances, 0);
        assert!(get(service, "k").await.expect("it is there") == too_large);
        // No instance can be started.
        world.faults().kill_instances(percent(100));
        put_large(service, 0..1).await;
        assert_eq!(service.figures().instances, 0);
        world.faults().calm();
        all_are_read(service, 0..1).await;
        until(&world, || async { service.figures().fragments == 1 }).await;
    });
}

#[test]
fn after_the_last_release_there_is_no_timer_and_no_call() {
    run(async {
        let world = World::new(6);
        let sleeps = Arc::<AtomicUsize>::default();
        let clock = Counting {
            clock: world.clock(),
            sleeps: Arc::clone(&sleeps),
        };
        let started = start_with(&world, Arc::new(clock), &by_minutes());
        let service = &started.service;
        service.create_bucket("b").await.expect("made");
        for _ in 0..2 {
            put_large(service, 0..3).await;
            all_are_read(service, 0..3).await;
            world.clock().sleep(10 * MINUTE).await;
            let figures = service.figures();
            assert_eq!((figures.instances, figures.fragments), (0, 0));
            assert_eq!(started.running.load(Ordering::SeqCst), 0);
            let used = || {
                let usage = service.usage();
                let sleeps = sleeps.load(Ordering::SeqCst);
                let memory = (usage.running, usage.resident);
                (
                    world.port_calls(),
                    sleeps,
                    Category::ALL.map(|one| usage.of(one)),
                    memory,
                )
            };
            let before = used();
            world.clock().sleep(60 * MINUTE).await;
            assert_eq!(used(), before);
        }
        all_are_read(service, 0..3).await;
    });
}

/// Warm-ups in the five minutes in which one group is active and one degraded, and those after the
/// last release.
async fn warm_ups(mutant: Mutant<Broken>) -> (u64, u64) {
    let world = World::new(7);
    let config = Config {
        gc_interval: 10 * MINUTE,
        active_intervals: 1,
        degraded_intervals: 1,
        warm_ups: Some(WarmUps::default()),
        mutant,
        ..small()
    };
    let started = started_with(&world, &config).await;
    let service = &started.service;
    let warmed = || service.usage().of(Category::WarmUp).count;
    put_large(service, 0..3).await;
    world.clock().sleep(9 * MINUTE + MINUTE / 2).await;
    assert_eq!(warmed(), 9 * 12);
    world.clock().sleep(MINUTE).await;
    let (figures, before) = (service.figures(), warmed());
    assert_eq!((figures.groups_active, figures.groups_degraded), (1, 1));
    world.clock().sleep(5 * MINUTE).await;
    let in_five_minutes = warmed() - before;
    until(&world, || async { service.figures().instances == 0 }).await;
    let before = warmed();
    world.clock().sleep(60 * MINUTE).await;
    (in_five_minutes, warmed() - before)
}

/// Section 5.3: warm-ups are rarer for degraded functions, and keep nothing in memory.
#[test]
fn active_functions_are_warmed_up_each_minute_and_degraded_ones_each_five() {
    assert_eq!(run(warm_ups(Mutant::NONE)), (5 * 6 + 6, 0));
    let (all_alike, _) = run(warm_ups(Mutant::of(Broken::WarmsAllAlike)));
    assert_eq!(all_alike, 5 * 12);
}
