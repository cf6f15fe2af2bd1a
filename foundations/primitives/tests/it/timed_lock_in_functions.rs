//! S3, S4: functions that hold a lock die between any two of their steps.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Clock, Event, Functions, Handler, Key,
    functions::{Definition, Failure, FunctionOptions, QueueTrigger},
    key_value::{Action, Operation, OperationId, SharedKeyValue, Version},
    queue::{Message, QueueOptions},
};
use primitives::{Acquired, Guarded, TimedLock};
use simulated::{World, percent, run};

use crate::{PORT_CALLS_MAX, seeds};

const HOLD_MS: u64 = 2_000;

/// Adds one for each message under the lock, in two guarded steps that count once.
#[derive(Debug)]
struct Worker {
    key_value: SharedKeyValue,
    clock: Arc<dyn Clock>,
}

fn key() -> Key {
    Key::new("locks", "shared")
}

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Messages { deliveries, .. } = event else {
            return Err(Failure::new("only messages come"));
        };
        for (completed, delivery) in deliveries.iter().enumerate() {
            self.add(&delivery.body)
                .await
                .map_err(|reason| Failure::after(completed, reason))?;
        }
        Ok(Bytes::new())
    }
}

impl Worker {
    async fn add(&self, body: &Bytes) -> Result<(), String> {
        let text = |error: ports::Error| error.to_string();
        let lock = TimedLock::new(Arc::clone(&self.key_value), HOLD_MS);
        let Acquired::Held(held) = lock
            .acquire(&key(), body, self.clock.now())
            .await
            .map_err(text)?
        else {
            return Err("another holds the lock".to_owned());
        };
        let id = body
            .iter()
            .fold(1_u128, |id, byte| id << 8 | u128::from(*byte));
        let once = |step| {
            Some(Operation {
                id: OperationId(id << 1 | step),
                known: Version(0),
            })
        };
        let left = lock
            .update(&held, vec![Action::Add("left".into(), 1)], once(0))
            .await
            .map_err(text)?;
        let right = lock
            .update(&held, vec![Action::Add("right".into(), 1)], once(1))
            .await
            .map_err(text)?;
        lock.release(&held, Vec::new()).await.map_err(text)?;
        match (left, right) {
            (Guarded::Done { .. }, Guarded::Done { .. }) => Ok(()),
            _ => Err("the lock was lost".to_owned()),
        }
    }
}

async fn world_with_worker(seed: u64) -> World {
    let world = World::new(seed);
    world
        .queue()
        .create(
            "work",
            QueueOptions {
                attempts_max: 1_000,
                ..QueueOptions::default()
            },
        )
        .await
        .expect("calm");
    let options = FunctionOptions {
        timeout: Duration::from_secs(10),
        ..FunctionOptions::default()
    };
    let handler = Arc::new(Worker {
        key_value: world.key_value(),
        clock: world.skewed_clock(),
    });
    world.functions().register(Definition {
        name: "worker".into(),
        options,
        handler,
    });
    let trigger = QueueTrigger {
        queue: "work".into(),
        function: "worker".into(),
        batch_messages_max: 2,
    };
    world.functions().arm_queue(trigger).await.expect("calm");
    world
}

async fn send_work(world: &World, count: usize) {
    for number in 0..count {
        let group = Bytes::from(format!("group {}", number % 3));
        let body = Bytes::from(format!("job {number}"));
        let message = Message {
            group,
            deduplication: None,
            body,
        };
        world
            .queue()
            .send("work", vec![message])
            .await
            .expect("calm");
    }
}

async fn check_everything_counted_once(world: &World, count: i64, what: &str) {
    let item = world
        .key_value()
        .get(&key())
        .await
        .expect("calm")
        .value
        .expect("it was locked");
    assert_eq!(
        (item.integer("left"), item.integer("right")),
        (Some(count), Some(count)),
        "{what}"
    );
    assert_eq!(
        primitives::Holder::of(&item),
        None,
        "{what}: the lock was given back"
    );
}

/// S4.
#[test]
fn a_lock_whose_holder_died_between_any_two_steps_is_taken_again() {
    for calls in 0..=4 {
        run(async {
            let world = world_with_worker(u64::from(calls)).await;
            world.faults().crash_once_after("worker", calls);
            send_work(&world, 2).await;
            world.clock().sleep(Duration::from_mins(5)).await;
            assert!(!world.faults().crash_is_pending("worker"));
            check_everything_counted_once(&world, 2, &format!("after {calls} calls")).await;
        });
    }
}

/// S3, S4.
#[test]
fn work_under_a_lock_counts_once_through_crashes_and_lost_answers() {
    for seed in seeds() {
        run(async {
            let world = world_with_worker(seed).await;
            send_work(&world, 6).await;
            world.faults().crash_functions(percent(10));
            world.faults().lose_answer(percent(10));
            world.faults().deliver_twice(percent(10));
            world
                .faults()
                .delay(percent(20), Duration::ZERO..=Duration::from_millis(500));
            world.clock().sleep(Duration::from_mins(3)).await;
            world.faults().calm();
            world.clock().sleep(Duration::from_mins(10)).await;
            check_everything_counted_once(&world, 6, &format!("seed {seed}")).await;
            assert!(
                world.port_calls() <= PORT_CALLS_MAX,
                "seed {seed}: {} calls",
                world.port_calls()
            );
        });
    }
}
