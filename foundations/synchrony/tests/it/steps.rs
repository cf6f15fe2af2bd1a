//! Deaths between any two steps: the process dies at its nth call to either store, made or not, for
//! every n.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicI64, Ordering},
};

use ports::{
    Externalize, KeyValue, Update,
    key_value::{Action, SharedKeyValue},
};
use simulated::World;
use synchrony::{Options, Stores, Synchrony};

use crate::{
    Pair, SHARD, far_numbers, key, ms, number, put,
    way::{Call, Fate, Way},
};

/// The outcome of the last call before the death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    NotMade,
    Made,
}

/// Acknowledgements before the death.
#[derive(Debug, Default, Clone)]
struct Answered {
    written: i64,
    externalized: i64,
    released: bool,
}

type Told = Arc<Mutex<Answered>>;

fn told(told: &Told) -> std::sync::MutexGuard<'_, Answered> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store path that ends when the count of both paths has run out.
fn mortal(
    world: &World,
    store: SharedKeyValue,
    left: &Arc<AtomicI64>,
    last: Last,
) -> SharedKeyValue {
    let left = Arc::clone(left);
    Way::to(store, world.clock(), move |_: Call<'_>| {
        match left.fetch_sub(1, Ordering::SeqCst) {
            0 if last == Last::Made => Fate::DelayAnswer(ms(1_000_000_000)),
            more if more > 0 => Fate::Pass,
            _ => Fate::Hang,
        }
    })
}

/// Entry `n`, with all other changes of its step.
fn step(n: i64) -> Vec<Update> {
    let flicker = if n % 2 == 1 {
        Update::modify(key("flickers"), vec![Action::set_integer("n", n)])
    } else {
        Update::delete(key("flickers"))
    };
    vec![
        Update::modify(
            key(&format!("entry {n}")),
            vec![Action::set_integer("n", n)],
        ),
        Update::modify(key("count"), vec![Action::Add("n".into(), 1)]),
        flicker,
    ]
}

/// Opens, writes alternately in two lanes that read each other, externalizes some writes, and
/// releases.
async fn live(stores: Stores, world: World, answered: Told) {
    let options = Options {
        near_bytes_max: 300,
        ..Options::default()
    };
    let Ok(synchrony) = Synchrony::open(stores, options, world.clock(), world.entropy()).await
    else {
        return;
    };
    let (Ok(one), Ok(two)) = (synchrony.lane(), synchrony.lane()) else {
        return;
    };
    let first = count_entries(&one).await + 1;
    for n in first..first + 4 {
        let lane = if n % 2 == 0 { &one } else { &two };
        if lane.transact(step(n)).await.is_err() {
            return;
        }
        told(&answered).written = n;
        if n % 3 == 0 {
            if lane.externalize(lane.point()).await.is_err() {
                return;
            }
            told(&answered).externalized = n;
        }
    }
    drop((one, two));
    if synchrony.release().await.is_ok() {
        let mut answered = told(&answered);
        (answered.externalized, answered.released) = (answered.written, true);
    }
}

async fn count_entries(store: &dyn KeyValue) -> i64 {
    let mut count = 0;
    while let Ok(read) = store.get(&key(&format!("entry {}", count + 1))).await {
        if read.value.is_none() {
            break;
        }
        count += 1;
    }
    count
}

/// One death after `calls` calls; returns whether the process had released the shard before.
async fn die_after(calls: i64, last: Last, near_restarts: bool) -> bool {
    let pair = Pair::new(calls as u64);
    // An earlier life leaves rows to find.
    let answered = Told::default();
    live(pair.stores(), pair.near.clone(), Arc::clone(&answered)).await;
    let left = Arc::new(AtomicI64::new(calls));
    let stores = Stores {
        near: mortal(&pair.near, pair.near.key_value(), &left, last),
        far: mortal(&pair.far, pair.far.key_value(), &left, last),
        shard: SHARD,
    };
    told(&answered).released = false;
    let life = tokio::spawn(live(stores, pair.near.clone(), Arc::clone(&answered)));
    pair.near.clock().sleep(ms(5_000)).await;
    life.abort();
    drop(life.await);
    if near_restarts {
        pair.near.crash();
    }
    let was = told(&answered).clone();
    let what =
        format!("after {calls} calls, the last {last:?}, near restarts: {near_restarts}: {was:?}");
    let far = far_numbers(&pair.far).await;
    let there = far.keys().filter(|name| name.starts_with("entry")).count() as i64;
    assert!(
        (1..=there).all(|n| far.contains_key(&format!("entry {n}"))),
        "a hole, {what}"
    );
    assert!(there >= was.externalized, "{there} entries are far, {what}");
    assert_eq!(far.get("count").copied().unwrap_or(0), there, "{what}");
    assert_eq!(
        far.get("flickers").copied(),
        (there % 2 == 1).then_some(there),
        "{what}"
    );
    check_next_life(&pair, &was, there, near_restarts, &what).await;
    was.released
}

/// Checks that the next life finds `there` entries at least, and continues.
async fn check_next_life(pair: &Pair, was: &Answered, there: i64, near_restarts: bool, what: &str) {
    let synchrony = pair.open(Options::default()).await;
    let lane = synchrony.lane().expect("there are lanes");
    let found = count_entries(&lane).await;
    assert!(
        found >= there,
        "{found} entries are found, {there} are far, {what}"
    );
    if !near_restarts {
        assert!(found >= was.written, "{found} entries are found, {what}");
    }
    assert_eq!(number(&lane, "count").await.unwrap_or(0), found, "{what}");
    assert_eq!(
        number(&lane, "flickers").await,
        (found % 2 == 1).then_some(found),
        "{what}"
    );
    put(&lane, "after", 1).await;
    synchrony
        .drain()
        .await
        .unwrap_or_else(|error| panic!("{error}, {what}"));
    let far = far_numbers(&pair.far).await;
    assert_eq!(
        (far.get("count").copied().unwrap_or(0), far.get("after")),
        (found, Some(&1)),
        "{what}"
    );
}

/// E1 to E5, E9, E10.
#[test]
fn a_death_between_any_two_steps_loses_and_repeats_no_write() {
    for last in [Last::NotMade, Last::Made] {
        for near_restarts in [false, true] {
            let deaths = (0..2_000)
                .take_while(|calls| !simulated::run(die_after(*calls, last, near_restarts)))
                .count();
            assert!((40..1_999).contains(&deaths), "{deaths} deaths");
        }
    }
}
