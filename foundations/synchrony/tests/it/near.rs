//! The near store: read-through, eviction, deletion, and pages of both stores.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ports::{
    Externalize, Key, KeyValue, Update,
    key_value::{Action, Scan},
};
use simulated::World;
use synchrony::{Broken, Lane, Options, Synchrony};

use crate::{
    Pair, distant, far_numbers, key, ms, number, put, set, timed,
    way::{Call, Fate, Way},
};

/// Few items stay near.
const NEAR_BYTES_MAX: usize = 5_000;

fn tight() -> Options {
    Options {
        near_bytes_max: NEAR_BYTES_MAX,
        ..Options::default()
    }
}

async fn put_many(lane: &Lane, count: i64) {
    for n in 0..count {
        let actions = vec![
            Action::set_integer("n", n),
            Action::set("data", vec![7; 200]),
        ];
        lane.update(Update::modify(key(&format!("{n:03}")), actions))
            .await
            .expect("it is ordered");
    }
    lane.externalize(lane.point())
        .await
        .expect("it becomes durable");
}

/// A successor over an empty near store.
async fn succeed(pair: &mut Pair, options: Options) -> Synchrony {
    pair.near = World::new(77);
    pair.open(options).await
}

/// E12, E5.
#[test]
fn clean_items_are_evicted_at_the_limit_and_read_again() {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(2)));
        let synchrony = pair.open(tight()).await;
        let lane = synchrony.lane().expect("there are lanes");
        put_many(&lane, 100).await;
        pair.near.clock().sleep(ms(1_000)).await;
        assert!(
            synchrony.near_bytes().await <= NEAR_BYTES_MAX,
            "{}",
            synchrony.near_bytes().await
        );
        for n in 0..100 {
            assert_eq!(number(&lane, &format!("{n:03}")).await, Some(n));
        }
        pair.near.clock().sleep(ms(1_000)).await;
        assert!(synchrony.near_bytes().await <= NEAR_BYTES_MAX);
        drop((lane, synchrony));
        let synchrony = pair.open(tight()).await;
        assert!(
            synchrony.near_bytes().await <= NEAR_BYTES_MAX,
            "it is counted anew"
        );
        let lane = synchrony.lane().expect("there are lanes");
        assert_eq!(
            number(&lane, "000").await,
            Some(0),
            "what was evicted is not taken for absent"
        );
    });
}

/// E12: no payload, record or tombstone stays.
#[test]
fn overwritten_and_deleted_keys_leave_nothing_near() {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(2)));
        let synchrony = pair.open(Options::default()).await;
        let (one, two) = (
            synchrony.lane().expect("a lane"),
            synchrony.lane().expect("a lane"),
        );
        for n in 0..200 {
            put(
                if n % 3 == 0 { &one } else { &two },
                &format!("{}", n % 5),
                n,
            )
            .await;
            pair.near.clock().sleep(ms(n as u64 % 7)).await;
        }
        for n in 0..5 {
            one.update(Update::delete(key(&n.to_string())))
                .await
                .expect("it is ordered");
        }
        one.externalize(one.point())
            .await
            .expect("it becomes durable");
        pair.near.clock().sleep(ms(1_000)).await;
        assert_eq!(synchrony.near_bytes().await, 0);
        let left = pair
            .near
            .key_value()
            .scan(&Scan::partition(crate::SHARD, 1_000))
            .await
            .expect("it is read");
        let left: Vec<_> = left.value.items.into_iter().map(|(sort, _)| sort).collect();
        assert_eq!(left, ["o"], "the owner row alone");
        assert!(far_numbers(&pair.far).await.is_empty());
    });
}

/// E5: and are near after that.
#[test]
fn far_items_are_read_through_once() {
    simulated::run(async {
        let mut pair = Pair::with(1, simulated::Options::default(), distant(ms(50)));
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        put(&lane, "key", 1).await;
        drop(lane);
        synchrony.release().await.expect("it is given up");
        let synchrony = succeed(&mut pair, Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        for (sort, expected) in [("key", Some(1)), ("absent", None)] {
            let (took, read) = timed(&pair.near, number(&lane, sort)).await;
            assert_eq!((took, read), (ms(100), expected));
            let (took, read) = timed(&pair.near, number(&lane, sort)).await;
            assert_eq!((took, read), (ms(0), expected), "absence is remembered too");
        }
    });
}

/// A shard that began empty, and has evicted nothing, knows which keys it lacks.
#[test]
fn new_keys_of_a_complete_shard_make_no_far_call() {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(50)));
        for _ in 0..2 {
            let synchrony = pair.open(Options::default()).await;
            let lane = synchrony.lane().expect("there are lanes");
            let (took, ()) = timed(&pair.near, async {
                for n in 0..10 {
                    put(&lane, &format!("new {n}"), n).await;
                    assert_eq!(number(&lane, "absent").await, None);
                }
            })
            .await;
            assert_eq!(took, ms(0));
            lane.externalize(lane.point())
                .await
                .expect("it becomes durable");
        }
    });
}

/// Writes a key while a far read of it is under way; returns the value of that read, and of a later
/// one.
async fn write_beside_a_slow_read(broken: Option<Broken>) -> (Option<i64>, Option<i64>) {
    let mut pair = Pair::new(1);
    let synchrony = pair.open(Options::default()).await;
    let lane = synchrony.lane().expect("there are lanes");
    put(&lane, "key", 1).await;
    drop(lane);
    synchrony.release().await.expect("it is given up");
    pair.near = World::new(77);
    let is_slow = Arc::new(AtomicBool::new(false));
    let slow = Arc::clone(&is_slow);
    let far = Way::to(
        pair.far.key_value(),
        pair.far.clock(),
        move |call| match call {
            Call::Get if slow.swap(false, Ordering::SeqCst) => Fate::DelayAnswer(ms(100)),
            _ => Fate::Pass,
        },
    );
    let synchrony = pair
        .open_over(
            far,
            Options {
                mutant: broken.into(),
                ..Options::default()
            },
        )
        .await;
    let lane = synchrony.lane().expect("there are lanes");
    is_slow.store(true, Ordering::SeqCst);
    let reader = lane.clone();
    let read = tokio::spawn(async move { number(&reader, "key").await });
    pair.near.clock().sleep(ms(10)).await;
    put(&lane, "key", 2).await;
    lane.externalize(lane.point())
        .await
        .expect("it becomes durable");
    let first = read.await.expect("it ends");
    (first, number(&lane, "key").await)
}

/// E5.
#[test]
fn a_fill_never_covers_a_write() {
    simulated::run(async {
        assert_eq!(write_beside_a_slow_read(None).await, (Some(2), Some(2)));
        let (_, after) = write_beside_a_slow_read(Some(Broken::FillsOverAWrite)).await;
        assert_eq!(after, Some(1), "the broken one is caught");
    });
}

/// E5: while the deletion is under way, after it, and during a slow far read of the old value.
#[test]
fn a_deleted_key_does_not_come_back_from_the_far_store() {
    simulated::run(async {
        let mut pair = Pair::with(1, simulated::Options::default(), distant(ms(50)));
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        put(&lane, "key", 1).await;
        drop(lane);
        synchrony.release().await.expect("it is given up");
        let synchrony = succeed(&mut pair, tight()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let reader = lane.clone();
        lane.update(Update::delete(key("key")))
            .await
            .expect("it is ordered");
        let polls = tokio::spawn(async move {
            for _ in 0..400 {
                assert_eq!(number(&reader, "key").await, None);
                let page = reader
                    .scan(&Scan::partition("test", 10))
                    .await
                    .expect("it is read")
                    .value;
                assert!(page.items.is_empty());
            }
        });
        lane.externalize(lane.point())
            .await
            .expect("it becomes durable");
        put_many(&lane, 50).await;
        lane.update(Update::delete(Key::new("test", "049")))
            .await
            .expect("it is ordered");
        polls.abort();
        pair.near.clock().sleep(ms(2_000)).await;
        assert_eq!(
            (number(&lane, "key").await, number(&lane, "049").await),
            (None, None)
        );
    });
}

/// E5: pages have dirty and clean near items and far ones, and no deleted key.
#[test]
fn a_scan_merges_near_and_far() {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(5)));
        let synchrony = pair.open(tight()).await;
        let lane = synchrony.lane().expect("there are lanes");
        put_many(&lane, 60).await;
        pair.near.clock().sleep(ms(1_000)).await;
        let mut expected: Vec<(String, i64)> = (0..60).map(|n| (format!("{n:03}"), n)).collect();
        for n in (0..60).step_by(3) {
            lane.update(Update::delete(key(&format!("{n:03}"))))
                .await
                .expect("it is ordered");
        }
        for n in (1..60).step_by(3) {
            put(&lane, &format!("{n:03}"), n + 1_000).await;
        }
        put(&lane, "between", 7).await;
        expected.retain(|(_, n)| n % 3 != 0);
        expected
            .iter_mut()
            .filter(|(_, n)| n % 3 == 1)
            .for_each(|(_, n)| *n += 1_000);
        expected.push(("between".into(), 7));
        for items_max in [1, 7, 100] {
            let mut scan = Scan::partition("test", items_max);
            let mut found = Vec::new();
            loop {
                let page = lane.scan(&scan).await.expect("it is read").value;
                assert!(page.items.len() <= items_max);
                found.extend(page.items.into_iter().map(|(sort, item)| {
                    (
                        String::from_utf8_lossy(&sort).into_owned(),
                        item.integer("n").expect("it has one"),
                    )
                }));
                let Some(next) = page.next else { break };
                scan.from = next;
            }
            assert_eq!(found, expected, "{items_max} to a page");
        }
    });
}

/// Partitions whose names are prefixes of each other, or end in the highest byte, stay apart.
#[test]
fn partitions_do_not_mix() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = pair.open(tight()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let partitions: [&[u8]; 6] = [b"", b"a", b"ab", b"a\xff", b"\xff", b"\xff\xff"];
        for partition in partitions {
            for sort in [b"".as_slice(), b"b", b"\xff"] {
                let update = Update {
                    key: Key::new(partition, sort),
                    ..set("x", 1)
                };
                lane.update(update).await.expect("it is ordered");
            }
        }
        for partition in partitions {
            let page = lane
                .scan(&Scan::partition(partition.to_vec(), 10))
                .await
                .expect("it is read")
                .value;
            let sorts: Vec<_> = page.items.iter().map(|(sort, _)| &sort[..]).collect();
            assert_eq!(sorts, [b"".as_slice(), b"b", b"\xff"], "{partition:?}");
        }
    });
}
