//! Concurrent starts over one near store: the owner writes while others open, between any two of
//! their steps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ports::{ErrorKind, Externalize, KeyValue, Monotonic, key_value::SharedKeyValue};
use simulated::{World, seeds};
use synchrony::{Awaited, Broken, Options, Stores, Synchrony};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    Pair, far_numbers, ms, number, put, set, timed,
    way::{Call, Fate, Way},
};

fn in_time(pair: &Pair, time_ms: u64) -> Monotonic {
    pair.near.clock().monotonic() + ms(time_ms)
}

/// No record is sent before a caller waits.
fn lingering() -> Options {
    Options {
        linger: Duration::from_hours(1),
        lease: ms(400),
        ..Options::default()
    }
}

/// A store path that delays the call of this number. Paths that share the count are counted
/// together.
fn late(
    store: SharedKeyValue,
    pair: &Pair,
    count: &Arc<AtomicUsize>,
    number: usize,
) -> SharedKeyValue {
    let count = Arc::clone(count);
    Way::to(store, pair.near.clock(), move |_| {
        match count.fetch_add(1, Ordering::Relaxed) {
            at if at == number => Fate::Delay(ms(20)),
            _ => Fate::Pass,
        }
    })
}

/// Writes keys that begin with `name` until a write is refused or the time is over; returns how
/// many were acknowledged.
fn writing(
    synchrony: Synchrony,
    name: &'static str,
    world: &World,
    until: Monotonic,
) -> JoinHandle<i64> {
    let clock = world.clock();
    tokio::spawn(async move {
        let lane = synchrony.lane().expect("there are lanes");
        let mut acknowledged = 0;
        while clock.monotonic() < until {
            let written = lane
                .update(set(&format!("{name} {acknowledged}"), acknowledged))
                .await;
            if written.is_err() {
                break;
            }
            acknowledged += 1;
            clock.sleep(ms(2)).await;
        }
        acknowledged
    })
}

/// The violations among keys acknowledged under these names, and among later ones.
async fn check(pair: &Pair, synchrony: &Synchrony, acknowledged: &[(&str, i64)]) -> Vec<String> {
    let lane = synchrony.lane().expect("there are lanes");
    for n in 0..50 {
        put(&lane, &format!("later {n}"), n).await;
    }
    let mut wrong = Vec::new();
    let all = [acknowledged, &[("later", 50)]].concat();
    let expected = all
        .iter()
        .flat_map(|(name, count)| (0..*count).map(move |n| (format!("{name} {n}"), n)));
    for (key, n) in expected.clone() {
        let found = number(&lane, &key).await;
        if found != Some(n) {
            wrong.push(format!("{key} is {found:?}"));
        }
    }
    if let Err(error) = synchrony.drain().await {
        wrong.push(error.to_string());
    }
    let far = far_numbers(&pair.far).await;
    wrong.extend(
        expected
            .filter(|(key, n)| far.get(key) != Some(n))
            .map(|(key, _)| format!("{key} is not far")),
    );
    wrong
}

/// The owner writes until a second start has the shard. One call of that start is late. Returns the
/// violations, and the number of its calls.
async fn taken_while_written(late_call: usize, broken: Option<Broken>) -> (Vec<String>, usize) {
    let pair = Pair::new(1);
    let first = writing(
        pair.open(lingering()).await,
        "first",
        &pair.near,
        in_time(&pair, 10_000),
    );
    pair.near.clock().sleep(ms(30)).await;
    let count = Arc::default();
    let near = late(pair.near.key_value(), &pair, &count, late_call);
    let far = late(pair.far.key_value(), &pair, &count, late_call);
    let stores = Stores {
        near,
        far,
        ..pair.stores()
    };
    let options = Options {
        mutant: broken.into(),
        ..lingering()
    };
    let second = Synchrony::open(stores, options, pair.near.clock(), pair.near.entropy()).await;
    let (second, calls) = (
        second.expect("no other process opens it"),
        count.load(Ordering::Relaxed),
    );
    let acknowledged = first.await.expect("nothing disturbed it");
    (
        check(&pair, &second, &[("first", acknowledged)]).await,
        calls,
    )
}

/// E9: at each step of the second start.
#[test]
fn the_owner_may_write_between_any_two_steps_of_another_start_over_its_near_store() {
    simulated::run(async {
        let (wrong, calls) = taken_while_written(usize::MAX, None).await;
        assert!(wrong.is_empty(), "{wrong:#?}");
        let mut caught = 0;
        for call in 0..calls {
            let (wrong, _) = taken_while_written(call, None).await;
            assert!(wrong.is_empty(), "call {call} of {calls}: {wrong:#?}");
            let (wrong, _) = taken_while_written(call, Some(Broken::TakesStalePosition)).await;
            caught += usize::from(!wrong.is_empty());
        }
        assert!(caught > 0, "who takes a position that is no more is caught");
    });
}

/// Opens, again after each lost race, and writes until another start takes the shard or the time is
/// over.
async fn opening(pair: Pair, name: &'static str, until: Monotonic) -> i64 {
    let clock = pair.near.clock();
    while clock.monotonic() < until {
        let opened = Synchrony::open(
            pair.stores(),
            lingering(),
            pair.near.clock(),
            pair.near.entropy(),
        )
        .await;
        match opened {
            Ok(synchrony) => {
                return writing(synchrony, name, &pair.near, until)
                    .await
                    .expect("nothing disturbs it");
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        clock.sleep(ms(5)).await;
    }
    0
}

/// E9: a start that loses a race has neither emptied the near store nor changed its past, whether
/// the near store was ours or not.
#[test]
fn racing_starts_over_one_near_store_lose_no_write_of_another() {
    for seed in seeds(30) {
        simulated::run(async {
            let near = simulated::Options {
                latency: Some(ms(0)..=ms(3)),
                ..simulated::Options::default()
            };
            let far = simulated::Options {
                latency: Some(ms(1)..=ms(6)),
                ..simulated::Options::default()
            };
            let pair = Pair::with(seed, near, far);
            put(
                &pair
                    .open(lingering())
                    .await
                    .lane()
                    .expect("there are lanes"),
                "gone",
                1,
            )
            .await;
            if seed % 2 == 0 {
                let other = Pair {
                    near: World::new(99),
                    far: pair.far.clone(),
                };
                other
                    .open(lingering())
                    .await
                    .release()
                    .await
                    .expect("it is given up");
            }
            let until = in_time(&pair, 200);
            let starts = ["one", "two", "three"]
                .map(|name| (name, tokio::spawn(opening(pair.clone(), name, until))));
            let mut acknowledged = Vec::new();
            for (name, start) in starts {
                acknowledged.push((name, start.await.expect("nothing disturbed it")));
            }
            let last = pair.open(lingering()).await;
            let wrong = check(&pair, &last, &acknowledged).await;
            assert!(
                wrong.is_empty(),
                "LANDFAST_SEED={seed}: {acknowledged:?} {wrong:#?}"
            );
        });
    }
}

/// Options of processes that share one near store.
fn among_others() -> Options {
    Options {
        near_is_shared: true,
        lease: ms(2_000),
        ..lingering()
    }
}

/// How an owner gives signs of life.
#[derive(Debug, Clone, Copy)]
enum Sign {
    /// It writes, and no write becomes far.
    Writes,
    /// It reads, with barriers.
    Waits,
    /// It renews its lease.
    Renews,
    /// It writes, each time with a barrier.
    WritesAndWaits,
}

/// Gives signs of life for so many leases; returns how many writes were acknowledged; none: another
/// process has taken the shard.
async fn alive(synchrony: &Synchrony, world: &World, sign: Sign, leases: u32) -> Option<i64> {
    let lane = synchrony.lane().expect("there are lanes");
    let mut acknowledged = 0;
    for _ in 0..8 * leases {
        world.clock().sleep(among_others().lease / 8).await;
        if matches!(sign, Sign::Writes | Sign::WritesAndWaits) {
            lane.update(set(&format!("first {acknowledged}"), acknowledged))
                .await
                .ok()?;
            acknowledged += 1;
        }
        match sign {
            Sign::Writes => {}
            Sign::Renews => lane.renew_lease().await.ok()?,
            Sign::Waits | Sign::WritesAndWaits => lane.externalize(lane.point()).await.ok()?,
        }
    }
    Some(acknowledged)
}

/// E10, E9: with each sign of life. After its death another owner continues from the near store.
#[test]
fn over_a_shared_near_store_a_start_waits_until_the_owner_gives_no_sign_of_life() {
    let lease = among_others().lease;
    for sign in [
        Sign::Writes,
        Sign::Waits,
        Sign::Renews,
        Sign::WritesAndWaits,
    ] {
        simulated::run(async {
            let pair = Pair::new(1);
            let first = pair.open(among_others()).await;
            let start = pair.clone();
            let second = tokio::spawn(async move { start.open(among_others()).await });
            let acknowledged = alive(&first, &pair.near, sign, 4)
                .await
                .expect("no other process takes it");
            assert!(!second.is_finished(), "{sign:?}: the owner is alive");
            drop(first);
            let (took, second) = timed(&pair.near, second).await;
            assert!(
                (lease / 2..lease + lease / 3).contains(&took),
                "{sign:?}: {took:?}"
            );
            let second = second.expect("nothing disturbed it");
            let wrong = check(&pair, &second, &[("first", acknowledged)]).await;
            assert!(wrong.is_empty(), "{sign:?}: {wrong:#?}");
        });
        simulated::run(async {
            let pair = Pair::new(1);
            let first = pair.open(among_others()).await;
            let options = Options {
                mutant: Broken::TakesFromTheLiving.into(),
                ..among_others()
            };
            let (start, world) = (pair.clone(), pair.near.clone());
            let second = tokio::spawn(async move {
                world.clock().sleep(ms(1)).await;
                start.open(options).await
            });
            assert_eq!(
                alive(&first, &pair.near, sign, 4).await,
                None,
                "{sign:?}: the broken one is caught"
            );
            assert!(second.is_finished());
        });
    }
}

/// E10: for a shard that its last owner has released, or that never had one.
#[test]
fn of_racing_starts_over_a_shared_near_store_one_has_the_shard_at_once_and_none_fails() {
    for seed in seeds(30) {
        simulated::run(async {
            let near = simulated::Options {
                latency: Some(ms(0)..=ms(3)),
                ..simulated::Options::default()
            };
            let far = simulated::Options {
                latency: Some(ms(1)..=ms(6)),
                ..simulated::Options::default()
            };
            let pair = Pair::with(seed, near, far);
            if seed % 2 == 0 {
                pair.open(among_others())
                    .await
                    .release()
                    .await
                    .expect("it is given up");
            }
            let began = pair.near.clock().monotonic();
            let mut starts = tokio::task::JoinSet::new();
            for _ in 0..3 {
                let pair = pair.clone();
                starts.spawn(async move { pair.open(among_others()).await });
            }
            // Each releases the shard as soon as it has it.
            for nth in 0..3 {
                let opened = starts
                    .join_next()
                    .await
                    .expect("three were started")
                    .expect("none fails");
                let took = pair.near.clock().monotonic().since(began);
                assert!(
                    took < among_others().lease,
                    "LANDFAST_SEED={seed}: number {nth} took {took:?}"
                );
                opened.release().await.expect("no other process has it");
            }
        });
    }
}

/// E10, E9: the near store restarts under all of its processes. The owner continues at once, and no
/// other process takes the shard in between.
#[test]
fn a_start_does_not_wait_for_the_lease_of_an_ended_instance_of_its_process() {
    simulated::run(async {
        let pair = Pair::new(1);
        let first = pair.open(among_others()).await;
        let lane = first.lane().expect("there are lanes");
        let durable = put(&lane, "durable", 1).await;
        lane.externalize(durable).await.expect("it becomes durable");
        pair.near.crash();
        lane.get(&ports::Key::new("test", "durable"))
            .await
            .expect_err("its near store has restarted");
        let ended_epoch = Some(first.epoch());
        drop((lane, first));
        let start = pair.clone();
        let other = tokio::spawn(async move { start.open(among_others()).await });
        let again = Options {
            ended_epoch,
            ..among_others()
        };
        let (took, again) = timed(&pair.near, pair.open(again)).await;
        assert!(took < among_others().lease / 2, "{took:?}");
        assert_eq!(
            number(&again.lane().expect("a lane"), "durable").await,
            Some(1)
        );
        alive(&again, &pair.near, Sign::Renews, 2)
            .await
            .expect("no other process takes it");
        assert!(!other.is_finished(), "the owner is alive");
    });
}

/// E10: the channel serves this opening alone, and closes when it is over.
#[test]
fn an_opening_shows_the_cause_of_its_wait() {
    simulated::run(async {
        let pair = Pair::new(1);
        let first = pair.open(among_others()).await;
        let is_refused = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&is_refused);
        let far = Way::to(
            pair.far.key_value(),
            pair.near.clock(),
            move |call| match call {
                Call::Get if refuses.load(Ordering::Relaxed) => Fate::Refuse(ErrorKind::Invalid),
                _ => Fate::Pass,
            },
        );
        let stores = Stores {
            far,
            ..pair.stores()
        };
        let (tells, mut awaits) = watch::channel(Awaited::default());
        let parts = (pair.near.clock(), pair.near.entropy());
        let opening = tokio::spawn(Synchrony::open_with_progress(
            stores,
            among_others(),
            parts,
            tells,
        ));
        assert_eq!(*awaits.borrow(), Awaited::Stores);
        awaits
            .wait_for(|awaited| *awaited == Awaited::Owner)
            .await
            .expect("the owner may be alive");
        is_refused.store(true, Ordering::Relaxed);
        opening
            .await
            .expect("nothing disturbed it")
            .expect_err("it is refused");
        assert!(awaits.has_changed().is_err(), "it is over");
        first.release().await.expect("it is given up");

        let (tells, mut awaits) = watch::channel(Awaited::default());
        let parts = (pair.near.clock(), pair.near.entropy());
        let again = Synchrony::open_with_progress(pair.stores(), among_others(), parts, tells);
        again.await.expect("no process has it");
        assert_eq!(*awaits.borrow_and_update(), Awaited::Stores);
    });
}
