//! T2, T4, T9: long keys and large values behave like others.

use std::time::Duration;

use bytes::Bytes;
use ports::KeyValue;
use transactions::{
    Config, Error, layout,
    model::{Begin, Call, Isolation, Key, Outcome},
};

use crate::{
    gate::{Gate, Held},
    house::{
        Node, finished, in_virtual_time, items_at_rest, key, on_every_provider, versions_at_rest,
    },
};

/// A key of maximal length; only its last byte distinguishes it.
fn long_key(byte: u8, last: u8) -> Key {
    let mut name = vec![byte; 1_024];
    name[1_023] = last;
    Key::new(name).expect("as long as a key may be")
}

async fn shown(node: &Node, key: &Key) -> Option<Bytes> {
    node.engine
        .get_now(key)
        .await
        .expect("a get is answered")
        .value
}

/// T2: keys too long to sort by are found all the same, and kept apart.
#[test]
fn the_longest_keys_are_written_read_and_deleted() {
    on_every_provider(async |node: Node| {
        let keys = [
            long_key(b'k', b'a'),
            long_key(b'k', b'b'),
            long_key(0, 0),
            long_key(0, 1),
        ];
        let call = node.begin().await;
        for (number, key) in (0_u8..).zip(&keys) {
            node.engine
                .put(&call, key.clone(), vec![number].into())
                .await
                .expect("taken");
        }
        node.commit(&call).await;
        node.engine
            .put_now(keys[3].clone(), None)
            .await
            .expect("deleted");
        let reader = node.begin().await;
        for (number, key) in (0_u8..).zip(&keys) {
            let expected = (number < 3).then(|| Bytes::from(vec![number]));
            assert_eq!(
                node.engine.get(&reader, key).await.expect("read").value,
                expected
            );
            assert_eq!(shown(&node, key).await, expected);
        }
        node.commit(&reader).await;
    });
}

/// T2: a node that has them only in the store loads them.
#[test]
fn the_longest_keys_survive_a_restart() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (first, second) = (long_key(b'k', b'a'), long_key(b'k', b'b'));
        node.engine
            .put_now(first.clone(), Some(Bytes::from_static(b"v")))
            .await
            .expect("written");
        drop(node);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(shown(&node, &first).await, Some(Bytes::from_static(b"v")));
        assert_eq!(shown(&node, &second).await, None);
        // The sweep decodes all of it, and keeps it.
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(shown(&node, &first).await, Some(Bytes::from_static(b"v")));
        assert_eq!(node.engine.figures().swept, 0);
    });
}

/// A value of `bytes` bytes that differs from others of its length.
fn value(bytes: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut value = vec![0; bytes];
    random.fill(&mut value);
    value.into()
}

/// The number of stored chunks of `call`'s attempt.
async fn chunks_at_rest(key_value: &dyn KeyValue, call: &Call) -> usize {
    let attempt = call.attempt.expect("a begin answers it");
    items_at_rest(key_value, layout::chunks(attempt).to_vec()).await
}

/// T2, T3: a value of any length up to 64 MiB is read as it was written, before and after its
/// commit.
#[test]
fn values_of_every_length_are_read_as_they_were_written() {
    on_every_provider(async |node: Node| {
        let lengths = [
            0,
            1,
            64 << 10,
            (64 << 10) + 1,
            1 << 20,
            (1 << 20) + 1,
            5_000_000,
            64 << 20,
        ];
        for (seed, bytes) in (0..).zip(lengths) {
            let (call, written) = (node.begin().await, value(bytes, seed));
            node.engine
                .put(&call, key("k"), value(100_000, 99))
                .await
                .expect("taken");
            node.engine
                .put(&call, key("k"), written.clone())
                .await
                .expect("taken");
            let own = node.engine.get(&call, &key("k")).await.expect("read").value;
            assert!(own.as_ref() == Some(&written), "{bytes} bytes of its own");
            drop(own);
            assert!(
                shown(&node, &key("k")).await != Some(written.clone()),
                "it is not committed"
            );
            node.commit(&call).await;
            assert!(
                shown(&node, &key("k")).await == Some(written),
                "{bytes} bytes"
            );
        }
        let figures = node.engine.figures();
        assert_eq!((figures.buffered_bytes, figures.open), (0, 0));
        let refused = node
            .engine
            .put_now(key("k"), Some(vec![0; (64 << 20) + 1].into()))
            .await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    });
}

/// T9, T11, T12: in a sequenced keyspace a snapshot keeps its chunks, a conflict leaves none, and
/// replaced or superseded ones are deleted.
#[test]
fn large_values_are_serializable() {
    in_virtual_time(async |world| {
        let (store, begin) = (
            world.key_value(),
            Begin {
                isolation: Isolation::Serializable,
                ..Begin::default()
            },
        );
        let node = Node::on(&world, store.clone(), Config::default()).await;
        let [old, new] = [value(100_000, 1), value(200_000, 2)];
        let first = node.begin_as(begin.clone()).await;
        node.engine
            .put(&first, key("k"), value(300_000, 3))
            .await
            .expect("taken");
        node.engine
            .put(&first, key("k"), old.clone())
            .await
            .expect("taken");
        node.commit(&first).await;
        let [reader, late] = [
            node.begin_as(begin.clone()).await,
            node.begin_as(begin).await,
        ];
        assert!(node.engine.get(&late, &key("k")).await.expect("read").value == Some(old.clone()));
        node.engine
            .put(&late, key("k"), value(400_000, 4))
            .await
            .expect("taken");
        assert_eq!(chunks_at_rest(&*store, &late).await, 1, "spilled");
        node.engine
            .put_now(key("k"), Some(new.clone()))
            .await
            .expect("written");
        assert_eq!(node.engine.commit(&late).await, Err(Error::Conflict));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(chunks_at_rest(&*store, &late).await, 0, "of the conflict");
        assert_eq!(
            chunks_at_rest(&*store, &first).await,
            1,
            "the reader needs it; what it replaced is gone"
        );
        assert!(
            node.engine
                .get(&reader, &key("k"))
                .await
                .expect("read")
                .value
                == Some(old)
        );
        node.commit(&reader).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(chunks_at_rest(&*store, &first).await, 0, "superseded");
        assert_eq!(versions_at_rest(&*store, "k").await, 1);
        assert!(shown(&node, &key("k")).await == Some(new));
    });
}

/// T9: chunks that a later write of the same transaction replaced are deleted with the commit;
/// superseded ones with their version, once no transaction needs it; a deletion leaves nothing.
#[test]
fn chunks_go_with_what_they_are_of() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let store = world.key_value();
        let call = node.begin().await;
        for seed in 0..3 {
            node.engine
                .put(&call, key("k"), value(1_000_000, seed))
                .await
                .expect("taken");
        }
        assert_eq!(
            chunks_at_rest(&*store, &call).await,
            9,
            "three of 396 KiB each"
        );
        node.commit(&call).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(chunks_at_rest(&*store, &call).await, 3);
        let next = node.begin().await;
        node.engine
            .put(&next, key("k"), value(500_000, 4))
            .await
            .expect("taken");
        node.commit(&next).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            (
                chunks_at_rest(&*store, &call).await,
                chunks_at_rest(&*store, &next).await
            ),
            (0, 2)
        );
        node.engine.put_now(key("k"), None).await.expect("deleted");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(chunks_at_rest(&*store, &next).await, 0);
        assert_eq!(versions_at_rest(&*store, "k").await, 0);
        assert_eq!(node.engine.figures().log_slots, 0);
    });
}

/// T7: however a transaction ends, and under any id, its spilled data are deleted.
#[test]
fn what_an_ended_transaction_wrote_ahead_goes() {
    let ends = ["abort", "begun anew", "expiry"];
    for (end, named) in ends.into_iter().flat_map(|end| [(end, false), (end, true)]) {
        in_virtual_time(async |world| {
            let node = Node::on(&world, world.key_value(), Config::default()).await;
            let store = world.key_value();
            let call = if named {
                node.begin_named("order").await
            } else {
                node.begin().await
            };
            node.engine
                .put(&call, key("k"), value(1_000_000, 1))
                .await
                .expect("taken");
            assert_eq!(
                (
                    chunks_at_rest(&*store, &call).await,
                    versions_at_rest(&*store, "k").await
                ),
                (3, 1)
            );
            match end {
                "abort" => node.engine.abort(&call).await.expect("aborted"),
                "begun anew" if named => drop(node.begin_named("order").await),
                _ => {}
            }
            tokio::time::sleep(Duration::from_secs(if end == "abort" { 1 } else { 130 })).await;
            assert_eq!(
                (
                    chunks_at_rest(&*store, &call).await,
                    versions_at_rest(&*store, "k").await
                ),
                (0, 0),
                "{end} {named}"
            );
            tokio::time::sleep(Duration::from_mins(5)).await;
            assert_eq!(node.engine.figures().log_slots, 0, "{end} {named}");
        });
    }
}

/// T4, T7: a node may crash between any two calls of a large write and its commit, and its store
/// with it: then all of the write is there or nothing, and nothing else.
#[test]
fn a_death_while_a_large_value_is_written_leaves_all_or_nothing() {
    for crashes in [false, true] {
        let (mut calls, mut ended) = (0, false);
        while !ended {
            in_virtual_time(async |world| {
                let gate = Gate::new(world.key_value());
                let node = Node::on(&world, gate.clone(), Config::default()).await;
                node.engine
                    .put_now(key("k"), Some(value(600_000, 1)))
                    .await
                    .expect("written");
                tokio::time::sleep(Duration::from_secs(1)).await;
                let call = node.begin().await;
                gate.die_after(calls);
                let writes = async {
                    node.engine.put(&call, key("k"), value(500_000, 2)).await?;
                    node.engine.put(&call, key("k"), value(900_000, 3)).await?;
                    node.engine.commit(&call).await
                };
                let answer = tokio::select! {
                    biased;
                    answer = writes => Some(answer),
                    () = gate.holds() => None,
                };
                ended = answer.is_some();
                if crashes {
                    world.crash();
                }
                let node = Node::on(&world, world.key_value(), Config::default()).await;
                let found = shown(&node, &key("k")).await;
                let is_new = found == Some(value(900_000, 3));
                assert!(is_new || found == Some(value(600_000, 1)), "{calls}");
                assert!(is_new || answer.is_none(), "{calls}: it was acknowledged");
                // Beyond every window and the sweep.
                tokio::time::sleep(Duration::from_mins(40)).await;
                let store = world.key_value();
                let chunks = chunks_at_rest(&*store, &call).await;
                assert_eq!(chunks, if is_new { 3 } else { 0 }, "{calls} {crashes}");
                assert_eq!(versions_at_rest(&*store, "k").await, 1, "{calls}");
                assert_eq!(node.engine.figures().swept, 0, "a log named all of it");
            });
            calls += 1;
        }
        assert!(
            calls > 12,
            "two entries, five chunks, two versions, the commit: {calls}"
        );
    }
}

/// T15: beyond a bound, one transaction's or the node's, values are spilled, and are read and
/// committed all the same.
#[test]
fn values_leave_memory_when_there_are_too_many() {
    in_virtual_time(async |world| {
        let (attempt_buffer_bytes_max, node_buffer_bytes_max) = (10_000, 20_000);
        let config = Config {
            attempt_buffer_bytes_max,
            node_buffer_bytes_max,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let calls = [node.begin().await, node.begin().await, node.begin().await];
        let put = async |call: usize, number: u64, bytes: usize| {
            let name = format!("k{call}-{number}");
            node.engine
                .put(&calls[call], key(&name), value(bytes, number))
                .await
                .expect("taken");
            assert!(node.engine.figures().buffered_bytes <= 20_000);
        };
        for number in 0..11 {
            put(0, number, 1_000).await;
        }
        let figures = node.engine.figures();
        assert_eq!(
            figures.spilled_bytes, 11_000,
            "all that one transaction had"
        );
        for number in 0..10 {
            put(1, number, 1_000).await;
            put(2, number, 900).await;
        }
        assert!(
            node.engine.figures().spilled_bytes > 15_000,
            "the largest of all left for the others"
        );
        for number in 0..10 {
            for (call, bytes) in [(0, 1_000), (1, 1_000), (2, 900)] {
                let own = node
                    .engine
                    .get(&calls[call], &key(&format!("k{call}-{number}")))
                    .await;
                assert_eq!(
                    own.expect("read").value,
                    Some(value(bytes, number)),
                    "{call} {number}"
                );
            }
        }
        node.engine
            .delete(&calls[0], key("k0-0"))
            .await
            .expect("taken");
        put(0, 1, 7).await;
        for call in &calls {
            node.commit(call).await;
        }
        assert_eq!(shown(&node, &key("k0-0")).await, None);
        for (name, bytes, seed) in [("k0-1", 7, 1), ("k0-10", 1_000, 10), ("k2-9", 900, 9)] {
            assert_eq!(
                shown(&node, &key(name)).await,
                Some(value(bytes, seed)),
                "{name}"
            );
        }
        assert_eq!(node.engine.figures().buffered_bytes, 0);
        let call = node.begin().await;
        let refused = node.engine.put(&call, key("k"), value(20_001, 1)).await;
        assert_eq!(refused, Err(Error::TooMuchBuffered), "more than there is");
    });
}

/// T15: room is made by an attempt that can be spilled, even if one that commits has more.
#[test]
fn a_commit_under_way_does_not_refuse_values_of_others() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let config = Config {
            inline_bytes_max: 1_000,
            node_buffer_bytes_max: 10_000,
            ..Config::default()
        };
        let node = Node::on(&world, gate.clone(), config).await;
        let (committing, other) = (node.begin().await, node.begin().await);
        let put = async |call: &Call, number: u64, bytes| {
            let name = key(&format!("k{number}"));
            node.engine.put(call, name, value(bytes, number)).await
        };
        let attempt = committing.attempt.expect("a begin answers it");
        gate.close(Held::Updates, &layout::chunks(attempt));
        let (engine, call) = (node.engine.clone(), committing.clone());
        let spilling =
            tokio::spawn(async move { engine.put(&call, key("large"), value(1_500, 0)).await });
        gate.holds().await;
        for number in 0..6 {
            put(&committing, number, 900).await.expect("taken");
        }
        let (engine, call) = (node.engine.clone(), committing.clone());
        let commit = tokio::spawn(async move { engine.commit(&call).await });
        // Until it waits for the value on its way.
        tokio::time::sleep(Duration::from_millis(1)).await;
        for number in 10..14 {
            put(&other, number, 900).await.expect("spilled");
        }
        gate.open();
        spilling.await.expect("no panic").expect("spilled");
        commit.await.expect("no panic").expect("committed");
        node.commit(&other).await;
    });
}

/// T15: values that are being read share a bound; a read that waits too long is refused, and others
/// are not.
#[test]
fn large_values_are_read_within_a_bound_of_memory() {
    in_virtual_time(async |world| {
        let config = Config {
            read_bytes_max: 2_500_000,
            ..Config::default()
        };
        let node = Node::on(&world, world.key_value(), config).await;
        let written = value(1_200_000, 1);
        node.engine
            .put_now(key("k"), Some(written.clone()))
            .await
            .expect("written");
        let read = async || {
            node.engine
                .get_now(&key("k"))
                .await
                .map(|shown| shown.value)
        };
        let (first, second) = (read().await, read().await);
        assert_eq!(
            (&first, &second),
            (&Ok(Some(written.clone())), &Ok(Some(written.clone())))
        );
        assert_eq!(read().await, Err(Error::TooMuchBuffered));
        let (third, ()) = futures_util::join!(read(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(second);
        });
        assert_eq!(third, Ok(Some(written)), "it waited");
    });
}

/// P6, T7: a value that turns out not to fit ends its transaction, and nothing of it stays.
#[test]
fn a_value_that_does_not_fit_ends_its_transaction() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        node.write(&[("k", "before")]).await;
        let call = node.begin_named("order").await;
        node.put(&call, "k", "small").await;
        gate.close(Held::Updates, layout::CHUNKS);
        let (engine, putting) = (node.engine.clone(), call.clone());
        let put =
            tokio::spawn(async move { engine.put(&putting, key("k"), value(5_000_000, 1)).await });
        gate.holds().await;
        world.fill_disk();
        gate.open();
        assert_eq!(put.await.expect("no panic"), Err(Error::NoRoom));
        world.empty_disk();
        assert_eq!(
            node.engine.commit(&call).await,
            Err(finished(Outcome::Aborted))
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        let store = world.key_value();
        assert_eq!(
            (
                chunks_at_rest(&*store, &call).await,
                versions_at_rest(&*store, "k").await
            ),
            (0, 1)
        );
        assert_eq!(
            shown(&node, &key("k")).await,
            Some(Bytes::from_static(b"before"))
        );
        let again = node.begin_named("order").await;
        node.engine
            .put(&again, key("k"), value(5_000_000, 1))
            .await
            .expect("there is room again");
        node.commit(&again).await;
        assert!(shown(&node, &key("k")).await == Some(value(5_000_000, 1)));
        assert_eq!(node.engine.figures().buffered_bytes, 0);
    });
}

/// T3, T4: a commit waits for its transaction's running writes, and an abort leaves none of them.
#[test]
fn a_commit_waits_for_values_on_their_way() {
    for commits in [true, false] {
        in_virtual_time(async |world| {
            let gate = Gate::new(world.key_value());
            let node = Node::on(&world, gate.clone(), Config::default()).await;
            let call = node.begin().await;
            gate.close(Held::Updates, layout::CHUNKS);
            let (engine, putting) = (node.engine.clone(), call.clone());
            let put =
                tokio::spawn(
                    async move { engine.put(&putting, key("k"), value(500_000, 1)).await },
                );
            gate.holds().await;
            let own = node.engine.get(&call, &key("k")).await.expect("read").value;
            assert!(own == Some(value(500_000, 1)), "it is read meanwhile");
            let (engine, ending) = (node.engine.clone(), call.clone());
            let ended = tokio::spawn(async move {
                if commits {
                    engine.commit(&ending).await.map(drop)
                } else {
                    engine.abort(&ending).await
                }
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(shown(&node, &key("k")).await, None);
            gate.open();
            assert_eq!(ended.await.expect("no panic"), Ok(()));
            let put = put.await.expect("no panic");
            let expected = commits.then(|| value(500_000, 1));
            assert_eq!(
                put,
                if commits {
                    Ok(())
                } else {
                    Err(finished(Outcome::Aborted))
                }
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shown(&node, &key("k")).await == expected);
            let chunks = chunks_at_rest(&*world.key_value(), &call).await;
            assert_eq!(chunks, if commits { 2 } else { 0 });
        });
    }
}

/// T9: a node that was only presumed dead may spill until its last transaction has ended, and only
/// its log's entry names the chunks. The entry stays until no more can arrive.
#[test]
fn chunks_that_arrive_after_their_log_was_resolved_go() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let paused = Node::on(&world, gate.clone(), Config::default()).await;
        let call = paused.begin().await;
        gate.close(Held::Updates, layout::CHUNKS);
        let (engine, putting) = (paused.engine.clone(), call.clone());
        let put =
            tokio::spawn(async move { engine.put(&putting, key("k"), value(500_000, 1)).await });
        gate.holds().await;
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        tokio::time::sleep(Duration::from_mins(10)).await;
        // Writes under way arrive, and no answer does.
        gate.die_after(0);
        gate.open();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let store = world.key_value();
        assert!(chunks_at_rest(&*store, &call).await > 0);
        assert_eq!(
            versions_at_rest(&*store, "k").await,
            0,
            "nothing else names them"
        );
        tokio::time::sleep(Duration::from_mins(40)).await;
        assert_eq!(chunks_at_rest(&*store, &call).await, 0);
        assert_eq!(node.engine.figures().log_slots, 0);
        put.abort();
    });
}
