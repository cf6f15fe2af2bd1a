//! T11, T12: serializable transactions, and how they share keyspaces with others.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use ports::KeyValue;
use simulated::{World, percent};
use transactions::{
    Config, Error,
    broken::Broken,
    layout,
    model::{Begin, Begun, Call, Isolation, Key, KeyspaceId, NodeId, Outcome},
};

use crate::{
    gate::{Gate, Held},
    house::{
        Node, bytes, finished, id, in_virtual_time, items_at_rest, key, on_every_provider,
        versions_at_rest,
    },
};

/// Longer than any window except that of client ids.
const WINDOWS: Duration = Duration::from_mins(5);

fn serializable() -> Begin {
    Begin {
        isolation: Isolation::Serializable,
        ..Begin::default()
    }
}

fn broken(variant: Broken) -> Config {
    Config {
        mutant: variant.into(),
        ..Config::default()
    }
}

/// Each of two transactions reads both keys, then writes one of them: neither order of the two
/// explains both results.
async fn write_skew(node: &Node) -> Vec<Result<(), Error>> {
    node.write(&[("left", "on"), ("right", "on")]).await;
    let [one, other] = [
        node.begin_as(serializable()).await,
        node.begin_as(serializable()).await,
    ];
    for call in [&one, &other] {
        assert_eq!(node.get(call, "left").await.as_deref(), Some("on"));
        assert_eq!(node.get(call, "right").await.as_deref(), Some("on"));
    }
    node.put(&one, "left", "off").await;
    node.put(&other, "right", "off").await;
    let ended = join_all([&one, &other].map(|call| node.engine.commit(call))).await;
    ended.into_iter().map(|answer| answer.map(drop)).collect()
}

/// T11.
#[test]
fn of_two_that_cannot_follow_each_other_one_conflicts() {
    on_every_provider(async |node: Node| {
        let mut ended = write_skew(&node).await;
        ended.sort_by_key(Result::is_err);
        assert_eq!(ended, [Ok(()), Err(Error::Conflict)]);
        let left = [node.now("left").await, node.now("right").await];
        assert_eq!(
            left.iter()
                .filter(|value| value.as_deref() == Some("on"))
                .count(),
            1
        );
        assert_eq!(node.engine.figures().conflicts, 1);
    });
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), broken(Broken::SkipsValidation)).await;
        assert_eq!(
            write_skew(&node).await,
            [Ok(()), Ok(())],
            "the test would notice"
        );
    });
}

/// The answer to the second of two conflicting transactions, where the slot for the first finds no
/// space.
async fn conflict_without_a_slot(world: World, config: Config) -> Result<(), Error> {
    let gate = Gate::new(world.key_value());
    let node = Node::on(&world, Arc::clone(&gate) as Arc<dyn KeyValue>, config).await;
    let mut calls = Vec::new();
    for name in ["other", "k", "k"] {
        let call = node.begin_as(serializable()).await;
        node.get(&call, name).await;
        node.put(&call, name, "v").await;
        calls.push(call);
    }
    let commit = |call: &Call| {
        let (engine, call) = (node.engine.clone(), call.clone());
        tokio::spawn(async move { engine.commit(&call).await.map(drop) })
    };
    gate.close(Held::Answers, b"t/s/");
    let ahead = commit(&calls[0]);
    gate.holds().await;
    let together = [commit(&calls[1]), commit(&calls[2])];
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.refuse_one(b"t/s/");
    gate.open();
    ahead.await.expect("ran").expect("there was room");
    let [first, second] = together;
    assert_eq!(first.await.expect("ran"), Err(Error::NoRoom));
    second.await.expect("ran")
}

/// T11: a transaction does not conflict with a write that never happened.
#[test]
fn a_conflict_rests_on_what_is_written() {
    in_virtual_time(async |world| {
        assert_eq!(
            conflict_without_a_slot(world, Config::default()).await,
            Ok(())
        );
    });
    in_virtual_time(async |world| {
        let told = conflict_without_a_slot(world, broken(Broken::RefusesBeforeSlot)).await;
        assert_eq!(told, Err(Error::Conflict), "the test would notice");
    });
}

/// T11: a repeated commit gets the same conflict, and nothing of it is left.
#[test]
fn a_conflict_leaves_nothing() {
    on_every_provider(async |node: Node| {
        node.write(&[("k", "1")]).await;
        let call = node
            .begin_as(Begin {
                id: Some(id("late")),
                ..serializable()
            })
            .await;
        assert_eq!(node.get(&call, "k").await.as_deref(), Some("1"));
        node.put(&call, "k", "mine").await;
        node.write(&[("k", "2")]).await;
        for _ in 0..2 {
            assert_eq!(node.engine.commit(&call).await, Err(Error::Conflict));
        }
        assert_eq!(node.status(&call).await, Outcome::Aborted);
        assert_eq!(node.engine.abort(&call).await, Ok(()));
        assert_eq!(
            node.try_get(&call, "k").await,
            Err(finished(Outcome::Aborted))
        );
        let again = node
            .begin_as(Begin {
                id: Some(id("late")),
                ..serializable()
            })
            .await;
        assert_eq!(node.get(&again, "k").await.as_deref(), Some("2"));
        node.put(&again, "k", "mine").await;
        let committed = node.commit(&again).await;
        assert_eq!(node.engine.commit(&again).await, Ok(committed));
        let after = node
            .begin_as(Begin {
                after: committed.after,
                ..Begin::default()
            })
            .await;
        assert_eq!(node.get(&after, "k").await.as_deref(), Some("mine"));
    });
}

fn named() -> Begin {
    Begin {
        id: Some(id("order")),
        ..serializable()
    }
}

/// T8: an attempt that is begun anew after its hand-over is told that, and not that it may begin
/// again.
#[test]
fn a_commit_that_was_handed_over_hears_that_it_was_begun_anew() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(
            &world,
            Arc::clone(&gate) as Arc<dyn KeyValue>,
            Config::default(),
        )
        .await;
        let earlier = node.begin_as(named()).await;
        node.put(&earlier, "k", "earlier").await;
        gate.close(Held::Updates, layout::VERSIONS);
        let (engine, call) = (node.engine.clone(), earlier.clone());
        let committing = tokio::spawn(async move { engine.commit(&call).await.map(drop) });
        gate.holds().await;
        let later = node.begin_as(named()).await;
        gate.open();
        assert_eq!(
            committing.await.expect("ran"),
            Err(finished(Outcome::BegunAnew))
        );
        node.put(&later, "k", "later").await;
        node.commit(&later).await;
        assert_eq!(node.now("k").await.as_deref(), Some("later"));
    });
}

/// T8: also between the two steps of that begin, which closes the earlier attempt and then takes
/// its row.
#[test]
fn nobody_who_is_begun_anew_hears_that_he_may_begin_again() {
    let mut begun_anew = 0;
    for seed in 0..40 {
        let answer = simulated::run(async move {
            let world = World::new(seed);
            let node = Node::on(&world, world.key_value(), Config::default()).await;
            let earlier = node.begin_as(named()).await;
            node.put(&earlier, "k", "earlier").await;
            world.faults().delay(
                percent(50),
                Duration::from_micros(1)..=Duration::from_millis(5),
            );
            let (answer, later) =
                tokio::join!(node.engine.commit(&earlier), node.engine.begin(named()));
            let is_begun = matches!(later.expect("answered").value, Begun::Open { .. });
            (answer.map(drop), is_begun)
        });
        assert!(
            [(Ok(()), false), (Err(finished(Outcome::BegunAnew)), true)].contains(&answer),
            "seed {seed}: {answer:?}"
        );
        begun_anew += u32::from(answer.1);
    }
    assert!(begun_anew > 0, "none of the begins came between");
}

/// T12: a transaction reads the keyspace as it was at its begin, under any concurrent writes, and
/// commits if it only reads.
#[test]
fn readers_never_conflict() {
    let read = |config| {
        let mut ended = Ok(());
        in_virtual_time(async |world| {
            let node = Node::on(&world, world.key_value(), config).await;
            node.write(&[("k", "1"), ("l", "1")]).await;
            let reader = node.begin_as(serializable()).await;
            assert_eq!(node.get(&reader, "k").await.as_deref(), Some("1"));
            node.write(&[("k", "2"), ("l", "2"), ("m", "2")]).await;
            node.engine
                .put_now(key("n"), Some(bytes("2")))
                .await
                .expect("committed");
            tokio::time::sleep(Duration::from_secs(10)).await;
            for (name, value) in [("l", Some("1")), ("m", None), ("n", None), ("k", Some("1"))] {
                assert_eq!(node.get(&reader, name).await.as_deref(), value, "{name}");
            }
            ended = node.engine.commit(&reader).await.map(drop);
        });
        ended
    };
    assert_eq!(read(Config::default()), Ok(()));
    assert_eq!(
        read(broken(Broken::ValidatesReaders)),
        Err(Error::Conflict),
        "the test would notice"
    );
}

/// T11: blind writes, and those of read-atomic transactions and of plain state, take part in the
/// same order.
#[test]
fn levels_share_one_order() {
    on_every_provider(async |node: Node| {
        let before = node.write(&[("k", "timed")]).await.after.expect("it wrote");
        assert_eq!(before.version.slot(), None);
        let reader = node.begin_as(serializable()).await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("timed"));
        let mut versions = vec![before.version];
        for number in 0..3 {
            versions.push(
                node.write(&[("k", &number.to_string())])
                    .await
                    .after
                    .expect("it wrote")
                    .version,
            );
            let now = node
                .engine
                .put_now(key("k"), Some(bytes("now")))
                .await
                .expect("committed");
            versions.push(now.after.expect("it wrote").version);
            let call = node.begin_as(serializable()).await;
            assert_eq!(node.get(&call, "k").await.as_deref(), Some("now"));
            node.put(&call, "k", "read").await;
            versions.push(node.commit(&call).await.after.expect("it wrote").version);
        }
        assert!(versions.is_sorted(), "{versions:?}");
        assert!(
            versions
                .iter()
                .skip(1)
                .all(|version| version.slot().is_some())
        );
        node.put(&reader, "l", "seen").await;
        assert_eq!(
            node.engine.commit(&reader).await.map(drop),
            Err(Error::Conflict)
        );
    });
}

/// A transaction uses only keyspaces that it named, and writes keyspaces of one kind.
#[test]
fn keyspaces_are_kept_apart() {
    on_every_provider(async |node: Node| {
        let place = |keyspace| Key::in_keyspace(KeyspaceId(keyspace), "k").expect("short");
        let call = node
            .begin_as(Begin {
                keyspaces: vec![KeyspaceId(7)],
                ..serializable()
            })
            .await;
        assert_eq!(
            node.engine
                .get(&call, &place(7))
                .await
                .expect("named")
                .value,
            None
        );
        node.engine
            .put(&call, place(7), bytes("v"))
            .await
            .expect("named");
        let unnamed = node.engine.get(&call, &place(0)).await.map(drop);
        assert!(matches!(unnamed, Err(Error::Invalid(_))), "{unnamed:?}");
        let unnamed = node.engine.put(&call, place(0), bytes("v")).await;
        assert!(matches!(unnamed, Err(Error::Invalid(_))), "{unnamed:?}");
        node.commit(&call).await;
        let mixed = node.begin().await;
        node.engine
            .put(&mixed, place(7), bytes("v"))
            .await
            .expect("taken");
        node.engine
            .put(&mixed, place(0), bytes("v"))
            .await
            .expect("taken");
        let refused = node.engine.commit(&mixed).await.map(drop);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        let plain = node.write(&[("k", "plain")]).await.after.expect("it wrote");
        assert_eq!(
            plain.version.slot(),
            None,
            "the default keyspace is not sequenced by that"
        );
        let named = Begin {
            keyspaces: vec![KeyspaceId(7)],
            ..Begin::default()
        };
        assert!(matches!(
            node.engine.begin(named).await,
            Err(Error::Invalid(_))
        ));
    });
}

/// T-3: a commit with a timestamp is over before any commit gets a slot.
#[test]
fn marking_waits_for_commits_under_way() {
    let order = |config: Config| {
        let mut sequenced_first = false;
        in_virtual_time(async |world| {
            let gate = Gate::new(world.key_value());
            let node =
                Arc::new(Node::on(&world, Arc::clone(&gate) as Arc<dyn KeyValue>, config).await);
            gate.close(Held::Updates, layout::DECISIONS);
            let writer = Arc::clone(&node);
            let timed = tokio::spawn(async move { writer.write(&[("k", "timed")]).await });
            gate.holds().await;
            let starter = Arc::clone(&node);
            let begun = tokio::spawn(async move { starter.begin_as(serializable()).await });
            tokio::time::sleep(Duration::from_secs(2)).await;
            sequenced_first = begun.is_finished();
            gate.open();
            let call = begun.await.expect("begun");
            timed.await.expect("committed");
            if !sequenced_first {
                assert_eq!(node.get(&call, "k").await.as_deref(), Some("timed"));
            }
        });
        sequenced_first
    };
    assert!(!order(Config::default()));
    assert!(
        order(broken(Broken::MarksWithoutWaiting)),
        "the test would notice"
    );
}

/// T-4: a node that was presumed dead begins nothing, because it does not know what has committed.
#[test]
fn a_node_that_was_taken_for_dead_takes_no_snapshot() {
    let begins = |config: Config| {
        let mut begins = false;
        in_virtual_time(async |world| {
            let node = |config: &Config| Node::on(&world, world.key_value(), config.clone());
            let old = node(&config).await;
            old.write(&[("k", "old")]).await;
            let reader = old.begin_as(serializable()).await;
            assert_eq!(old.get(&reader, "k").await.as_deref(), Some("old"));
            let new = node(&config).await;
            new.write(&[("k", "new")]).await;
            // Its earlier reads at its timestamp stay valid.
            assert_eq!(old.get(&reader, "k").await.as_deref(), Some("old"));
            begins = old.engine.begin(serializable()).await.is_ok();
        });
        begins
    };
    assert!(!begins(Config::default()));
    assert!(
        begins(broken(Broken::ReadsAtWhatItHeard)),
        "the test would notice"
    );
}

/// T9: a sequenced keyspace, too, keeps one version of each key, and nothing of its transactions.
#[test]
fn a_sequenced_keyspace_is_collected() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let store = world.key_value();
        for number in 0..300 {
            let call = node.begin_as(serializable()).await;
            node.get(&call, "k").await;
            node.put(&call, "k", &number.to_string()).await;
            node.put(&call, "gone", &number.to_string()).await;
            node.commit(&call).await;
        }
        node.engine
            .put_now(key("gone"), None)
            .await
            .expect("committed");
        let reader = node.begin().await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("299"));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(node.get(&reader, "gone").await, None);
        node.commit(&reader).await;
        tokio::time::sleep(WINDOWS).await;
        assert_eq!(
            (
                versions_at_rest(&*store, "k").await,
                versions_at_rest(&*store, "gone").await
            ),
            (1, 0)
        );
        let slots = items_at_rest(
            &*store,
            layout::sequencer_log(KeyspaceId::default()).to_vec(),
        )
        .await;
        assert!(slots < 70, "{slots} slots are kept");
        let late = node.begin().await;
        assert_eq!(node.get(&late, "k").await.as_deref(), Some("299"));
        assert_eq!(node.get(&late, "gone").await, None, "beside what wrote it");
    });
}

/// T9, T12: a reader of an old snapshot is told so after too long, and never sees a wrong value.
#[test]
fn a_snapshot_that_is_too_old_is_refused_by_name() {
    in_virtual_time(async |world| {
        let config = Config {
            superseded_bytes_max: 1_000,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        node.write(&[("k", "first"), ("l", "first")]).await;
        let reader = node.begin_as(serializable()).await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("first"));
        let large = "x".repeat(600);
        for _ in 0..4 {
            node.write(&[("k", &large), ("l", &large)]).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(node.try_get(&reader, "l").await, Err(Error::SnapshotTooOld));
        assert_eq!(node.try_get(&reader, "m").await, Err(Error::SnapshotTooOld));
    });
    in_virtual_time(async |world| {
        let node = Node::on(
            &world,
            world.key_value(),
            Config {
                last_writers_max: 4,
                ..Config::default()
            },
        )
        .await;
        let writer = node.begin_as(serializable()).await;
        assert_eq!(node.get(&writer, "k").await, None);
        node.put(&writer, "l", "v").await;
        for number in 0..10 {
            node.write(&[(&format!("other-{number}"), "v")]).await;
        }
        assert_eq!(
            node.engine.commit(&writer).await,
            Err(Error::SnapshotTooOld)
        );
    });
}

/// T4: a begin of a client id whose commit is handed over finds it committed, or refuses it
/// permanently.
#[test]
fn a_name_begun_anew_while_it_commits_counts_once() {
    for held in [&b"t/s/"[..], b"t/v/"] {
        in_virtual_time(async |world| {
            let gate = Gate::new(world.key_value());
            let node = Arc::new(
                Node::on(
                    &world,
                    Arc::clone(&gate) as Arc<dyn KeyValue>,
                    Config::default(),
                )
                .await,
            );
            node.commit(&node.begin_as(serializable()).await).await;
            let first = node.begin_named("order").await;
            node.put(&first, "k", "first").await;
            gate.close(Held::Updates, held);
            let (committing, call) = (Arc::clone(&node), first.clone());
            let commit = tokio::spawn(async move { committing.engine.commit(&call).await });
            gate.holds().await;
            let beginning = Arc::clone(&node);
            let again = tokio::spawn(async move {
                beginning
                    .engine
                    .begin(Begin {
                        id: Some(id("order")),
                        ..Begin::default()
                    })
                    .await
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            gate.open();
            let (again, commit) = (again.await.expect("ran"), commit.await.expect("ran"));
            let begun = again.expect("answered").value;
            match begun {
                transactions::model::Begun::Committed { .. } => {
                    assert!(commit.is_ok(), "{commit:?}");
                    assert_eq!(node.now("k").await.as_deref(), Some("first"));
                }
                transactions::model::Begun::Open { attempt, .. } => {
                    assert!(commit.is_err(), "{commit:?}");
                    let call = Call {
                        id: id("order"),
                        attempt: Some(attempt),
                    };
                    node.put(&call, "k", "second").await;
                    node.commit(&call).await;
                    assert_eq!(node.now("k").await.as_deref(), Some("second"));
                }
            }
        });
    }
}

/// A crash between any two calls of a commit: it has committed completely or not at all, and the
/// next start knows which.
#[test]
fn a_commit_that_dies_anywhere_is_whole_or_nothing() {
    let mut outcomes = [0, 0];
    for calls in 0..30 {
        let mut is_over = false;
        in_virtual_time(async |world: World| {
            let first = Node::on(&world, world.key_value(), Config::default()).await;
            first.commit(&first.begin_as(serializable()).await).await;
            first.write(&[("k", "before"), ("l", "before")]).await;
            drop(first);
            let gate = Gate::new(world.key_value());
            let node = Node::on(
                &world,
                Arc::clone(&gate) as Arc<dyn KeyValue>,
                Config::default(),
            )
            .await;
            let call = node.begin_as(serializable()).await;
            assert_eq!(node.get(&call, "k").await.as_deref(), Some("before"));
            node.put(&call, "k", "after").await;
            node.put(&call, "l", "after").await;
            gate.die_after(calls);
            let answer =
                tokio::time::timeout(Duration::from_secs(4), node.engine.commit(&call)).await;
            is_over = answer.is_ok();
            drop(node);
            let next = Node::on(&world, world.key_value(), Config::default()).await;
            let status = next.status(&call).await;
            let expected = if status == Outcome::Committed {
                "after"
            } else {
                "before"
            };
            assert!(
                answer.is_err() || status == Outcome::Committed,
                "{calls}: {status:?}"
            );
            for name in ["k", "l"] {
                assert_eq!(
                    next.now(name).await.as_deref(),
                    Some(expected),
                    "{calls}: {status:?}"
                );
                let reader = next.begin_as(serializable()).await;
                assert_eq!(
                    next.get(&reader, name).await.as_deref(),
                    Some(expected),
                    "{calls}"
                );
            }
            outcomes[usize::from(status == Outcome::Committed)] += 1;
            tokio::time::sleep(WINDOWS).await;
            assert_eq!(
                versions_at_rest(&*world.key_value(), "k").await,
                1,
                "{calls}"
            );
        });
        if is_over {
            break;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 1), "{outcomes:?}");
}

/// A node that was presumed dead seals the sequencer's log after its successor has, and before that
/// decides the rows that were handed over to it. Returns the answer to a commit of the first node,
/// and the successor's outcome for it; `None`: the first orders nothing.
async fn seals_behind_a_successor(
    world: &World,
    config: Config,
) -> Option<(Result<(), Error>, Outcome)> {
    let (gate, gate_of_successor) = (Gate::new(world.key_value()), Gate::new(world.key_value()));
    let node = Node::on(world, gate.clone(), config.clone()).await;
    gate.close(Held::Updates, &layout::sequencer_log(KeyspaceId::default()));
    let engine = node.engine.clone();
    let marking = tokio::spawn(async move { engine.begin(serializable()).await });
    gate.holds().await;
    gate_of_successor.close(Held::Gets, &layout::log(NodeId(1)));
    let starting = Node::on(world, gate_of_successor.clone(), config);
    let before_it_judges = async {
        gate_of_successor.holds().await;
        gate.open();
        let marked = marking.await.expect("no panic");
        if let Err(error) = marked {
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            gate_of_successor.open();
            return None;
        }
        let call = node.begin().await;
        node.put(&call, "k", "value").await;
        gate.close(Held::Updates, &layout::sequencer_log(KeyspaceId::default()));
        let (engine, asked) = (node.engine.clone(), call.clone());
        let committing = tokio::spawn(async move { engine.commit(&asked).await });
        gate.holds().await;
        // It is ordered, and its row is not settled yet.
        gate.close(Held::Updates, layout::DECISIONS);
        let committed = committing.await.expect("no panic").map(drop);
        gate_of_successor.open();
        Some((call, committed))
    };
    let (successor, ended) = futures_util::future::join(starting, before_it_judges).await;
    let (call, committed) = ended?;
    Some((committed, successor.status(&call).await))
}

/// T-4: a node that was presumed dead orders nothing after its successor has taken over.
#[test]
fn whoever_seals_after_its_successor_orders_nothing() {
    in_virtual_time(async |world| {
        assert_eq!(
            seals_behind_a_successor(&world, Config::default()).await,
            None
        );
    });
}

/// T-4, broken.
#[test]
fn ordering_behind_a_successor_is_caught() {
    in_virtual_time(async |world| {
        let ended = seals_behind_a_successor(&world, broken(Broken::OrdersBehindSuccessor)).await;
        assert_eq!(ended, Some((Ok(()), Outcome::Aborted)));
    });
}
