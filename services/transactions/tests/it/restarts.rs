//! Crashes between two steps, restarts, and stores that return to an earlier state.

use std::{sync::Arc, time::Duration};

use ports::KeyValue;
use simulated::World;
use transactions::{
    Config, Error, Parts,
    broken::Broken,
    layout::{self, Buckets},
    model::{Begin, Call, Committed, NodeId, Outcome},
};

use crate::{
    gate::{Gate, Held},
    house::{Node, bytes, finished, id, in_virtual_time, items_at_rest, key, versions_at_rest},
};

/// Virtual time moves only while a task waits for it.
const MOMENT: Duration = Duration::from_millis(1);

fn broken(broken: Option<Broken>) -> Config {
    Config {
        mutant: broken.into(),
        ..Config::default()
    }
}

/// A node crashes while its commit of k and l is held at `partition`; returns the commit's call.
async fn dies_in_commit(
    world: &World,
    call: impl AsyncFn(&Node) -> Call,
    partition: &[u8],
    config: Config,
) -> Call {
    let gate = Gate::new(world.key_value());
    let node = Node::on(world, gate.clone(), config).await;
    let call = call(&node).await;
    node.put(&call, "k", "v").await;
    node.put(&call, "l", "v").await;
    gate.close(Held::Updates, partition);
    let (engine, committed) = (node.engine.clone(), call.clone());
    let committing = tokio::spawn(async move { engine.commit(&committed).await });
    gate.holds().await;
    committing.abort();
    let _ = committing.await;
    drop(node);
    call
}

/// T1, T7, T-2: the successor of a node that crashed in a commit closes it and deletes its
/// data.
#[test]
fn a_restart_resolves_what_hangs() {
    let places = [
        layout::DECISIONS,
        layout::VERSIONS,
        &Buckets::default().versions(&key("l"), 1).partition.clone(),
    ];
    for (named, partition) in [false, true]
        .into_iter()
        .flat_map(|named| places.map(|place| (named, place)))
    {
        in_virtual_time(async |world| {
            let begin = async |node: &Node| {
                if named {
                    node.begin_named("order").await
                } else {
                    node.begin().await
                }
            };
            let call = dies_in_commit(&world, begin, partition, Config::default()).await;
            let node = Node::on(&world, world.key_value(), Config::default()).await;
            assert_eq!((node.now("k").await, node.now("l").await), (None, None));
            assert_eq!(
                node.engine.commit(&call).await,
                Err(finished(Outcome::Aborted))
            );
            let store = world.key_value();
            for name in ["k", "l"] {
                assert_eq!(
                    versions_at_rest(&*store, name).await,
                    0,
                    "{name} {named} {partition:?}"
                );
            }
            let again = node.begin_named("order").await;
            node.put(&again, "k", "again").await;
            node.commit(&again).await;
            assert_eq!(node.now("k").await.as_deref(), Some("again"));
        });
    }
}

/// A node that crashes after `calls` port calls of a commit. Returns the call, and the answer if
/// there was one.
async fn dies_after(
    world: &World,
    named: bool,
    calls: usize,
) -> (Call, Option<Result<Committed, Error>>) {
    let gate = Gate::new(world.key_value());
    let node = Node::on(world, gate.clone(), Config::default()).await;
    node.write(&[("k", "old"), ("l", "old")]).await;
    let call = if named {
        node.begin_named("order").await
    } else {
        node.begin().await
    };
    node.put(&call, "k", "new").await;
    node.engine.delete(&call, key("l")).await.expect("taken");
    gate.die_after(calls);
    let answer = tokio::select! {
        biased;
        answer = node.engine.commit(&call) => Some(answer),
        () = gate.holds() => None,
    };
    (call, answer)
}

/// T1, T4, T5: a node may crash between any two port calls of a commit, and its store with it.
#[test]
fn a_death_in_a_commit_leaves_all_or_nothing() {
    for (named, crashes) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut calls = 0;
        let mut ended = false;
        while !ended {
            in_virtual_time(async |world| {
                let (call, answer) = dies_after(&world, named, calls).await;
                ended = answer.is_some();
                if crashes {
                    world.crash();
                }
                let node = Node::on(&world, world.key_value(), Config::default()).await;
                let state = (node.now("k").await, node.now("l").await);
                let is_new = state == (Some("new".into()), None);
                assert!(
                    is_new || state == (Some("old".into()), Some("old".into())),
                    "{calls} {state:?}"
                );
                let again = node.engine.commit(&call).await;
                assert_eq!(again.is_ok(), is_new, "{calls}: {again:?}");
                assert!(
                    answer.is_none_or(|answer| answer == again),
                    "{calls}: {again:?}"
                );
                let store = world.key_value();
                assert!(
                    versions_at_rest(&*store, "l").await <= if is_new { 2 } else { 1 },
                    "{calls}"
                );
                tokio::time::sleep(Duration::from_mins(5)).await;
                let left = usize::from(!is_new);
                assert_eq!(
                    versions_at_rest(&*store, "l").await,
                    left,
                    "{calls}: what is deleted goes"
                );
                assert_eq!(versions_at_rest(&*store, "k").await, 1, "{calls}");
            });
            calls += 1;
        }
        assert!(calls > 4, "log, two versions, row, externalize: {calls}");
    }
}

/// A begin of a client id leaves nothing when its node crashes.
#[test]
fn a_restart_forgets_a_begin() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let call = node.begin_named("order").await;
        let row = Buckets::default().decision(&call.id).partition().to_vec();
        assert_eq!(items_at_rest(&*world.key_value(), row.clone()).await, 1);
        drop(node);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(items_at_rest(&*world.key_value(), row).await, 0);
        assert_eq!(
            node.engine.commit(&call).await,
            Err(Error::NoSuchTransaction)
        );
    });
}

/// 7.2: the row decides about data that exist.
#[test]
fn data_comes_before_the_record() {
    let partition = Buckets::default().versions(&key("l"), 1).partition;
    in_virtual_time(async |world| {
        let begin = async |node: &Node| node.begin().await;
        let variant = broken(Some(Broken::RecordBeforeData));
        dies_in_commit(&world, begin, &partition, variant).await;
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let reader = node.begin().await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("v"));
        let missing = node.try_get(&reader, "l").await;
        assert_eq!(
            missing,
            Err(Error::NoValidVersion),
            "`a_restart_resolves_what_hangs` would notice"
        );
    });
}

/// The value that survives a crash of the store's process right after an answer.
async fn survives(world: &World, variant: Option<Broken>) -> Option<String> {
    let node = Node::on(world, world.key_value(), broken(variant)).await;
    node.write(&[("k", "v")]).await;
    drop(node);
    world.crash();
    Node::on(world, world.key_value(), Config::default())
        .await
        .now("k")
        .await
}

/// T5.
#[test]
fn acknowledged_means_durable() {
    in_virtual_time(async |world| assert_eq!(survives(&world, None).await.as_deref(), Some("v")));
    in_virtual_time(async |world| {
        assert_eq!(
            survives(&world, Some(Broken::AnswersBeforeDurable)).await,
            None,
            "the test would notice"
        );
    });
}

/// 7.2: the store is reset under a live node: all open attempts end, and a new node serves the data
/// that are there.
#[test]
fn a_node_starts_over_when_its_store_goes_back() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "kept")]).await;
        let call = node.begin_named("order").await;
        node.put(&call, "k", "lost").await;
        world.crash();
        let refused = node.engine.begin(Begin::default()).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        let ended = loop {
            match node.engine.commit(&call).await {
                Err(Error::Unavailable(_)) => tokio::time::sleep(MOMENT).await,
                other => break other,
            }
        };
        assert_eq!(
            ended,
            Err(Error::NoSuchTransaction),
            "the begin was never durable"
        );
        assert_eq!(node.now("k").await.as_deref(), Some("kept"));
        node.write(&[("k", "new")]).await;
        assert_eq!(node.now("k").await.as_deref(), Some("new"));
        assert_eq!(
            (
                node.engine.figures().open,
                node.engine.figures().buffered_bytes
            ),
            (0, 0)
        );
    });
}

/// A store that is reset again and again does not cause a start each time, because each start takes
/// an id, and a line in the log.
#[test]
fn starts_in_vain_come_ever_more_seldom() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        for _ in 0..500 {
            world.crash();
            // The next call notices it.
            let _ = node.engine.begin(Begin::default()).await;
            assert!(node.engine.figures().starting_over);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let call = node.begin().await;
        let starts = call.attempt.expect("it has one").node.0;
        assert!((5..60).contains(&starts), "{starts} starts in ten seconds");
        assert!(!node.engine.figures().starting_over);
    });
}

/// A commit by a node whose clock was an hour ahead, then one of its successor, whose clock is
/// right.
async fn writes_after_a_clock_was_set_back(
    world: &World,
    variant: Option<Broken>,
) -> Option<String> {
    let parts = |ahead_ms| Parts {
        key_value: world.key_value(),
        clock: world.clock_off_by(ahead_ms),
        entropy: world.entropy(),
    };
    let node = Node::start(parts(3_600_000), Config::default()).await;
    node.write(&[("k", "first")]).await;
    drop(node);
    let node = Node::start(parts(0), broken(variant)).await;
    node.write(&[("k", "second")]).await;
    drop(node);
    Node::start(parts(0), Config::default())
        .await
        .now("k")
        .await
}

/// T-1.
#[test]
fn a_clock_that_was_set_back_hides_nothing() {
    in_virtual_time(async |world| {
        assert_eq!(
            writes_after_a_clock_was_set_back(&world, None)
                .await
                .as_deref(),
            Some("second")
        );
    });
    in_virtual_time(async |world| {
        let hidden = writes_after_a_clock_was_set_back(&world, Some(Broken::ForgetsItsClock)).await;
        assert_eq!(hidden.as_deref(), Some("first"), "the test would notice");
    });
}

/// A node is paused before its slot; its successor resolves its log and reads; then it wakes up.
async fn wakes_up(
    world: &World,
    variant: Option<Broken>,
) -> (Result<Committed, Error>, Option<String>) {
    let gate = Gate::new(world.key_value());
    let paused = Node::on(world, gate.clone(), Config::default()).await;
    let call = paused.begin().await;
    paused.put(&call, "k", "late").await;
    gate.close(Held::Updates, layout::LOGS);
    let engine = paused.engine.clone();
    let committing = tokio::spawn(async move { engine.commit(&call).await });
    gate.holds().await;
    let successor = Node::on(world, world.key_value(), broken(variant)).await;
    assert_eq!(successor.now("k").await, None);
    gate.open();
    (
        committing.await.expect("no panic"),
        successor.now("k").await,
    )
}

/// T-2: taking over means sealing first.
#[test]
fn a_node_that_was_taken_for_dead_commits_nothing() {
    in_virtual_time(async |world| {
        let (answer, seen) = wakes_up(&world, None).await;
        assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
        assert_eq!(seen, None);
    });
    in_virtual_time(async |world| {
        let (answer, seen) = wakes_up(&world, Some(Broken::ResolvesWithoutSeal)).await;
        assert!(
            answer.is_ok() && seen.is_none(),
            "the test would notice: {answer:?} {seen:?}"
        );
    });
}

/// A write set that does not fit its row is stored beside it, and dropped with it.
#[test]
fn a_large_write_set_is_kept_in_parts() {
    let config = || Config {
        write_set_inline_bytes_max: 200,
        ..Config::default()
    };
    let names: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), config()).await;
        let call = node.begin().await;
        for name in &names {
            node.put(&call, name, name).await;
        }
        let committed = node.commit(&call).await;
        let of = call.attempt.expect("begun");
        drop(node);
        let node = Node::on(&world, world.key_value(), config()).await;
        let reader = node.begin().await;
        for name in &names {
            assert_eq!(
                node.get(&reader, name).await.as_deref(),
                Some(name.as_str())
            );
        }
        assert_eq!(node.engine.commit(&call).await, Ok(committed));
        let parts = layout::write_set_part(of, 0).partition().to_vec();
        assert!(items_at_rest(&*world.key_value(), parts).await > 5);
    });
    in_virtual_time(async |world| {
        let begin = async |node: &Node| {
            let call = node.begin().await;
            for name in &names {
                node.put(&call, name, name).await;
            }
            call
        };
        let call = dies_in_commit(&world, begin, layout::DECISIONS, config()).await;
        let parts = layout::write_set_part(call.attempt.expect("begun"), 0)
            .partition()
            .to_vec();
        assert!(items_at_rest(&*world.key_value(), parts.clone()).await > 5);
        let node = Node::on(&world, world.key_value(), config()).await;
        assert_eq!(items_at_rest(&*world.key_value(), parts).await, 0);
        for name in &names {
            assert_eq!(versions_at_rest(&*world.key_value(), name).await, 0);
        }
        assert_eq!(node.status(&call).await, Outcome::Aborted);
    });
}

/// A successor reads the log from the last published position, however long the log is, and exceeds
/// its timestamps.
#[test]
fn a_long_log_is_not_read_from_its_start() {
    in_virtual_time(async |world| {
        let config = || Config {
            slots_unpublished_max: 10,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config()).await;
        for value in 0..200 {
            node.write(&[("k", &value.to_string())]).await;
        }
        drop(node);
        let before = log_slots_read(&world);
        let node = Node::on(&world, world.key_value(), config()).await;
        let read = log_slots_read(&world) - before;
        assert!(read <= 4, "{read} scans of logs");
        assert_eq!(node.now("k").await.as_deref(), Some("199"));
        node.write(&[("k", "200")]).await;
        assert_eq!(node.now("k").await.as_deref(), Some("200"));
    });
}

/// The number of pages of nodes' logs that were read.
fn log_slots_read(world: &World) -> usize {
    let trace = world.trace();
    let is_log =
        |entry: &&simulated::Entry| entry.operation == "scan" && entry.subject.contains("t/l/");
    trace.entries().filter(is_log).count()
}

/// T4: an outcome that no node holds cannot become another, and expires after its window.
#[test]
fn an_outcome_that_nobody_holds_is_aborted_then_expired() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (young, old) = (node.begin().await, node.begin().await);
        drop(node);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(
            node.engine.commit(&young).await,
            Err(finished(Outcome::Aborted))
        );
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(
            node.engine.commit(&young).await,
            Err(Error::Expired),
            "never anything else"
        );
        assert_eq!(node.engine.commit(&old).await, Err(Error::Expired));
        assert_eq!(node.status(&old).await, Outcome::Expired);
    });
}

/// A node does not search a store of one number of buckets with another number.
#[test]
fn a_store_of_another_number_of_buckets_is_refused() {
    in_virtual_time(async |world| {
        let few = Config {
            buckets: Buckets::through(3),
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), few.clone()).await;
        node.write(&[("k", "v")]).await;
        drop(node);
        let parts = Parts {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = transactions::Service::new(parts, Config::default());
        let refused = service.start().await.expect_err("refused");
        assert!(refused.to_string().contains("4 buckets"), "{refused}");
        let node = Node::on(&world, world.key_value(), few).await;
        assert_eq!(node.now("k").await.as_deref(), Some("v"));
    });
}

/// A store of a later format is refused by number, and nothing is started on it.
#[test]
fn a_store_of_another_format_is_refused() {
    in_virtual_time(async |world| {
        let store: Arc<dyn KeyValue> = world.key_value();
        let attributes = vec![("version".into(), ports::key_value::Value::Integer(9))];
        store
            .update(ports::Update::put(layout::format(), attributes))
            .await
            .expect("calm");
        let parts = Parts {
            key_value: store,
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = transactions::Service::new(parts, Config::default());
        let refused = service.start().await.expect_err("refused");
        assert!(refused.to_string().contains("format 9"), "{refused}");
        let refused = service.engine().put_now(key("k"), Some(bytes("v"))).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        assert_eq!(
            items_at_rest(&*world.key_value(), layout::log(NodeId(1)).to_vec()).await,
            0
        );
        assert!(id("order").generated().is_none());
    });
}
