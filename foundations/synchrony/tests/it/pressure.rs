//! Back-pressure: pending writes are limited, and fast writers wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ports::{
    ErrorKind, Externalize, KeyValue, Update,
    key_value::{Action, SharedKeyValue},
};
use synchrony::{Lane, Options};

use crate::{
    Pair, distant, far_numbers, key, ms, number, put, shared, timed,
    way::{Call, Fate, Way},
};

/// A far store that responds on command.
fn gate(pair: &Pair) -> (SharedKeyValue, Arc<AtomicBool>) {
    let is_shut = Arc::new(AtomicBool::new(true));
    let shut = Arc::clone(&is_shut);
    let far = Way::to(
        pair.far.key_value(),
        pair.far.clock(),
        move |call| match call {
            Call::Transact(_) if shut.load(Ordering::SeqCst) => {
                Fate::Refuse(ErrorKind::Unavailable {
                    retry_after_ms: None,
                })
            }
            _ => Fate::Pass,
        },
    );
    (far, is_shut)
}

async fn put_large(lane: &Lane, n: usize) {
    let update = Update::modify(
        key(&format!("{n:03}")),
        vec![
            Action::set_integer("n", n as i64),
            Action::set("data", vec![7; 1_000]),
        ],
    );
    lane.update(update).await.expect("it is ordered");
}

/// E7: no write is dropped, and reads continue.
#[test]
fn writers_wait_while_too_many_bytes_are_pending() {
    simulated::run(async {
        let pair = Pair::new(1);
        let (far, is_shut) = gate(&pair);
        let options = Options {
            pending_bytes_max: 20_000,
            ..Options::default()
        };
        let synchrony = pair.open_over(far, options).await;
        let lanes: Vec<Arc<Lane>> = (0..10)
            .map(|_| shared(synchrony.lane().expect("a lane")))
            .collect();
        let writers: Vec<_> = (0..100)
            .map(|n| {
                let lane = Arc::clone(&lanes[n % 10]);
                tokio::spawn(async move { put_large(&lane, n).await })
            })
            .collect();
        pair.near.clock().sleep(ms(30_000)).await;
        let waiting = writers
            .iter()
            .filter(|writer| !writer.is_finished())
            .count();
        let health = synchrony.health();
        assert!((75..90).contains(&waiting), "{waiting} of 100 wait");
        assert!(
            health.pending_bytes < 22_000,
            "{} bytes are pending",
            health.pending_bytes
        );
        assert_eq!(number(&*lanes[0], "000").await, Some(0), "reads go on");
        is_shut.store(false, Ordering::SeqCst);
        for writer in writers {
            writer.await.expect("it is done");
        }
        synchrony
            .drain()
            .await
            .expect("everything becomes far-durable");
        assert_eq!(far_numbers(&pair.far).await.len(), 100);
    });
}

/// E7.
#[test]
fn writers_wait_while_the_oldest_write_is_too_old() {
    simulated::run(async {
        let pair = Pair::new(1);
        let (far, is_shut) = gate(&pair);
        let options = Options {
            pending_age_max: ms(5_000),
            ..Options::default()
        };
        let synchrony = pair.open_over(far, options).await;
        let lane = synchrony.lane().expect("there are lanes");
        put(&lane, "a", 1).await;
        pair.near.clock().sleep(ms(4_000)).await;
        put(&lane, "b", 2).await;
        pair.near.clock().sleep(ms(2_000)).await;
        let late = lane.clone();
        let writer = tokio::spawn(async move { put(&late, "c", 3).await });
        pair.near.clock().sleep(ms(60_000)).await;
        assert!(!writer.is_finished(), "the oldest is a minute old");
        is_shut.store(false, Ordering::SeqCst);
        writer.await.expect("it is done");
        lane.externalize(lane.point())
            .await
            .expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.len(), 3);
    });
}

/// E7: lanes take turns.
#[test]
fn a_short_lane_is_not_kept_waiting_by_long_ones() {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(50)));
        // Each record is a batch, and two are under way.
        let options = Options {
            window_batches_max: 2,
            lane_batches_max: 2,
            batch_bytes_max: 1,
            ..Options::default()
        };
        let synchrony = pair.open(options).await;
        let long: Vec<Lane> = (0..3).map(|_| synchrony.lane().expect("a lane")).collect();
        let short = synchrony.lane().expect("a lane");
        for n in 0..60 {
            put(&long[n as usize % 3], &n.to_string(), n).await;
        }
        // The batches of these lanes fill the window.
        pair.near.clock().sleep(ms(20)).await;
        let point = put(&short, "short", 1).await;
        let (took, externalized) = timed(&pair.near, short.externalize(point)).await;
        externalized.expect("it becomes durable");
        assert!(
            took < ms(1_000),
            "{took:?}, and all of the long ones take six seconds"
        );
        assert!(
            far_numbers(&pair.far).await.len() < 30,
            "it has not waited for that"
        );
    });
}

/// A released lane is reused. So the limit applies to lanes at a time, and not to all lanes ever
/// opened.
#[test]
fn lanes_are_limited_and_reused() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = pair
            .open(Options {
                lanes_max: 3,
                ..Options::default()
            })
            .await;
        for round in 0..10 {
            let lanes: Vec<Lane> = (0..3).map(|_| synchrony.lane().expect("a lane")).collect();
            let refused = synchrony.lane().expect_err("there are three");
            assert!(refused.is_retryable(), "{refused}");
            for (number, lane) in lanes.iter().enumerate() {
                let point = put(lane, &format!("{round} {number}"), 1).await;
                lane.externalize(point).await.expect("it becomes durable");
            }
        }
        assert_eq!(far_numbers(&pair.far).await.len(), 30);
    });
}

/// E6, E7: while the far store is away, too.
#[test]
fn reads_of_pending_writes_use_up_no_lane() {
    simulated::run(async {
        let pair = Pair::new(1);
        let (far, is_shut) = gate(&pair);
        let synchrony = pair
            .open_over(
                far,
                Options {
                    lanes_max: 3,
                    ..Options::default()
                },
            )
            .await;
        let writer = synchrony.lane().expect("there are lanes");
        put(&writer, "a", 1).await;
        for _ in 0..20 {
            let look = synchrony.lane().expect("the others have been given back");
            assert_eq!(number(&look, "a").await, Some(1));
            assert!(
                !look.is_durable(look.point()),
                "it waits for what it has read"
            );
        }
        is_shut.store(false, Ordering::SeqCst);
        writer
            .externalize(writer.point())
            .await
            .expect("it becomes durable");
    });
}
