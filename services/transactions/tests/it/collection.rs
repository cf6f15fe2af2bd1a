//! T6, T9: unneeded data are deleted, and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use ports::{KeyValue, key_value::Scan};
use simulated::World;
use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};
use transactions::{
    Config, Error, Parts,
    broken::Broken,
    layout::{self, Buckets},
    model::{Call, NodeId, Outcome},
};

use crate::{
    gate::{Gate, Held},
    house::{
        Node, bytes, finished, in_virtual_time, items_at_rest, key, on_every_provider, open, parts,
        versions_at_rest,
    },
};

/// Longer than it takes until work is begun.
pub(crate) const MOMENT: Duration = Duration::from_secs(1);
/// Longer than any window except that of client ids.
pub(crate) const WINDOWS: Duration = Duration::from_mins(5);

fn broken(variant: Broken) -> Config {
    Config {
        mutant: variant.into(),
        ..Config::default()
    }
}

pub(crate) async fn row_of(store: &dyn KeyValue, call: &Call) -> bool {
    store
        .get(&Buckets::default().decision(&call.id))
        .await
        .expect("calm")
        .value
        .is_some()
}

/// The number of items in the partitions of transactions with this prefix.
async fn items_below(store: &dyn KeyValue, prefix: &[u8]) -> usize {
    let mut items = 0;
    for bucket in Buckets::default().all() {
        items += items_at_rest(store, [prefix, &[bucket]].concat()).await;
    }
    items
}

pub(crate) async fn rows_at_rest(store: &dyn KeyValue) -> usize {
    items_below(store, layout::DECISIONS).await
}

/// Non-empty slots of a node's log.
async fn slots_at_rest(store: &dyn KeyValue, node: u32) -> usize {
    let page = store
        .scan(&Scan::partition(layout::log(NodeId(node)), 1_000))
        .await
        .expect("calm")
        .value;
    page.items
        .iter()
        .filter(|(_, item)| item.bytes("payload").is_some())
        .count()
}

/// Waits until the store holds one version of the key.
async fn one_is_left(world: &World, name: &str) {
    for _ in 0..1_000 {
        if versions_at_rest(&*world.key_value(), name).await == 1 {
            return;
        }
        world.clock().sleep(Duration::from_millis(1)).await;
    }
    panic!("earlier versions of {name} are left");
}

/// Reads versions that another process, which presumed this one dead, has superseded and collected
/// since: no horizon of this one protects them.
async fn reads_behind_a_successor(
    world: &World,
    broken: Option<Broken>,
) -> Result<Option<String>, Error> {
    let config = || Config {
        mutant: broken.into(),
        data_cache_bytes_max: 0,
        ..Config::default()
    };
    let node = Node::on(world, world.key_value(), config()).await;
    node.write(&[("k", "first"), ("l", "first")]).await;
    world.clock().sleep(MOMENT).await;
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "l").await.as_deref(), Some("first"));
    let successor = Node::on(world, world.key_value(), config()).await;
    successor.write(&[("k", "second"), ("l", "second")]).await;
    one_is_left(world, "k").await;
    node.try_get(&reader, "k").await
}

/// T6: a node that was presumed dead does not report a version as missing, but that it no longer
/// serves.
#[test]
fn whoever_was_taken_for_dead_misses_nothing() {
    in_virtual_time(async |world| {
        let read = reads_behind_a_successor(&world, None).await;
        assert!(matches!(read, Err(Error::Unavailable(_))), "{read:?}");
    });
}

/// T6, broken.
#[test]
fn missing_what_a_successor_took_is_caught() {
    in_virtual_time(async |world| {
        let read = reads_behind_a_successor(&world, Some(Broken::MissesWhatSuccessorTook)).await;
        assert_eq!(read, Err(Error::NoValidVersion));
    });
}

async fn reads_through_overwrites(world: &World, config: Config) -> Result<Option<String>, Error> {
    let node = Node::on(world, world.key_value(), config).await;
    node.write(&[("k", "first"), ("l", "first")]).await;
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "l").await.as_deref(), Some("first"));
    for _ in 0..10 {
        node.write(&[("k", "later"), ("l", "later")]).await;
        world.clock().sleep(MOMENT).await;
    }
    let read = node.try_get(&reader, "k").await;
    if read.is_ok() {
        assert_eq!(
            node.engine.figures().collected_versions,
            0,
            "the reader may need them all"
        );
        node.commit(&reader).await;
        world.clock().sleep(MOMENT).await;
        for name in ["k", "l"] {
            assert_eq!(versions_at_rest(&*world.key_value(), name).await, 1);
        }
    }
    read
}

/// T6: a version that existed when a transaction began stays until it ends, however often it is
/// overwritten; then it is deleted.
#[test]
fn a_running_reader_finds_its_versions() {
    in_virtual_time(async |world| {
        let read = reads_through_overwrites(&world, Config::default()).await;
        assert_eq!(read, Ok(Some("first".to_owned())));
    });
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..broken(Broken::CollectsAboveHorizon)
        };
        let read = reads_through_overwrites(&world, config).await;
        assert_eq!(read, Err(Error::NoValidVersion), "the test would notice");
    });
}

/// T9: a key that is overwritten again and again keeps one version, and nothing is left of its
/// transactions once their windows are over.
#[test]
fn storage_stays_bounded_under_overwrites() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        for number in 0..300 {
            node.write(&[("k", &number.to_string()), ("l", &number.to_string())])
                .await;
        }
        node.write(&[("k", "last")]).await;
        world.clock().sleep(MOMENT).await;
        let store = world.key_value();
        assert_eq!(
            (
                versions_at_rest(&*store, "k").await,
                versions_at_rest(&*store, "l").await
            ),
            (1, 1)
        );
        let figures = node.engine.figures();
        assert_eq!(figures.collected_versions, 599);
        assert_eq!(
            (rows_at_rest(&*store).await, slots_at_rest(&*store, 1).await),
            (301, 301),
            "within their windows"
        );
        world.clock().sleep(WINDOWS).await;
        assert_eq!(
            (rows_at_rest(&*store).await, slots_at_rest(&*store, 1).await),
            (2, 0),
            "two keys, two writers"
        );
        assert_eq!(node.engine.figures().log_slots, 0);
        assert_eq!(node.now("l").await.as_deref(), Some("299"));
        node.write(&[("l", "last")]).await;
        world.clock().sleep(MOMENT).await;
        assert_eq!(
            rows_at_rest(&*store).await,
            2,
            "the row of the version that was superseded went with it"
        );
    });
}

/// The number of store reads that collect a hundred overwrites of a key.
async fn reads_to_collect(world: &World, config: Config, is_known: bool) -> usize {
    let node = Node::on(world, world.key_value(), config).await;
    let reads = |world: &World| {
        let reading = |operation: &str| matches!(operation, "get" | "scan");
        world
            .trace()
            .entries()
            .filter(|entry| reading(entry.operation))
            .count()
    };
    if is_known {
        assert_eq!(node.now("k").await, None);
    }
    world.clock().sleep(MOMENT).await;
    let before = reads(world);
    for number in 0..100 {
        node.write(&[("k", &number.to_string())]).await;
    }
    world.clock().sleep(MOMENT).await;
    assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 1);
    assert_eq!(node.engine.figures().collected_versions, 99);
    reads(world) - before - 1
}

/// T9: a node collects its recent writes without reading them back, whether or not the key is in
/// its index.
#[test]
fn what_was_written_here_is_collected_from_memory() {
    for is_known in [true, false] {
        in_virtual_time(async |world| {
            let reads = reads_to_collect(&world, Config::default(), is_known).await;
            assert!(reads < 10, "{reads}, known: {is_known}");
        });
        in_virtual_time(async |world| {
            let config = Config {
                recent_bytes_max: 0,
                ..Config::default()
            };
            let reads = reads_to_collect(&world, config, is_known).await;
            assert!(reads >= 100, "{reads}: what memory has forgotten is read");
        });
        in_virtual_time(async |world| {
            // Memory for a few: the older slots are read, the others are not.
            let config = Config {
                recent_bytes_max: 20_000,
                ..Config::default()
            };
            let reads = reads_to_collect(&world, config, is_known).await;
            assert!((10..100).contains(&reads), "{reads}");
        });
    }
}

/// T9: every transaction overwrites one key and writes a fresh one; only the fresh ones' versions
/// stay.
#[test]
fn a_counter_beside_fresh_keys_is_collected() {
    let left = |config| {
        let mut left = 0;
        in_virtual_time(async |world| {
            let node = Node::on(&world, world.key_value(), config).await;
            for number in 0..50 {
                node.write(&[
                    ("counter", &number.to_string()),
                    (&format!("order-{number}"), "new"),
                ])
                .await;
            }
            world.clock().sleep(MOMENT).await;
            left = versions_at_rest(&*world.key_value(), "counter").await;
        });
        left
    };
    assert_eq!(left(Config::default()), 1);
    assert_eq!(
        left(broken(Broken::CollectsWholeTransactions)),
        50,
        "the test would notice"
    );
}

/// T9: a deletion is dropped, and its key with it, once nothing older can reappear.
#[test]
fn a_deleted_key_leaves_nothing() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "v"), ("l", "v")]).await;
        node.engine
            .put_now(key("k"), None)
            .await
            .expect("committed");
        world.clock().sleep(MOMENT).await;
        let store = world.key_value();
        assert_eq!(versions_at_rest(&*store, "k").await, 1, "the deletion");
        let reader = node.begin().await;
        assert_eq!(node.get(&reader, "k").await, None);
        world.clock().sleep(Duration::from_secs(50)).await;
        assert_eq!(node.get(&reader, "k").await, None);
        world.clock().sleep(WINDOWS).await;
        assert_eq!(versions_at_rest(&*store, "k").await, 0);
        assert_eq!(rows_at_rest(&*store).await, 1, "of what is left");
        assert_eq!(
            (node.now("k").await, node.now("l").await.as_deref()),
            (None, Some("v"))
        );
    });
}

/// The values that a reader of `k`, then `m` finds, where both were written together and `m` is
/// deleted and collected since.
async fn reads_what_was_deleted_beside(
    world: &World,
    config: Config,
) -> Result<Option<String>, Error> {
    let node = Node::on(world, world.key_value(), config).await;
    node.write(&[("k", "v"), ("m", "v")]).await;
    node.engine
        .put_now(key("m"), None)
        .await
        .expect("committed");
    world.clock().sleep(WINDOWS).await;
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "k").await.as_deref(), Some("v"));
    node.try_get(&reader, "m").await
}

/// T2, T6: a collected deletion is still a deletion to a reader of what was written beside the
/// deleted version.
#[test]
fn a_deleted_key_stays_deleted_beside_what_it_was_written_with() {
    in_virtual_time(async |world| {
        assert_eq!(
            reads_what_was_deleted_beside(&world, Config::default()).await,
            Ok(None)
        );
    });
    in_virtual_time(async |world| {
        let read = reads_what_was_deleted_beside(&world, broken(Broken::RevivesCollected)).await;
        assert_eq!(read, Err(Error::NoValidVersion), "the test would notice");
    });
}

/// The values that a reader of `m`, then `k` finds, where both were written together and `m` is
/// deleted and collected since.
async fn reads_beside_an_absence(world: &World, config: Config) -> Result<Option<String>, Error> {
    let node = Node::on(world, world.key_value(), config).await;
    node.write(&[("k", "v"), ("m", "v")]).await;
    node.engine
        .put_now(key("m"), None)
        .await
        .expect("committed");
    world.clock().sleep(WINDOWS).await;
    assert_eq!(versions_at_rest(&*world.key_value(), "m").await, 0);
    let reader = node.begin().await;
    assert_eq!(node.get(&reader, "m").await, None);
    node.try_get(&reader, "k").await
}

/// T2, T6: absent is a position, not version zero.
#[test]
fn what_was_written_beside_a_deleted_key_stays_readable() {
    in_virtual_time(async |world| {
        let read = reads_beside_an_absence(&world, Config::default()).await;
        assert_eq!(read, Ok(Some("v".to_owned())));
    });
    in_virtual_time(async |world| {
        let read = reads_beside_an_absence(&world, broken(Broken::AbsenceIsVersionZero)).await;
        assert_eq!(read, Err(Error::NoValidVersion), "the test would notice");
    });
}

/// Counts the log lines of level error.
struct Errors(Arc<AtomicUsize>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// T6: beyond a number of superseded bytes the oldest reader's snapshot is evicted, and it receives
/// an error.
#[test]
fn an_old_reader_is_overtaken_and_told_so() {
    in_virtual_time(async |world| {
        let errors = Arc::<AtomicUsize>::default();
        let _watching = tracing::subscriber::set_default(Errors(Arc::clone(&errors)));
        let config = Config {
            superseded_bytes_max: 10_000,
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let large = "x".repeat(1_000);
        node.write(&[("k", "first"), ("l", "first"), ("stays", "first")])
            .await;
        let old = node.begin().await;
        assert_eq!(node.get(&old, "l").await.as_deref(), Some("first"));
        for number in 0..10 {
            node.write(&[("k", &large), ("l", &large)]).await;
            world.clock().sleep(MOMENT).await;
            assert!(
                number > 3 || node.engine.figures().overtaken == 0,
                "{number}"
            );
        }
        let young = node.begin().await;
        let figures = node.engine.figures();
        assert_eq!(figures.overtaken, 1);
        assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 1);
        assert_eq!(
            node.get(&old, "stays").await.as_deref(),
            Some("first"),
            "what is there is read"
        );
        for name in ["k", "l", "never written"] {
            assert_eq!(
                node.try_get(&old, name).await,
                Err(Error::NoValidVersion),
                "{name} may have been collected"
            );
        }
        assert_eq!(errors.load(Ordering::Relaxed), 0, "nothing is damaged");
        assert_eq!(node.get(&young, "k").await, Some(large));
        assert_eq!(node.get(&young, "never written").await, None);
        node.commit(&old).await;
    });
}

/// The answer to a client that asks again after its row was dropped, by a node whose clock was set
/// back meanwhile.
async fn asks_after_a_clock_was_set_back(world: &World, config: Config) -> Result<Outcome, Error> {
    let parts = |ahead_ms| Parts {
        key_value: world.key_value(),
        clock: world.clock_off_by(ahead_ms),
        entropy: world.entropy(),
    };
    let node = Node::start(parts(3_600_000), Config::default()).await;
    let call = node.begin().await;
    node.put(&call, "k", "v").await;
    node.commit(&call).await;
    node.write(&[("k", "w")]).await;
    world.clock().sleep(WINDOWS).await;
    assert!(!row_of(&*world.key_value(), &call).await);
    drop(node);
    let node = Node::start(parts(0), config).await;
    Ok(node.engine.status(&call.id).await?.value)
}

/// T4: a client never takes a dropped row for one that did not exist.
#[test]
fn a_dropped_row_is_no_abort() {
    in_virtual_time(async |world| {
        let told = asks_after_a_clock_was_set_back(&world, Config::default()).await;
        assert_eq!(told, Ok(Outcome::Expired));
    });
    in_virtual_time(async |world| {
        let told =
            asks_after_a_clock_was_set_back(&world, broken(Broken::ForgetsWhatItDropped)).await;
        assert_eq!(told, Ok(Outcome::Aborted), "the test would notice");
    });
}

/// T9: a start collects the leftovers of an earlier one, and trims its log to its end.
#[test]
fn an_earlier_start_is_tidied_by_the_next() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let reader = node.begin().await;
        for number in 0..250 {
            node.write(&[("k", &number.to_string()), ("l", "v")]).await;
        }
        assert_eq!(node.status(&reader).await, Outcome::Open);
        drop(node);
        let store = world.key_value();
        assert_eq!(versions_at_rest(&*store, "k").await, 250);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        world.clock().sleep(MOMENT).await;
        assert_eq!(versions_at_rest(&*store, "k").await, 1);
        // With the sweep, which waits for transactions that may still be open elsewhere.
        world.clock().sleep(Duration::from_mins(30)).await;
        assert_eq!(
            (rows_at_rest(&*store).await, slots_at_rest(&*store, 1).await),
            (1, 0)
        );
        let calls = world.port_calls();
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(world.port_calls(), calls, "nothing is left to do");
        drop(node);
        let scans = |world: &World| {
            world
                .trace()
                .entries()
                .filter(|entry| entry.operation == "scan")
                .count()
        };
        let before = scans(&world);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        world.clock().sleep(MOMENT).await;
        assert_eq!(node.now("k").await.as_deref(), Some("249"));
        assert!(
            scans(&world) - before < 20,
            "what is trimmed is not looked at"
        );
    });
}

/// T9: data that an uncommitted attempt left after its clean-up are deleted as well.
#[test]
fn aborted_transactions_leave_nothing() {
    on_every_provider(async |node: Node| {
        let call = node.begin_named("order").await;
        node.put(&call, "k", "v").await;
        node.engine.abort(&call).await.expect("aborted");
        assert_eq!(
            node.engine.commit(&call).await,
            Err(finished(Outcome::Aborted))
        );
        assert_eq!(node.now("k").await, None);
    });
}

/// The value read of a commit whose row took longer than its window.
async fn decides_late(world: &World, config: Config) -> Result<Option<String>, Error> {
    let gate = Gate::new(world.key_value());
    let node = Node::on(
        world,
        gate.clone(),
        Config {
            data_cache_bytes_max: 0,
            ..config
        },
    )
    .await;
    let call = node.begin().await;
    node.put(&call, "k", "late").await;
    gate.close(Held::Updates, layout::DECISIONS);
    let answer = node.engine.commit(&call).await;
    assert_eq!(answer, Err(Error::OutcomeUnknown));
    // Another transaction ends, so that housekeeping runs.
    let other = node.begin().await;
    node.commit(&other).await;
    world.clock().sleep(WINDOWS).await;
    gate.open();
    node.commit(&call).await;
    let reader = node.begin().await;
    node.try_get(&reader, "k").await
}

/// T4, T-2: nothing of a commit is deleted before its owner has learned the decision, however long
/// that takes.
#[test]
fn a_window_does_not_end_before_its_commit_is_decided() {
    in_virtual_time(async |world| {
        assert_eq!(
            decides_late(&world, Config::default()).await,
            Ok(Some("late".to_owned()))
        );
    });
    in_virtual_time(async |world| {
        let read = decides_late(&world, broken(Broken::DropsUnheardDecisions)).await;
        assert_eq!(read, Ok(None), "the test would notice");
    });
}

/// T5: a caller that learns from a status that a transaction has committed sees it from then on,
/// even while the commit still waits for its answer from the store.
#[test]
fn a_status_shows_what_it_says() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        assert_eq!(node.now("k").await, None, "so that its absence is known");
        let call = node.begin_named("order").await;
        node.put(&call, "k", "v").await;
        gate.close(Held::Answers, layout::DECISIONS);
        let engine = node.engine.clone();
        let asked = call.clone();
        let committing = tokio::spawn(async move { engine.commit(&asked).await });
        gate.holds().await;
        let told = node.status(&call).await;
        let reader = node.begin().await;
        let read = node.get(&reader, "k").await;
        assert!(
            told != Outcome::Committed || read.as_deref() == Some("v"),
            "{told:?} {read:?}"
        );
        assert!(row_of(&*world.key_value(), &call).await, "it is decided");
        gate.open();
        committing.await.expect("no panic").expect("committed");
        assert_eq!(
            (node.status(&call).await, node.now("k").await.as_deref()),
            (Outcome::Committed, Some("v"))
        );
    });
}

/// T9: on a real disk, under steady overwrites by many writers, the store always holds a small part
/// of all that was written.
#[test]
fn a_real_store_stays_bounded_under_overwrites() {
    const KEYS: usize = 50;
    const ROUNDS: usize = 400;
    const WAIT_MAX: Duration = Duration::from_mins(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = open(directory.path()).await;
        let config = Config {
            retry_window: Duration::ZERO,
            ..Config::default()
        };
        let node = Node::start(parts(&store), config).await;
        let write = async |round: usize| {
            let value = bytes(&round.to_string().repeat(300));
            let writes = (0..KEYS).map(|number| {
                node.engine
                    .put_now(key(&number.to_string()), Some(value.clone()))
            });
            for written in join_all(writes).await {
                written.expect("written");
            }
        };
        let held = async || {
            let key_value = store.key_value();
            let versions = [layout::VERSIONS, &[0; 4]].concat();
            items_below(&*key_value, &versions).await
                + items_below(&*key_value, layout::DECISIONS).await
        };
        // Housekeeping runs as long as there are writes, and shares the machine with them.
        let settles = async |items_max: usize| {
            let begun = std::time::Instant::now();
            while held().await > items_max {
                let written = node.engine.put_now(key("0"), Some(bytes("again"))).await;
                written.expect("written");
                assert!(begun.elapsed() < WAIT_MAX, "it does not catch up");
            }
        };
        for round in 0..ROUNDS {
            write(round).await;
            if round % 20 == 0 {
                settles(2 * KEYS * ROUNDS / 8).await;
            }
        }
        // All but the newest versions are gone.
        settles(4 * KEYS).await;
        drop(node);
        store.close().await;
    });
}
