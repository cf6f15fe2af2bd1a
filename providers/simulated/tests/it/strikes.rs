//! Each fault strikes in each of its forms, about as often as requested. A fault that never struck
//! would leave everything tested against it untested.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Functions as _, Update,
    functions::{FunctionOptions, QueueTrigger},
    key_value::Action,
    queue::QueueOptions,
};
use simulated::{Chance, Faults, World, percent, run};

use crate::{integer, key, message, register};

const SEEDS: u64 = 30;

fn count_up() -> Update {
    Update::modify(key("a"), vec![Action::Add("n".into(), 1)])
}

/// A world with a function "f" that makes one call for each message of the queue "q".
async fn world_with_a_function(seed: u64) -> World {
    let world = World::new(seed);
    world
        .queue()
        .create("q", QueueOptions::default())
        .await
        .expect("calm");
    let key_value = world.key_value();
    register(&world, "f", FunctionOptions::default(), move |_| {
        let key_value = Arc::clone(&key_value);
        async move {
            key_value.update(count_up()).await?;
            Ok(Bytes::new())
        }
    });
    let trigger = QueueTrigger {
        queue: "q".into(),
        function: "f".into(),
        batch_messages_max: 1,
        groups_max: 1,
    };
    world.functions().arm_queue(trigger).await.expect("calm");
    world
}

/// How often invocations died before and after their calls.
fn deaths(raise: impl Fn(&Faults)) -> (usize, usize) {
    let mut deaths = (0, 0);
    for seed in 0..SEEDS {
        run(async {
            let world = world_with_a_function(seed).await;
            raise(world.faults());
            for group in 0..10 {
                world
                    .queue()
                    .send("q", vec![message(&format!("{group}"), "m")])
                    .await
                    .expect("it is not a function");
            }
            world.clock().sleep(Duration::from_secs(1)).await;
            let trace = world.trace();
            deaths.0 += trace
                .entries()
                .filter(|entry| entry.outcome == "caller died before it")
                .count();
            deaths.1 += trace
                .entries()
                .filter(|entry| entry.outcome.ends_with(", caller died after it"))
                .count();
        });
    }
    deaths
}

#[test]
fn functions_die_before_their_calls_and_after_them() {
    let of_all = |faults: &Faults| faults.crash_functions(percent(20));
    let of_one = |faults: &Faults| faults.crash_function("f", percent(20));
    for raise in [of_all as fn(&Faults), of_one] {
        let (before, after) = deaths(raise);
        assert!(before > 10 && after > 10, "{before} before, {after} after");
    }
    let spared = deaths(|faults| {
        faults.crash_functions(Chance::ALWAYS);
        faults.crash_function("f", Chance::NEVER);
    });
    assert_eq!(
        spared,
        (0, 0),
        "the probability of one function replaces that of all"
    );
}

#[test]
fn a_death_is_noticed_at_once_or_by_the_timeout_of_its_message() {
    let mut found = [0, 0];
    for seed in 0..SEEDS {
        run(async {
            let world = world_with_a_function(seed).await;
            world.faults().crash_once_after("f", 0);
            world
                .queue()
                .send("q", vec![message("g", "m")])
                .await
                .expect("calm");
            let start = world.clock().monotonic();
            while integer(&*world.key_value(), &key("a"), "n").await == 0 {
                world.clock().sleep(Duration::from_millis(100)).await;
            }
            let took = world.clock().monotonic().since(start);
            let default = FunctionOptions::default().timeout;
            found[usize::from(took >= default)] += 1;
            assert!(took < Duration::from_secs(1) || took >= default, "{took:?}");
        });
    }
    assert!(
        found.iter().all(|count| *count > 5),
        "at once, later: {found:?}"
    );
}

#[test]
fn the_store_crashes_at_calls_and_loses_what_was_not_durable() {
    let (mut crashed, mut lost) = (0, 0);
    for seed in 0..SEEDS {
        run(async {
            let world = World::new(seed);
            let key_value = world.key_value();
            world.faults().crash_store(percent(10));
            let mut done = 0;
            for _ in 0..20 {
                let before = key_value.point().incarnation;
                done += i64::from(key_value.update(count_up()).await.is_ok());
                crashed += usize::from(key_value.point().incarnation != before);
            }
            world.faults().calm();
            lost += done - integer(&*key_value, &key("a"), "n").await;
        });
    }
    assert!(
        crashed > 30 && lost > 30,
        "{crashed} crashes, {lost} updates lost"
    );
}

/// D5.
#[test]
fn a_crash_undoes_transient_updates() {
    run(async {
        let world = World::new(1);
        let key_value = world.key_value();
        let durable = key_value
            .update(count_up())
            .await
            .expect("calm")
            .receipt
            .point;
        key_value
            .update(count_up().transient())
            .await
            .expect("calm");
        key_value.externalize(durable).await.expect("it is there");
        world.crash();
        assert_eq!(integer(&*key_value, &key("a"), "n").await, 1);
    });
}

#[test]
fn clocks_are_wrong_by_up_to_two_seconds_either_way() {
    run(async {
        let world = World::new(1);
        let right = world.clock().now().0.cast_signed();
        let skews: BTreeSet<i64> = (0..200)
            .map(|_| world.skewed_clock().now().0.cast_signed() - right)
            .collect();
        let (slowest, fastest) = (skews.first().expect("some"), skews.last().expect("some"));
        assert!(
            *slowest < -1_800 && *fastest > 1_800,
            "{slowest} to {fastest} ms"
        );
    });
}

/// Which of two concurrent calls arrives first.
fn first_to_arrive(seed: u64) -> i64 {
    run(async {
        let world = World::new(seed);
        // Too short for a timer.
        world
            .faults()
            .delay(percent(50), Duration::ZERO..=Duration::from_micros(900));
        let write = |n| {
            let key_value = world.key_value();
            tokio::spawn(async move {
                let element = Bytes::copy_from_slice(&[n]);
                let append = Action::Append("order".into(), vec![element]);
                key_value
                    .update(Update::modify(key("a"), vec![append]))
                    .await
                    .expect("nothing refuses");
            })
        };
        for writer in [write(1), write(2)] {
            writer.await.expect("it does not panic");
        }
        world.faults().calm();
        let item = world
            .key_value()
            .get(&key("a"))
            .await
            .expect("calm")
            .value
            .expect("it was written");
        i64::from(item.list("order")[0][0])
    })
}

#[test]
fn calls_overtake_each_other_without_a_millisecond_passing() {
    let first: Vec<i64> = (0..SEEDS).map(first_to_arrive).collect();
    assert!(
        [1, 2]
            .iter()
            .all(|n| first.iter().filter(|first| *first == n).count() > 2),
        "{first:?}"
    );
}
