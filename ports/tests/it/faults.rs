//! Faulty ports: calm ones pass the suites, and each fault does what its name says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};
use ports::{
    ErrorKind, Functions, Key, KeyValue, Queue, Update,
    contract::{self, Case},
    faults::{Calm, Fault, FaultSchedule, FaultyFunctions, FaultyKeyValue, FaultyQueue, Script},
    key_value::{Action, OperationId, Outcome, Version},
    queue::{Message, QueueOptions},
};
use simulated::World;

use crate::subjects;

fn key_value(case: Case<contract::key_value::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::key_value(world);
        let store = Arc::new(FaultyKeyValue::new(
            subject.store,
            Arc::new(Calm),
            world.clock(),
        ));
        contract::key_value::Subject { store, ..subject }
    });
}

fn queue(case: Case<contract::queue::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::queue(world);
        let queue = Arc::new(FaultyQueue::new(
            subject.queue,
            Arc::new(Calm),
            world.clock(),
        ));
        contract::queue::Subject { queue, ..subject }
    });
}

fn functions(case: Case<contract::functions::Subject>) {
    subjects::run(case, |world| {
        let subject = subjects::functions(world);
        let functions = Arc::new(FaultyFunctions::new(
            subject.functions,
            Arc::new(Calm),
            world.clock(),
        ));
        contract::functions::Subject {
            functions,
            ..subject
        }
    });
}

fn durability(case: Case<contract::durability::Subject>) {
    subjects::run(case, |world| {
        subjects::decorated_durability(world, |store, world| {
            Arc::new(FaultyKeyValue::new(store, Arc::new(Calm), world.clock()))
        })
    });
}

mod key_value_contract {
    ports::key_value_contract!(super::key_value);
}
mod queue_contract {
    ports::queue_contract!(super::queue);
}
mod durability_contract {
    ports::durability_contract!(super::durability);
}
mod functions_contract {
    ports::functions_contract!(super::functions);
}

fn add(place: &Key) -> Update {
    Update::modify(place.clone(), vec![Action::Add("n".into(), 1)])
}

async fn count(store: &dyn KeyValue, place: &Key) -> i64 {
    let item = store
        .get(place)
        .await
        .expect("the script spares gets")
        .value;
    item.and_then(|item| item.integer("n")).unwrap_or(0)
}

fn store(world: &World, schedule: impl FaultSchedule + 'static) -> FaultyKeyValue {
    FaultyKeyValue::new(world.key_value(), Arc::new(schedule), world.clock())
}

/// K3.
#[test]
fn a_refused_update_changes_nothing_and_one_whose_answer_is_lost_is_done() {
    simulated::run(async {
        let (world, place) = (World::new(1), Key::new("p", "s"));
        let faults = [Fault::RefuseBefore, Fault::LoseAnswer];
        let store = store(&world, Script::of("key_value.update", faults));
        let refused = store.update(add(&place)).await.expect_err("refused");
        assert!(matches!(refused.kind(), ErrorKind::Unavailable { .. }));
        assert_eq!(count(&store, &place).await, 0);
        let lost = store.update(add(&place)).await.expect_err("lost");
        assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(count(&store, &place).await, 1);
        store.update(add(&place)).await.expect("the script is over");
        assert_eq!(count(&store, &place).await, 2);
    });
}

#[test]
fn a_delay_lasts_as_long_as_scheduled_and_a_hanging_call_is_never_made() {
    simulated::run(async {
        let (world, place) = (World::new(1), Key::new("p", "s"));
        let (clock, second) = (world.clock(), Duration::from_secs(1));
        let faults = [
            Fault::Delay(second),
            Fault::DelayAnswer(second),
            Fault::Hang,
        ];
        let store = store(&world, Script::of("key_value.update", faults));
        for n in 1..=2 {
            let started = clock.monotonic();
            store.update(add(&place)).await.expect("it is only late");
            assert!(clock.monotonic().since(started) >= second);
            assert_eq!(count(&store, &place).await, n);
        }
        let given_up = select(store.update(add(&place)), clock.sleep(60 * second)).await;
        assert!(matches!(given_up, Either::Right(_)), "no answer comes");
        assert_eq!(count(&store, &place).await, 2);
    });
}

/// K8: repeating with the same operation id, a caller counts exactly through any weather.
#[test]
fn a_counter_is_exact_in_bad_weather_if_unknown_outcomes_are_repeated() {
    simulated::run(async {
        let (world, place) = (World::new(1), Key::new("p", "s"));
        let weather = [
            Fault::None,
            Fault::RefuseBefore,
            Fault::LoseAnswer,
            Fault::LoseAnswer,
            Fault::Delay(Duration::from_millis(20)),
        ];
        let faults = weather.into_iter().cycle().take(500);
        let store = store(&world, Script::of("key_value.update", faults));
        for n in 0..200 {
            let update = add(&place).as_operation(OperationId(n), Version(n as u64));
            loop {
                match store.update(update.clone()).await {
                    Ok(updated) => {
                        assert!(matches!(updated.outcome, Outcome::Done(_)));
                        break;
                    }
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        }
        let honest = world.key_value();
        assert_eq!(count(&*honest, &place).await, 200);
    });
}

/// Q3, Q6.
#[test]
fn a_lost_delivery_comes_again_and_a_lost_acknowledgement_stands() {
    simulated::run(async {
        let world = World::new(1);
        let schedule = Script::of("queue.receive", [Fault::LoseAnswer]);
        let queue = FaultyQueue::new(world.queue(), Arc::new(schedule), world.clock());
        queue
            .create("q", QueueOptions::default())
            .await
            .expect("calm");
        let message = Message {
            group: Bytes::from("g"),
            deduplication: None,
            body: Bytes::from("body"),
        };
        queue.send("q", vec![message]).await.expect("calm");
        let lost = queue.receive("q", 1).await.expect_err("lost");
        assert!(matches!(lost.kind(), ErrorKind::Unavailable { .. }));
        queue.ready("q").await.expect("calm");
        let delivery = queue.receive("q", 1).await.expect("calm").remove(0);
        assert_eq!(delivery.handle.attempt, 2);

        let schedule = Script::of("queue.acknowledge", [Fault::LoseAnswer]);
        let queue = FaultyQueue::new(world.queue(), Arc::new(schedule), world.clock());
        queue
            .acknowledge("q", std::slice::from_ref(&delivery.handle))
            .await
            .expect_err("lost");
        queue
            .acknowledge("q", &[delivery.handle])
            .await
            .expect("repeating it does no harm");
        world.clock().sleep(Duration::from_mins(2)).await;
        assert!(queue.receive("q", 1).await.expect("calm").is_empty());
    });
}

/// N1.
#[test]
fn an_invocation_whose_answer_is_lost_is_said_to_be_unknown() {
    simulated::run(async {
        let world = World::new(1);
        let subject = subjects::functions(&world);
        let faults = [Fault::RefuseBefore, Fault::LoseAnswer];
        let schedule = Script::of("functions.invoke", faults);
        let functions = FaultyFunctions::new(subject.functions, Arc::new(schedule), subject.clock);
        let refused = functions
            .invoke("any", Bytes::new())
            .await
            .expect_err("refused");
        assert!(matches!(refused.kind(), ErrorKind::Unavailable { .. }));
        let lost = functions
            .invoke("any", Bytes::new())
            .await
            .expect_err("lost");
        assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown);
    });
}
