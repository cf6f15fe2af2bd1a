//! One seed gives one run.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Event, Functions as _, KeyValue, Update,
    functions::{FunctionOptions, QueueTrigger},
    key_value::Action,
    queue::QueueOptions,
};
use simulated::{Trace, World, percent, run};
use tokio::sync::watch;

use crate::{key, message, register};

/// Eight clients and two functions with many faults: they use everything that could break replay.
fn storm(seed: u64) -> Trace {
    run(async {
        let world = World::new(seed);
        world
            .queue()
            .create("jobs", QueueOptions::default())
            .await
            .expect("the world is calm");
        let key_value = world.key_value();
        register(&world, "worker", FunctionOptions::default(), move |event| {
            work(Arc::clone(&key_value), event)
        });
        let trigger = QueueTrigger {
            queue: "jobs".into(),
            function: "worker".into(),
            batch_messages_max: 4,
            groups_max: 1,
        };
        world
            .functions()
            .arm_queue(trigger)
            .await
            .expect("the world is calm");
        world
            .functions()
            .arm_timer("worker", Duration::from_millis(70))
            .await
            .expect("the world is calm");
        raise_storm(&world);
        let clients: Vec<_> = (0..8)
            .map(|number| tokio::spawn(client(world.clone(), number)))
            .collect();
        for client in clients {
            client.await.expect("clients do not panic");
        }
        world.crash_keeping_some();
        world.faults().calm();
        world
            .functions()
            .disarm_timer("worker")
            .await
            .expect("the world is calm");
        world.clock().sleep(Duration::from_mins(5)).await;
        world.trace()
    })
}

fn raise_storm(world: &World) {
    let faults = world.faults();
    faults.delay(percent(30), Duration::ZERO..=Duration::from_millis(20));
    faults.refuse(percent(5));
    faults.lose_answer(percent(5));
    faults.deliver_twice(percent(10));
    faults.crash_functions(percent(10));
    faults.crash_store(percent(1));
}

async fn work(
    key_value: Arc<dyn KeyValue>,
    event: Event,
) -> Result<Bytes, ports::functions::Failure> {
    let Event::Messages { deliveries, .. } = event else {
        return Ok(Bytes::new());
    };
    for _ in deliveries {
        let updated = key_value
            .update(Update::modify(
                key("done"),
                vec![Action::Add("n".into(), 1)],
            ))
            .await?;
        key_value.externalize(updated.receipt.point).await?;
    }
    Ok(Bytes::new())
}

async fn client(world: World, number: u64) {
    let (key_value, queue, clock) = (world.key_value(), world.queue(), world.skewed_clock());
    let chance = world.entropy();
    for _ in 0..12 {
        let subject = key(&format!("item {}", chance.below(3)));
        let stamp = Action::set_integer("at", clock.now().0 as i64);
        // Errors are expected here.
        let _ = key_value.update(Update::modify(subject, vec![stamp])).await;
        let _ = queue
            .send(
                "jobs",
                vec![message(&format!("group {}", number % 3), "job")],
            )
            .await;
        clock.sleep(Duration::from_millis(chance.below(40))).await;
    }
}

/// L3.
#[test]
fn one_seed_twice_gives_the_same_trace() {
    for seed in 0..5 {
        let (first, second) = (storm(seed), storm(seed));
        assert_eq!(first.to_string(), second.to_string(), "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

/// L3.
#[test]
fn fifty_seeds_give_fifty_traces() {
    let traces: BTreeSet<u64> = (0..50).map(|seed| storm(seed).hash()).collect();
    assert_eq!(traces.len(), 50);
}

/// L1, L2.
#[test]
fn clocks_of_other_machines_are_wrong_by_two_seconds_at_most() {
    run(async {
        let world = World::new(3);
        let right = world.clock();
        let mut skews = BTreeSet::new();
        for _ in 0..100 {
            let skew = world.skewed_clock().now().0.cast_signed() - right.now().0.cast_signed();
            assert!(skew.abs() <= 2_000, "{skew} ms");
            skews.insert(skew);
        }
        assert!(skews.len() > 50, "each machine's clock has its own error");
        let before = right.monotonic();
        right.sleep(Duration::from_millis(1_500)).await;
        assert_eq!(
            right.monotonic().since(before),
            Duration::from_millis(1_500)
        );
    });
}

#[test]
#[should_panic(expected = "all tasks wait forever")]
fn a_run_in_which_all_tasks_wait_ends_at_once() {
    run(std::future::pending::<()>());
}

#[test]
#[should_panic(expected = "an assertion of ours")]
fn a_panic_in_a_function_ends_the_run() {
    run(async {
        let world = World::new(1);
        register(&world, "broken", FunctionOptions::default(), |_| async {
            panic!("an assertion of ours")
        });
        let _ = world.functions().invoke("broken", Bytes::new()).await;
        world.clock().sleep(Duration::from_secs(1)).await;
    });
}

/// The runtime decides which waiter of a `watch` is woken first.
#[test]
fn waiters_of_one_event_wake_in_the_same_order_in_each_run() {
    let order = || {
        run(async {
            let (event, woken) = (watch::Sender::new(false), Arc::new(Mutex::new(Vec::new())));
            let wait = |waiter: usize| {
                let (mut event, woken) = (event.subscribe(), Arc::clone(&woken));
                tokio::spawn(async move {
                    event
                        .wait_for(|has_come| *has_come)
                        .await
                        .expect("its sender is there");
                    woken.lock().expect("no task panics").push(waiter);
                })
            };
            let waiters: Vec<_> = (0..20).map(wait).collect();
            tokio::task::yield_now().await;
            event.send_replace(true);
            for waiter in waiters {
                waiter.await.expect("it ends");
            }
            woken.lock().expect("no task panics").clone()
        })
    };
    let first = order();
    assert_eq!(first.len(), 20);
    for _ in 0..20 {
        assert_eq!(order(), first);
    }
}
