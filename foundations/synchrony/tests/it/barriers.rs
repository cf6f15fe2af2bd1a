//! E3: a point covers what its lane had read, although later writes of the lane take the reads over.

use futures_util::poll;
use ports::{DurabilityPoint, ErrorKind, Externalize, KeyValue, key_value::SharedKeyValue};
use simulated::World;
use synchrony::{Broken, Lane, Options, Stores, Synchrony};

use crate::{
    Pair, SHARD, far_numbers, key, ms, put, set,
    way::{Call, Fate, Way},
};

/// A store in which this happens to each transaction with a row of the user's key `sort`.
fn with_fate(world: &World, sort: &'static [u8], fate: Fate) -> SharedKeyValue {
    Way::to(world.key_value(), world.clock(), move |call| match call {
        Call::Transact(updates) if updates.iter().any(|it| it.key.sort().ends_with(sort)) => fate,
        _ => Fate::Pass,
    })
}

/// The point of a read.
async fn read(lane: &Lane, sort: &str) -> DurabilityPoint {
    lane.get(&key(sort)).await.expect("it is read").point
}

/// A lane reads a row of the tail, and writes while a barrier waits for the point of the read. Then
/// the far store refuses the row. Returns whether a barrier of that point succeeds afterwards.
fn a_barrier_of_a_refused_read_succeeds(mutant: Option<Broken>) -> bool {
    simulated::run(async move {
        let pair = Pair::new(1);
        let lingering = Options {
            linger: ms(3_600_000),
            ..Options::default()
        };
        let old = pair.open(lingering).await;
        put(&old.lane().expect("there are lanes"), "bad", 1).await;
        drop(old);
        let refused = Fate::RefuseLate(ms(1_000), ErrorKind::Invalid);
        let options = Options {
            mutant: mutant.into(),
            ..Options::default()
        };
        let far = with_fate(&pair.far, b"bad", refused);
        let synchrony = pair.open_over(far, options).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = read(&lane, "bad").await;
        let mut barrier = lane.externalize(point);
        assert!(poll!(&mut barrier).is_pending());
        put(&lane, "derived", 2).await;
        let error = barrier.await.expect_err("the tail is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(far_numbers(&pair.far).await.is_empty());
        let is_durable = lane.is_durable(point);
        let repeated = lane.externalize(point).await.is_ok();
        assert_eq!(is_durable, repeated);
        repeated
    })
}

#[test]
fn a_repeated_barrier_fails_after_a_write_has_taken_its_reads_over() {
    assert!(!a_barrier_of_a_refused_read_succeeds(None));
}

#[test]
fn a_barrier_that_forgets_what_a_write_took_over_is_caught() {
    let forgets = Some(Broken::ForgetsWhatWasTakenOver);
    assert!(a_barrier_of_a_refused_read_succeeds(forgets));
}

/// A shard whose near store responds late to writes of `slow`, and whose far store is late with
/// `late`.
async fn late(pair: &Pair, late: &'static [u8]) -> Synchrony {
    let stores = Stores {
        near: with_fate(&pair.near, b"slow", Fate::DelayAnswer(ms(100))),
        far: with_fate(&pair.far, late, Fate::Delay(ms(1_000))),
        shard: SHARD,
    };
    let (clock, entropy) = (pair.near.clock(), pair.near.entropy());
    let opened = Synchrony::open(stores, Options::default(), clock, entropy);
    opened.await.expect("it opens")
}

/// Two writes of the lane follow the point: the first is ordered before the read, the second has
/// taken it over.
#[test]
fn a_barrier_waits_for_a_read_made_while_its_lane_wrote() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = late(&pair, b"source").await;
        let lane = || synchrony.lane().expect("there are lanes");
        let (source, lane) = (lane(), lane());
        put(&source, "source", 1).await;
        let mut write = lane.update(set("slow", 2));
        assert!(poll!(&mut write).is_pending());
        pair.near.clock().sleep(ms(10)).await;
        let point = read(&lane, "source").await;
        write.await.expect("it is ordered");
        put(&lane, "next", 3).await;
        lane.externalize(point).await.expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.get("source"), Some(&1));
    });
}

#[test]
fn a_barrier_waits_for_a_write_of_its_lane_that_was_read_before_it_returned() {
    simulated::run(async {
        let pair = Pair::new(1);
        let synchrony = late(&pair, b"slow").await;
        let lane = synchrony.lane().expect("there are lanes");
        let mut write = lane.update(set("slow", 2));
        assert!(poll!(&mut write).is_pending());
        pair.near.clock().sleep(ms(10)).await;
        let point = read(&lane, "slow").await;
        lane.externalize(point).await.expect("it becomes durable");
        assert_eq!(far_numbers(&pair.far).await.get("slow"), Some(&2));
        write.await.expect("it is ordered");
    });
}
