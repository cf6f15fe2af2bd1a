//! Starts over one near store that do not know of each other: the owner writes, and others open, between any two of their steps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ports::{KeyValue, Monotonic, key_value::SharedKeyValue};
use simulated::{World, seeds};
use synchrony::{Broken, Options, Stores, Synchrony};
use tokio::task::JoinHandle;

use crate::{
    Pair, far_numbers, ms, number, put, set,
    way::{Fate, Way},
};

fn in_time(pair: &Pair, time_ms: u64) -> Monotonic {
    pair.near.clock().monotonic() + ms(time_ms)
}

/// Nothing leaves until somebody waits for it.
fn lingering() -> Options {
    Options { linger: Duration::from_hours(1), lease: ms(400), ..Options::default() }
}

/// A way on which the call of this number, counted with those of all ways that share the count, comes late.
fn late(store: SharedKeyValue, pair: &Pair, count: &Arc<AtomicUsize>, number: usize) -> SharedKeyValue {
    let count = Arc::clone(count);
    Way::to(store, pair.near.clock(), move |_| match count.fetch_add(1, Ordering::Relaxed) {
        at if at == number => Fate::Delay(ms(20)),
        _ => Fate::Pass,
    })
}

/// Writes keys that begin with `name`, until that is refused or it is time; how many were acknowledged.
fn writing(synchrony: Synchrony, name: &'static str, world: &World, until: Monotonic) -> JoinHandle<i64> {
    let clock = world.clock();
    tokio::spawn(async move {
        let lane = synchrony.lane().expect("there are lanes");
        let mut acknowledged = 0;
        while clock.monotonic() < until {
            let written = lane.update(set(&format!("{name} {acknowledged}"), acknowledged)).await;
            if written.is_err() {
                break;
            }
            acknowledged += 1;
            clock.sleep(ms(2)).await;
        }
        acknowledged
    })
}

/// What is wrong with the keys that were acknowledged under these names, and with later ones.
async fn check(pair: &Pair, synchrony: &Synchrony, acknowledged: &[(&str, i64)]) -> Vec<String> {
    let lane = synchrony.lane().expect("there are lanes");
    for n in 0..50 {
        put(&lane, &format!("later {n}"), n).await;
    }
    let mut wrong = Vec::new();
    let all = [acknowledged, &[("later", 50)]].concat();
    let expected = all.iter().flat_map(|(name, count)| (0..*count).map(move |n| (format!("{name} {n}"), n)));
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
        expected.filter(|(key, n)| far.get(key) != Some(n)).map(|(key, _)| format!("{key} is not far")),
    );
    wrong
}

/// The owner writes on until a second start has the range, of which one call comes late; what is wrong then, and how many calls it made.
async fn taken_while_written(late_call: usize, broken: Option<Broken>) -> (Vec<String>, usize) {
    let pair = Pair::new(1);
    let first = writing(pair.open(lingering()).await, "first", &pair.near, in_time(&pair, 10_000));
    pair.near.clock().sleep(ms(30)).await;
    let count = Arc::default();
    let near = late(pair.near.key_value(), &pair, &count, late_call);
    let far = late(pair.far.key_value(), &pair, &count, late_call);
    let stores = Stores { near, far, ..pair.stores() };
    let options = Options { broken, ..lingering() };
    let second = Synchrony::open(stores, options, pair.near.clock(), pair.near.entropy()).await;
    let (second, calls) = (second.expect("nobody else opens it"), count.load(Ordering::Relaxed));
    let acknowledged = first.await.expect("nothing disturbed it");
    (check(&pair, &second, &[("first", acknowledged)]).await, calls)
}

/// E9: wherever the second start is.
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

/// Opens, however often another start is quicker, and writes until one takes the range or it is time.
async fn opening(pair: Pair, name: &'static str, until: Monotonic) -> i64 {
    let clock = pair.near.clock();
    while clock.monotonic() < until {
        let opened =
            Synchrony::open(pair.stores(), lingering(), pair.near.clock(), pair.near.entropy()).await;
        match opened {
            Ok(synchrony) => {
                return writing(synchrony, name, &pair.near, until).await.expect("nothing disturbs it");
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        clock.sleep(ms(5)).await;
    }
    0
}

/// E9: whoever loses a race has neither emptied the near store nor given it another past, whether it began as another's or not.
#[test]
fn of_starts_that_race_over_one_near_store_none_loses_what_another_has_written() {
    for seed in seeds(30) {
        simulated::run(async {
            let near = simulated::Options { latency: Some(ms(0)..=ms(3)), ..simulated::Options::default() };
            let far = simulated::Options { latency: Some(ms(1)..=ms(6)), ..simulated::Options::default() };
            let pair = Pair::with(seed, near, far);
            put(&pair.open(lingering()).await.lane().expect("there are lanes"), "gone", 1).await;
            if seed % 2 == 0 {
                let other = Pair { near: World::new(99), far: pair.far.clone() };
                other.open(lingering()).await.release().await.expect("it is given up");
            }
            let until = in_time(&pair, 200);
            let starts =
                ["one", "two", "three"].map(|name| (name, tokio::spawn(opening(pair.clone(), name, until))));
            let mut acknowledged = Vec::new();
            for (name, start) in starts {
                acknowledged.push((name, start.await.expect("nothing disturbed it")));
            }
            let last = pair.open(lingering()).await;
            let wrong = check(&pair, &last, &acknowledged).await;
            assert!(wrong.is_empty(), "LANDFAST_SEED={seed}: {acknowledged:?} {wrong:#?}");
        });
    }
}
