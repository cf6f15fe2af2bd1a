//! Transient and permanent errors of the far store.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use ports::{ErrorKind, Externalize, KeyValue, Update, key_value::Action};
use synchrony::{Broken, Options, Synchrony};

use crate::{
    Pair, far_numbers, key, ms, number, put, set,
    way::{Call, Fate, Way},
};

/// A far store that permanently refuses each call that touches the key `bad`.
async fn picky(pair: &Pair, options: Options) -> Synchrony {
    let far = Way::to(pair.far.key_value(), pair.far.clock(), |call| match call {
        Call::Transact(updates)
            if updates
                .iter()
                .any(|update| update.key.sort().ends_with(b"bad")) =>
        {
            Fate::Refuse(ErrorKind::Invalid)
        }
        _ => Fate::Pass,
    });
    pair.open_over(far, options).await
}

/// E6: also if it travels with others, which are far up to it.
#[test]
fn a_permanent_error_surfaces_at_the_barrier_and_at_every_later_write() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = picky(&pair, Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let before = put(&lane, "before", 1).await;
        let bad = put(&lane, "bad", 2).await;
        let after = put(&lane, "after", 3).await;
        for point in [bad, after] {
            let error = lane
                .externalize(point)
                .await
                .expect_err("it cannot be written");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(!lane.is_durable(point));
        }
        lane.externalize(before).await.expect("it came before");
        let error = lane
            .update(set("later", 4))
            .await
            .expect_err("the lane is poisoned");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = lane
            .update(set("later", 4).when(ports::Condition::Exists))
            .await
            .expect_err("any write");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        pair.near.clock().sleep(ms(10_000)).await;
        assert_eq!(
            far_numbers(&pair.far).await.into_iter().collect::<Vec<_>>(),
            [("before".to_owned(), 1)]
        );
        assert_eq!(synchrony.health().poisoned_lanes, 1);
        assert_eq!(
            synchrony.drain().await.expect_err("it says so").kind(),
            ErrorKind::Invalid
        );
    });
}

/// E6.
#[test]
fn skipping_a_record_is_caught() {
    simulated::run(async {
        let pair = Pair::new(1);
        let broken = Some(Broken::SkipsWhatFails);
        let synchrony = picky(
            &pair,
            Options {
                mutant: broken.into(),
                ..Options::default()
            },
        )
        .await;
        let lane = synchrony.lane().expect("there are lanes");
        put(&lane, "bad", 2).await;
        let after = put(&lane, "after", 3).await;
        let silent = lane.externalize(after).await.is_ok();
        assert!(
            silent && !far_numbers(&pair.far).await.contains_key("bad"),
            "the broken one is caught"
        );
    });
}

/// E6: lanes that have read or overwritten the refused write; other lanes continue.
#[test]
fn a_lane_that_depends_on_a_poisoned_one_is_poisoned() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = picky(&pair, Options::default()).await;
        let lane = || synchrony.lane().expect("there are lanes");
        let (source, reader, writer, heir, other) = (lane(), lane(), lane(), lane(), lane());
        put(&source, "bad", 1).await;
        assert_eq!(number(&reader, "bad").await, Some(1));
        let written = put(&reader, "derived", 2).await;
        put(&writer, "bad", 3).await;
        assert_eq!(number(&heir, "derived").await, Some(2));
        put(&other, "other", 5).await;
        source
            .externalize(source.point())
            .await
            .expect_err("it cannot be written");
        for (who, lane) in [("reader", &reader), ("writer", &writer), ("heir", &heir)] {
            let error = lane.externalize(lane.point()).await.expect_err(who);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{who}: {error}");
            lane.update(set("later", 1)).await.expect_err(who);
        }
        assert!(!reader.is_durable(written));
        other
            .externalize(other.point())
            .await
            .expect("nothing connects it");
        assert_eq!(
            far_numbers(&pair.far).await.into_iter().collect::<Vec<_>>(),
            [("other".to_owned(), 5)]
        );
        let late = lane();
        assert_eq!(number(&late, "bad").await, Some(3), "it stays visible near");
        late.externalize(late.point())
            .await
            .expect_err("but it does not leave");
    });
}

/// E6: a lane that depends on a refused write can be reused once it has no handles, any number of
/// times.
#[test]
fn reads_of_a_refused_write_use_up_no_lane() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = picky(
            &pair,
            Options {
                lanes_max: 3,
                ..Options::default()
            },
        )
        .await;
        let source = synchrony.lane().expect("there are lanes");
        put(&source, "bad", 1).await;
        source
            .externalize(source.point())
            .await
            .expect_err("it cannot be written");
        for _ in 0..20 {
            let look = synchrony.lane().expect("the others have been given back");
            assert_eq!(number(&look, "bad").await, Some(1));
            look.externalize(look.point())
                .await
                .expect_err("it does not leave");
            look.update(set("later", 1))
                .await
                .expect_err("nothing comes behind it");
        }
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "good", 1).await;
        lane.externalize(point)
            .await
            .expect("it has read nothing of that");
    });
}

/// E2: a write follows all that its lane has read, even if its caller no longer waits.
#[test]
fn a_write_whose_caller_gave_up_follows_the_reads_of_its_lane() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = picky(&pair, Options::default()).await;
        let (source, reader) = (
            synchrony.lane().expect("a lane"),
            synchrony.lane().expect("a lane"),
        );
        put(&source, "bad", 1).await;
        assert_eq!(number(&reader, "bad").await, Some(1));
        let mut write = reader.update(set("derived", 2));
        assert!(futures_util::poll!(&mut write).is_pending());
        drop(write);
        drop(reader);
        pair.near.clock().sleep(ms(10_000)).await;
        let look = synchrony.lane().expect("a lane");
        assert_eq!(
            number(&look, "derived").await,
            Some(2),
            "it was made all the same"
        );
        assert!(far_numbers(&pair.far).await.is_empty());
    });
}

/// E6: for the tail of an earlier start, too: later writes depend on it only where they have read
/// it.
#[test]
fn a_refused_tail_stops_no_lane_that_has_not_read_it() {
    simulated::run(async {
        let pair = Pair::new(1);
        let old = pair
            .open(Options {
                linger: ms(3_600_000),
                ..Options::default()
            })
            .await;
        let (bad, good) = (
            old.lane().expect("there are lanes"),
            old.lane().expect("there are lanes"),
        );
        put(&bad, "bad", 1).await;
        put(&good, "good", 1).await;
        drop((bad, good, old));
        let synchrony = picky(&pair, Options::default()).await;
        while synchrony.health().poisoned_lanes == 0 {
            pair.near.clock().sleep(ms(10)).await;
        }
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "new", 1).await;
        lane.externalize(point)
            .await
            .expect("it comes behind nothing that was refused");
        let far: Vec<String> = far_numbers(&pair.far).await.into_keys().collect();
        assert_eq!(far, ["good", "new"]);
        assert_eq!(number(&lane, "bad").await, Some(1));
        lane.externalize(lane.point())
            .await
            .expect_err("now it has read it");
    });
}

/// E6: any transient error, for any time.
#[test]
fn an_outage_is_retried_in_order_and_reported() {
    for kind in [
        ErrorKind::Unavailable {
            retry_after_ms: None,
        },
        ErrorKind::NoRoom,
        ErrorKind::OutcomeUnknown,
    ] {
        simulated::run(async move {
            let pair = Pair::new(1);
            let is_out = Arc::new(AtomicBool::new(true));
            let out = Arc::clone(&is_out);
            let far = Way::to(
                pair.far.key_value(),
                pair.far.clock(),
                move |call| match call {
                    Call::Transact(_) if out.load(Ordering::SeqCst) => Fate::Refuse(kind),
                    _ => Fate::Pass,
                },
            );
            let synchrony = pair.open_over(far, Options::default()).await;
            let lane = synchrony.lane().expect("there are lanes");
            for n in 1..=50 {
                put(&lane, "counter", n).await;
                put(&lane, &format!("{n}"), n).await;
                pair.near.clock().sleep(ms(2_000)).await;
            }
            let health = synchrony.health();
            let failing = health.failing.expect("it fails");
            assert!(
                failing.attempts > 10 && failing.attempts < 300,
                "{} attempts in 100 s",
                failing.attempts
            );
            assert!(
                health.pending_records == 100 && health.pending_for >= ms(90_000),
                "{:?}",
                health.pending_for
            );
            assert_eq!(number(&lane, "counter").await, Some(50), "near goes on");
            assert!(far_numbers(&pair.far).await.is_empty());
            is_out.store(false, Ordering::SeqCst);
            lane.externalize(lane.point())
                .await
                .expect("it becomes durable");
            assert_eq!(far_numbers(&pair.far).await.len(), 51);
            let health = synchrony.health();
            assert_eq!(
                (health.failing, health.pending_records, health.pending_bytes),
                (None, 0, 0)
            );
        });
    }
}

/// E4, E6: every far transaction is applied, and few responses arrive.
#[test]
fn the_outcome_of_a_lost_response_is_found() {
    simulated::run(async {
        let pair = Pair::new(1);
        let entropy = pair.far.entropy();
        let far = Way::to(
            pair.far.key_value(),
            pair.far.clock(),
            move |call| match call {
                Call::Transact(_) if entropy.below(4) > 0 => Fate::LoseAnswer,
                _ => Fate::Pass,
            },
        );
        let options = Options {
            batch_bytes_max: 100,
            linger_bytes_max: 1,
            ..Options::default()
        };
        let synchrony = pair.open_over(far, options).await;
        let lane = synchrony.lane().expect("there are lanes");
        for _ in 0..40 {
            lane.update(Update::modify(
                key("counter"),
                vec![Action::Add("n".into(), 1)],
            ))
            .await
            .expect("ordered");
        }
        lane.externalize(lane.point())
            .await
            .expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.get("counter"), Some(&40));
    });
}

/// E8: the near write fails at once, and the lane continues.
#[test]
fn a_write_too_large_for_the_far_store_is_refused_near() {
    simulated::run(async {
        let mut far = simulated::Options::default();
        far.key_value.item_bytes_max = 64 * 1_024;
        let pair = Pair::with(1, simulated::Options::default(), far);
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let of = |bytes: usize| {
            Update::modify(
                key("large"),
                vec![Action::set("data", Bytes::from(vec![7; bytes]))],
            )
        };
        let limit = lane.limits().item_bytes_max;
        assert!(limit < 64 * 1_024);
        lane.update(of(limit - 4))
            .await
            .expect("it is the largest that fits");
        let refused = lane
            .update(of(limit))
            .await
            .expect_err("its name makes it larger");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        lane.externalize(lane.point())
            .await
            .expect("a write accepted near is accepted far");
        // Many small attributes take more bytes encoded than limits count.
        let many = (0..30_000).map(|n| {
            Action::Set(
                format!("{n}").into(),
                ports::key_value::Value::Bytes(Bytes::new()),
            )
        });
        let answer = lane
            .update(Update::modify(key("many"), many.take(9_000).collect()))
            .await;
        if answer.is_ok() {
            lane.externalize(lane.point())
                .await
                .expect("a write accepted near is accepted far");
        }
        put(&lane, "small", 1).await;
        lane.externalize(lane.point())
            .await
            .expect("the lane goes on");
    });
}

/// Another program writes to the far store.
#[test]
fn a_far_item_of_another_program_is_not_overwritten_silently() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = put(&lane, "key", 1).await;
        lane.externalize(point).await.expect("it becomes durable");
        let inner = [b"i".as_slice(), key("key").as_bytes()].concat();
        let behind = ports::Key::new(crate::SHARD, inner);
        let forged = Update::modify(behind, vec![Action::set_integer("v", 1_000)]);
        pair.far
            .key_value()
            .update(forged)
            .await
            .expect("it succeeds");
        let point = put(&lane, "key", 2).await;
        let error = lane.externalize(point).await.expect_err("it is noticed");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    });
}
