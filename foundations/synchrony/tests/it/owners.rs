//! Owners: released, crashed and paused; near stores that go back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ports::{ErrorKind, Externalize, KeyValue, Update};
use simulated::World;
use synchrony::{Broken, Options, Stores, Synchrony};

use crate::{
    Pair, far_numbers, key, ms, number, put, set, timed,
    way::{Call, Fate, Way},
};

const LEASE_MS: u64 = 10_000;

/// The same far store over another near one.
fn elsewhere(pair: &Pair) -> Pair {
    Pair {
        near: World::new(99),
        far: pair.far.clone(),
    }
}

/// E10: the release drains first.
#[test]
fn a_released_shard_is_opened_at_once() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "a", 1).await;
        let late = lane.clone();
        drop(lane);
        synchrony.release().await.expect("it is given up");
        assert_eq!(far_numbers(&pair.far).await.get("a"), Some(&1));
        late.update(set("a", 2)).await.expect_err("it was given up");
        let (took, successor) = timed(&pair.near, elsewhere(&pair).open(Options::default())).await;
        assert!(took < ms(100), "{took:?}");
        let lane = successor.lane().expect("there are lanes");
        assert_eq!(number(&lane, "a").await, Some(1));
        lane.externalize(point)
            .await
            .expect("the released writes are durable");
        let beyond = ports::DurabilityPoint {
            position: ports::Position(point.position.0 << 8),
            ..point
        };
        assert_eq!(
            lane.externalize(beyond)
                .await
                .expect_err("it never was")
                .kind(),
            ErrorKind::Lost
        );
    });
}

/// E10: the far row is released while the response is under way. Another owner may have written
/// since.
#[test]
fn an_owner_that_releases_its_shard_proves_nothing_meanwhile() {
    simulated::run(async {
        let pair = Pair::new(1);
        let is_giving_up = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&is_giving_up);
        let far = Way::to(
            pair.far.key_value(),
            pair.near.clock(),
            move |call| match call {
                Call::Update if asks.load(Ordering::Relaxed) => Fate::DelayAnswer(ms(5_000)),
                _ => Fate::Pass,
            },
        );
        let stores = Stores {
            far,
            ..pair.stores()
        };
        let old = Synchrony::open(
            stores,
            Options::default(),
            pair.near.clock(),
            pair.near.entropy(),
        )
        .await;
        let old = old.expect("it is open");
        let lane = old.lane().expect("there are lanes");
        let point = put(&lane, "key", 1).await;
        lane.externalize(point).await.expect("it is the owner");
        is_giving_up.store(true, Ordering::Relaxed);
        let release = tokio::spawn(old.release());
        let (took, successor) = timed(&pair.near, elsewhere(&pair).open(Options::default())).await;
        assert!(took < ms(1_000), "{took:?}");
        let new_lane = successor.lane().expect("there are lanes");
        let after = put(&new_lane, "key", 2).await;
        new_lane.externalize(after).await.expect("it is the owner");
        assert!(!release.is_finished(), "it has not heard yet");
        assert!(
            !lane.is_durable(point),
            "what it reads here is not what is far"
        );
        lane.externalize(point)
            .await
            .expect_err("nor does it let anything out");
        release
            .await
            .expect("nothing disturbed it")
            .expect("it is given up");
    });
}

/// How an owner uses its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Each barrier checks that the owner still has the shard.
    Reads,
    /// Each barrier sends a batch, which proves the same.
    Writes,
}

async fn is_kept_while_it_is_used(used: Use) {
    let pair = Pair::new(1);
    let synchrony = pair.open(Options::default()).await;
    let lane = synchrony.lane().expect("there are lanes");
    let busy = lane.clone();
    let clock = pair.near.clock();
    let barriers = tokio::spawn(async move {
        for n in 0..30 {
            clock.sleep(ms(LEASE_MS / 10)).await;
            if used == Use::Writes {
                put(&busy, "key", n).await;
            }
            busy.externalize(busy.point())
                .await
                .expect("it is the owner");
        }
    });
    let far = elsewhere(&pair);
    let successor = tokio::spawn(async move { far.open(Options::default()).await });
    barriers.await.expect("nothing disturbed it");
    assert!(
        !successor.is_finished(),
        "the owner was at work for three leases"
    );
    drop((lane, synchrony));
    let (took, _) = timed(&pair.near, successor).await;
    assert!(
        (ms(LEASE_MS / 2)..ms(2 * LEASE_MS)).contains(&took),
        "{took:?}"
    );
}

/// E10.
#[test]
fn a_successor_waits_for_a_whole_lease_without_renewal() {
    for used in [Use::Reads, Use::Writes] {
        simulated::run(is_kept_while_it_is_used(used));
    }
}

/// A paused owner wakes after its successor has begun; returns the far state, and the result of the
/// owner's barrier.
async fn paused(broken: Option<Broken>) -> (Option<i64>, Result<(), ErrorKind>, Option<i64>) {
    let pair = Pair::new(1);
    // The batch lingers until the barrier, so it is late.
    let options = Options {
        linger: ms(3_600_000),
        mutant: broken.into(),
        ..Options::default()
    };
    let old = pair.open(options).await;
    let lane = old.lane().expect("there are lanes");
    put(&lane, "old", 1).await;
    let successor = elsewhere(&pair).open(Options::default()).await;
    let new_lane = successor.lane().expect("there are lanes");
    let point = put(&new_lane, "shared", 2).await;
    new_lane.externalize(point).await.expect("it is the owner");
    let answer = lane
        .externalize(lane.point())
        .await
        .map_err(|error| error.kind());
    pair.near.clock().sleep(ms(1_000)).await;
    let far = far_numbers(&pair.far).await;
    assert!(
        answer.is_ok() || lane.update(set("later", 1)).await.is_err(),
        "it serves nobody any more"
    );
    (
        far.get("old").copied(),
        answer,
        number(&new_lane, "shared").await,
    )
}

/// E10.
#[test]
fn a_deposed_owner_writes_nothing_far_and_passes_no_barrier() {
    simulated::run(async {
        assert_eq!(paused(None).await, (None, Err(ErrorKind::Lost), Some(2)));
        let (old, answer, _) = paused(Some(Broken::DeposedWritesOn)).await;
        assert!(
            old.is_some() || answer.is_ok(),
            "the broken one is caught: {old:?} {answer:?}"
        );
    });
}

/// E10: a response to a reader waits for a barrier.
#[test]
fn a_read_of_a_deposed_owner_passes_no_barrier() {
    simulated::run(async {
        let pair = Pair::new(1);
        let old = pair.open(Options::default()).await;
        let lane = old.lane().expect("there are lanes");
        let point = put(&lane, "key", 1).await;
        lane.externalize(point).await.expect("it is the owner");
        let successor = elsewhere(&pair).open(Options::default()).await;
        let new_lane = successor.lane().expect("there are lanes");
        let point = put(&new_lane, "key", 2).await;
        new_lane.externalize(point).await.expect("it is the owner");
        assert_eq!(number(&lane, "key").await, Some(1), "it does not know");
        assert!(!lane.is_durable(lane.point()));
        let error = lane
            .externalize(lane.point())
            .await
            .expect_err("nothing is pending, but it is asked");
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(old.health().ended, Some(ErrorKind::Lost));
    });
}

/// E10: writes that were not externalized are lost, and no others.
#[test]
fn a_near_store_that_comes_back_after_another_owner_is_emptied() {
    simulated::run(async {
        let pair = Pair::new(1);
        let options = Options {
            linger: ms(3_600_000),
            ..Options::default()
        };
        let old = pair.open(options).await;
        let lane = old.lane().expect("there are lanes");
        let durable = put(&lane, "both", 1).await;
        lane.externalize(durable).await.expect("it is the owner");
        let unsent = put(&lane, "unsent", 1).await;
        pair.near
            .key_value()
            .externalize(pair.near.key_value().point())
            .await
            .expect("near alone");
        drop((lane, old));
        let successor = elsewhere(&pair).open(Options::default()).await;
        let new_lane = successor.lane().expect("there are lanes");
        put(&new_lane, "both", 2).await;
        drop(new_lane);
        successor.release().await.expect("it is given up");
        let again = pair.open(Options::default()).await;
        let lane = again.lane().expect("there are lanes");
        assert_eq!(
            (number(&lane, "both").await, number(&lane, "unsent").await),
            (Some(2), None)
        );
        assert_eq!(
            lane.externalize(unsent)
                .await
                .expect_err("it is gone")
                .kind(),
            ErrorKind::Lost
        );
        put(&lane, "both", 3).await;
        again.drain().await.expect("all is well");
        assert_eq!(
            far_numbers(&pair.far).await.into_iter().collect::<Vec<_>>(),
            [("both".to_owned(), 3)]
        );
    });
}

/// E9: without a wait for the lease, as the near store is the same.
#[test]
fn the_unsent_tail_is_in_place_before_the_first_call_and_new_lanes_follow_it() {
    simulated::run(async {
        let pair = Pair::new(1);
        let options = Options {
            linger: ms(3_600_000),
            ..Options::default()
        };
        let old = pair.open(options).await;
        let lane = old.lane().expect("there are lanes");
        for n in 1..=20 {
            put(&lane, &format!("{n}"), n).await;
        }
        let point = lane.point();
        drop((lane, old));
        let (took, synchrony) = timed(&pair.near, pair.open(options)).await;
        assert!(took < ms(100), "{took:?}");
        assert_eq!(synchrony.health().pending_records, 20);
        let lane = synchrony.lane().expect("there are lanes");
        assert_eq!(number(&lane, "20").await, Some(20));
        let fresh = synchrony.lane().expect("there are lanes");
        let behind = put(&fresh, "behind", 1).await;
        fresh.externalize(behind).await.expect("it becomes durable");
        assert_eq!(
            far_numbers(&pair.far).await.len(),
            21,
            "the tail came before it"
        );
        assert!(lane.is_durable(point), "a point of the earlier start");
    });
}

/// E1: the near store lost writes that were not durable.
#[test]
fn a_near_store_that_goes_back_ends_the_instance_and_the_next_one_continues() {
    simulated::run(async {
        for restarts in [false, true] {
            let pair = Pair::new(1);
            let synchrony = pair.open(Options::default()).await;
            let lane = synchrony.lane().expect("there are lanes");
            let durable = put(&lane, "durable", 1).await;
            lane.externalize(durable).await.expect("it becomes durable");
            let lost = put(&lane, "lost", 1).await;
            if restarts {
                pair.near.crash();
            } else {
                pair.near.fall_back();
            }
            let error = lane
                .update(set("later", 1))
                .await
                .expect_err("it rests on what is lost");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert_eq!(
                lane.externalize(lost).await.expect_err("it is gone").kind(),
                ErrorKind::Lost
            );
            lane.get(&key("durable"))
                .await
                .expect_err("it serves nobody any more");
            drop((lane, synchrony));
            let synchrony = pair.open(Options::default()).await;
            let lane = synchrony.lane().expect("there are lanes");
            assert_eq!(
                (number(&lane, "durable").await, number(&lane, "lost").await),
                (Some(1), None)
            );
            lane.externalize(durable).await.expect("it is durable");
            assert_eq!(
                lane.externalize(lost).await.expect_err("it is gone").kind(),
                ErrorKind::Lost
            );
            put(&lane, "later", 2).await;
            synchrony.drain().await.expect("all is well");
        }
    });
}

/// A second start over the same near store, while the first one still runs.
#[test]
fn of_two_starts_over_one_near_store_the_first_writes_no_more() {
    simulated::run(async {
        let pair = Pair::new(1);
        let first = pair.open(Options::default()).await;
        let lane = first.lane().expect("there are lanes");
        let point = put(&lane, "a", 1).await;
        lane.externalize(point).await.expect("it becomes durable");
        let second = pair.open(Options::default()).await;
        lane.update(set("a", 2))
            .await
            .expect_err("the near row is the second's");
        lane.externalize(lane.point())
            .await
            .expect_err("it has ended");
        let lane = second.lane().expect("there are lanes");
        assert_eq!(number(&lane, "a").await, Some(1));
        lane.update(Update::delete(key("a")))
            .await
            .expect("it is the owner");
        second.drain().await.expect("all is well");
        assert!(far_numbers(&pair.far).await.is_empty());
    });
}

/// Two shards stay apart.
#[test]
fn two_shards_stay_apart() {
    simulated::run(async {
        let pair = Pair::new(1);
        let open = async |shard: &'static str| {
            let stores = Stores {
                shard: shard.into(),
                ..pair.stores()
            };
            Synchrony::open(
                stores,
                Options::default(),
                pair.near.clock(),
                pair.near.entropy(),
            )
            .await
            .expect("it opens")
        };
        let (one, two) = (open("one").await, open("two").await);
        let (in_one, in_two) = (one.lane().expect("a lane"), two.lane().expect("a lane"));
        put(&in_one, "key", 1).await;
        put(&in_two, "key", 2).await;
        in_one
            .join(&in_two)
            .expect_err("they are of different ranges");
        one.drain().await.expect("all is well");
        two.drain().await.expect("all is well");
        assert_eq!(
            (number(&in_one, "key").await, number(&in_two, "key").await),
            (Some(1), Some(2))
        );
    });
}

/// Stores that cannot be paired are refused at once.
#[test]
fn a_store_with_too_small_transactions_is_refused() {
    simulated::run(async {
        let mut near = simulated::Options::default();
        near.key_value.transact_items_max = 4;
        let pair = Pair::with(1, near, simulated::Options::default());
        let opened = Synchrony::open(
            pair.stores(),
            Options::default(),
            pair.near.clock(),
            pair.near.entropy(),
        )
        .await;
        assert_eq!(
            opened.expect_err("four are too few").kind(),
            ErrorKind::Invalid
        );
    });
}
