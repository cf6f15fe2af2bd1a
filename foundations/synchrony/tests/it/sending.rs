//! When records are sent: pipelining, lingering, order, barriers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ports::{ErrorKind, Externalize, KeyValue, Update, key_value::Action};
use synchrony::{Broken, Mode, Options};

use crate::{
    Pair, distant, far_numbers, key, ms, number, put, timed,
    way::{Call, Fate, Way},
};

/// The delay to the far store. A call takes twice that, and its fsync.
const EACH_WAY_MS: u64 = 50;

fn far_away() -> Pair {
    Pair::with(1, simulated::Options::default(), distant(ms(EACH_WAY_MS)))
}

/// The time that `steps` writes in one lane take until the barrier returns.
async fn run_of(mode: Mode, steps: i64) -> u64 {
    let pair = far_away();
    let synchrony = pair
        .open(Options {
            mode,
            ..Options::default()
        })
        .await;
    let lane = synchrony.lane().expect("there are lanes");
    let (took, ()) = timed(&pair.near, async {
        for n in 1..=steps {
            put(&lane, &format!("step {n}"), n).await;
        }
        lane.externalize(lane.point())
            .await
            .expect("it becomes durable");
    })
    .await;
    assert_eq!(far_numbers(&pair.far).await.len(), steps as usize);
    took.as_millis() as u64
}

/// The paper's two bounds, and ours: queued writes share a batch.
#[test]
fn four_writes_and_a_barrier_take_one_round_trip() {
    simulated::run(async {
        // One round trip for the write and its durability, with an fsync of up to 3 ms.
        let one_write = 4 * EACH_WAY_MS;
        let external = run_of(Mode::External, 4).await;
        assert!(
            (one_write..one_write + 15).contains(&external),
            "{external} ms"
        );
        for mode in [Mode::Serial, Mode::Sync] {
            let took = run_of(mode, 4).await;
            assert!(
                (4 * one_write..4 * one_write + 40).contains(&took),
                "{took} ms in {mode:?}"
            );
        }
    });
}

/// Several batches of one lane are under way together.
#[test]
fn a_lane_does_not_wait_for_its_own_batches() {
    simulated::run(async {
        let pair = far_away();
        let options = Options {
            linger_bytes_max: 1,
            lane_batches_max: 8,
            ..Options::default()
        };
        let synchrony = pair.open(options).await;
        let lane = synchrony.lane().expect("there are lanes");
        let (took, ()) = timed(&pair.near, async {
            for n in 1..=8 {
                put(&lane, &format!("step {n}"), n).await;
                pair.near.clock().sleep(ms(5)).await;
            }
            lane.externalize(lane.point())
                .await
                .expect("it becomes durable");
        })
        .await;
        assert!(took < ms(4 * EACH_WAY_MS + 60), "{took:?}");
    });
}

/// E11.
#[test]
fn a_barrier_with_nothing_pending_makes_no_far_call() {
    simulated::run(async {
        let pair = far_away();
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "a", 1).await;
        assert!(!lane.is_durable(point));
        lane.externalize(point).await.expect("it becomes durable");
        assert!(lane.is_durable(point));
        let calls = pair.far.port_calls();
        for _ in 0..10 {
            assert_eq!(number(&lane, "a").await, Some(1));
            lane.externalize(lane.point()).await.expect("it is durable");
        }
        assert_eq!(pair.far.port_calls(), calls);
    });
}

/// E11.
#[test]
fn an_idle_shard_makes_no_call_and_the_next_barrier_makes_one() {
    simulated::run(async {
        let pair = far_away();
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "a", 1).await;
        lane.externalize(point).await.expect("it becomes durable");
        pair.near.clock().sleep(ms(1_000)).await;
        let calls = (pair.near.port_calls(), pair.far.port_calls());
        pair.near.clock().sleep(ms(3_600_000)).await;
        assert_eq!(
            (pair.near.port_calls(), pair.far.port_calls()),
            calls,
            "an hour of nothing"
        );
        lane.externalize(point).await.expect("it is durable");
        assert_eq!(
            pair.far.port_calls(),
            calls.1 + 2,
            "a renewal, made durable"
        );
        lane.externalize(point).await.expect("it is durable");
        assert_eq!(pair.far.port_calls(), calls.1 + 2, "the lease holds");
    });
}

/// A barrier covers earlier writes, and not later ones.
#[test]
fn a_barrier_does_not_wait_for_later_writes() {
    simulated::run(async {
        let pair = far_away();
        let options = Options {
            linger: ms(60_000),
            linger_bytes_max: 1_000_000,
            ..Options::default()
        };
        let synchrony = pair.open(options).await;
        let lane = synchrony.lane().expect("there are lanes");
        let first = put(&lane, "first", 1).await;
        lane.externalize(first).await.expect("it becomes durable");
        let second = put(&lane, "second", 2).await;
        assert!(lane.is_durable(first) && !lane.is_durable(second));
        let (took, answer) = timed(&pair.near, lane.externalize(first)).await;
        answer.expect("it is durable");
        assert_eq!((took, far_numbers(&pair.far).await.len()), (ms(0), 1));
        lane.externalize(second).await.expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.len(), 2);
    });
}

/// The first far transaction fails, and the second would succeed; checks the far store at each
/// moment.
async fn first_batch_fails(broken: Option<Broken>) -> bool {
    let pair = Pair::new(1);
    let calls = AtomicUsize::new(0);
    let far = Way::to(
        pair.far.key_value(),
        pair.far.clock(),
        move |call| match call {
            Call::Transact(_) if calls.fetch_add(1, Ordering::SeqCst) == 0 => Fate::RefuseLate(
                ms(50),
                ErrorKind::Unavailable {
                    retry_after_ms: None,
                },
            ),
            Call::Transact(_) => Fate::Delay(ms(10)),
            _ => Fate::Pass,
        },
    );
    let options = Options {
        linger_bytes_max: 1,
        batch_bytes_max: 1,
        mutant: broken.into(),
        ..Options::default()
    };
    let synchrony = pair.open_over(far, options).await;
    let lane = synchrony.lane().expect("there are lanes");
    put(&lane, "1", 1).await;
    put(&lane, "2", 2).await;
    for _ in 0..200 {
        pair.near.clock().sleep(ms(1)).await;
        let there = far_numbers(&pair.far).await;
        if there.contains_key("2") && !there.contains_key("1") {
            return false;
        }
        if there.len() == 2 {
            return true;
        }
    }
    false
}

/// E2.
#[test]
fn writes_after_a_failed_batch_follow_it() {
    simulated::run(async {
        assert!(first_batch_fails(None).await);
        assert!(
            !first_batch_fails(Some(Broken::SendsPastAFailure)).await,
            "the broken one is caught"
        );
    });
}

/// The first lane's batch is slow, and the second lane writes the same key; returns the final far
/// value.
async fn slow_first_lane(broken: Option<Broken>) -> Option<i64> {
    let pair = Pair::new(1);
    let calls = AtomicUsize::new(0);
    let far = Way::to(
        pair.far.key_value(),
        pair.far.clock(),
        move |call| match call {
            Call::Transact(_) if calls.fetch_add(1, Ordering::SeqCst) == 0 => Fate::Delay(ms(500)),
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
    let (one, two) = (
        synchrony.lane().expect("a lane"),
        synchrony.lane().expect("a lane"),
    );
    put(&one, "key", 1).await;
    pair.near.clock().sleep(ms(20)).await;
    put(&two, "key", 2).await;
    two.externalize(two.point())
        .await
        .expect("it becomes durable");
    one.externalize(one.point())
        .await
        .expect("it becomes durable");
    pair.near.clock().sleep(ms(1_000)).await;
    far_numbers(&pair.far).await.get("key").copied()
}

/// E4: two lanes write one key, and the far order is the near order.
#[test]
fn an_older_version_never_overwrites_a_newer_one() {
    simulated::run(async {
        assert_eq!(slow_first_lane(None).await, Some(2));
        assert_eq!(
            slow_first_lane(Some(Broken::OldOverwritesNewer)).await,
            Some(1),
            "the broken one is caught"
        );
    });
}

/// E2: independent lanes do not wait for each other.
#[test]
fn a_stuck_lane_does_not_hold_up_another() {
    simulated::run(async {
        let pair = Pair::new(1);
        let far = Way::to(pair.far.key_value(), pair.far.clock(), |call| match call {
            Call::Transact(updates)
                if updates
                    .iter()
                    .any(|update| update.key.sort().ends_with(b"stuck")) =>
            {
                Fate::Hang
            }
            _ => Fate::Pass,
        });
        let synchrony = pair.open_over(far, Options::default()).await;
        let (one, two) = (
            synchrony.lane().expect("a lane"),
            synchrony.lane().expect("a lane"),
        );
        put(&one, "stuck", 1).await;
        let point = put(&two, "free", 2).await;
        two.externalize(point).await.expect("it becomes durable");
        assert_eq!(number(&two, "stuck").await, Some(1));
        let (barrier, point) = (two.clone(), two.point());
        let waits = tokio::spawn(async move { barrier.externalize(point).await });
        pair.near.clock().sleep(ms(60_000)).await;
        assert!(!waits.is_finished(), "it has read what is stuck");
        waits.abort();
    });
}

/// E3: a lane that joins another waits for its writes without having read them.
#[test]
fn a_lane_that_joins_another_waits_for_its_writes() {
    simulated::run(async {
        let pair = far_away();
        let synchrony = pair.open(Options::default()).await;
        let (one, two) = (
            synchrony.lane().expect("a lane"),
            synchrony.lane().expect("a lane"),
        );
        put(&one, "cause", 1).await;
        two.join(&one).expect("they are of one shard");
        two.externalize(two.point())
            .await
            .expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.get("cause"), Some(&1));
    });
}

/// E2: the changes of one call are far together.
#[test]
fn a_transaction_is_far_whole() {
    simulated::run(async {
        let pair = far_away();
        let synchrony = pair
            .open(Options {
                batch_bytes_max: 1,
                ..Options::default()
            })
            .await;
        let lane = Arc::new(synchrony.lane().expect("there are lanes"));
        let updates: Vec<Update> = (0..20)
            .map(|n| Update::modify(key(&n.to_string()), vec![Action::set_integer("n", n)]))
            .collect();
        lane.transact(updates).await.expect("it is ordered");
        for _ in 0..300 {
            pair.near.clock().sleep(ms(1)).await;
            let there = far_numbers(&pair.far).await.len();
            assert!(there == 0 || there == 20, "{there} of 20");
        }
        assert_eq!(far_numbers(&pair.far).await.len(), 20);
    });
}
