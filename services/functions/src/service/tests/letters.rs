//! A3, A4: dead letters are listed, sent again and removed.

use ports::queue::{Message, QueueLimits};

use super::*;
use crate::DeadLetter;

/// An archive whose function `pay` is started by the queues `orders` and `bills`, and has no
/// `on_failure`.
fn silent() -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 0";
    format!(
        "[functions.pay]\n{table}\ntriggers = [{{ queue = \"orders\" }}, {{ queue = \"bills\" }}]"
    )
    .into()
}

async fn send(world: &World, queue: &str, body: &str) {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let message = Message {
        group: "g".into(),
        deduplication: None,
        body,
    };
    let sent = world
        .queue()
        .send(queue, vec![message])
        .await
        .expect("sent");
    world
        .queue()
        .externalize(sent.point)
        .await
        .expect("it is durable");
}

async fn all(service: &Service) -> Vec<DeadLetter> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = service
            .dead_letters("pay", after.as_deref())
            .await
            .expect("listed");
        all.extend(page.letters);
        after = Some(match page.next {
            Some(next) => next,
            None => return all,
        });
    }
}

fn said(letters: &[DeadLetter]) -> Vec<(Option<&str>, &str)> {
    letters
        .iter()
        .map(|letter| (letter.queue.as_deref(), letter.payload.as_str()))
        .collect()
}

/// Sends an event and two messages, which fail permanently. Returns the request id of the event.
async fn failed(world: &World, service: &Service) -> String {
    service.deploy("shop", silent()).await.expect("deployed");
    send(world, "orders", "an order").await;
    send(world, "bills", "a bill").await;
    let id = service.send("pay", "{}".into()).await.expect("sent");
    world.clock().sleep(Duration::from_hours(1)).await;
    id
}

/// A3, A4.
#[test]
fn dead_letters_of_events_and_messages_are_listed() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        failed(&world, &service).await;
        let letters = all(&service).await;
        assert_eq!(
            said(&letters),
            [
                (None, "{}"),
                (Some("orders"), "an order"),
                (Some("bills"), "a bill")
            ]
        );
        let [event, order, _] = &letters[..] else {
            unreachable!("there are three")
        };
        assert_eq!(
            (event.payload_bytes, event.attempts, order.attempts),
            (2, 1, crate::events::handler::batch::ATTEMPTS_MAX)
        );
        assert_eq!(event.reason, FAILED);
        assert_eq!(
            (order.group.as_deref(), &order.request_id),
            (Some("g"), &None)
        );
        let behind = service
            .dead_letters("pay", Some(&order.id))
            .await
            .expect("listed")
            .letters;
        assert_eq!(said(&behind), [(Some("bills"), "a bill")]);
        for wrong in ["", "1", "orders", "orders:x", "no queue of it:1"] {
            let refused = service
                .dead_letters("pay", Some(wrong))
                .await
                .expect_err(wrong);
            assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        }
        assert!(matches!(
            service.dead_letters("nobody", None).await,
            Err(Error::NoSuchFunction(_))
        ));
    });
}

/// A3. Its request id was null, and its payload was that of the function that had failed before.
#[test]
fn a_failure_notice_that_fails_is_listed_with_its_own_payload() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 0";
        let archive =
            format!("[functions.first]\n{table}\non_failure = \"pay\"\n[functions.pay]\n{table}");
        service
            .deploy("shop", archive.into())
            .await
            .expect("deployed");
        service
            .send("first", r#"{"a":1}"#.into())
            .await
            .expect("sent");
        world.clock().sleep(Duration::from_hours(1)).await;
        let letters = all(&service).await;
        let [letter] = &letters[..] else {
            panic!("one is kept: {letters:?}")
        };
        let asked = runtime.asked_of("pay").remove(0);
        assert_eq!(letter.request_id.as_deref(), Some(asked.id.as_str()));
        let given = |json: &[u8]| {
            let mut given: serde_json::Value = serde_json::from_slice(json).expect("JSON");
            given["timestamp"].take();
            given
        };
        assert_eq!(given(letter.payload.as_bytes()), given(&asked.payload));
        assert_eq!(given(&asked.payload)["requestPayload"]["a"], 1);
    });
}

/// A3, A4: an event keeps its request id.
#[test]
fn a_redriven_event_runs_again_and_is_no_dead_letter_any_more() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        let id = failed(&world, &service).await;
        let before = runtime.asked();
        *runtime.is_fit.lock() = |_| true;
        let letters = all(&service).await;
        assert_eq!(
            service
                .redrive("pay", Some(&letters[0].id))
                .await
                .expect("redriven"),
            1
        );
        for settled in [
            service.redrive("pay", Some(&letters[0].id)).await,
            service.purge("pay", Some("orders:0")).await,
        ] {
            assert!(
                matches!(settled, Err(Error::NoSuchDeadLetter(_))),
                "it is none any more: {settled:?}"
            );
        }
        assert_eq!(service.redrive("pay", None).await.expect("redriven"), 2);
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(all(&service).await, []);
        let again = runtime.asked_of("pay").split_off(before);
        assert_eq!(again.len(), 3, "each once: {again:?}");
        assert!(
            again
                .iter()
                .any(|asked| asked.id == id && asked.payload == "{}"),
            "{again:?}"
        );
        assert_eq!(service.redrive("pay", None).await.expect("none"), 0);
    });
}

/// A3, A4: an event that fails again becomes a dead letter again, and redriving all of them comes
/// to an end.
#[test]
fn an_event_that_fails_again_is_a_dead_letter_again() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        failed(&world, &service).await;
        assert_eq!(service.redrive("pay", None).await.expect("redriven"), 3);
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(all(&service).await.len(), 3);
        let letters = all(&service).await;
        assert_eq!(
            service
                .purge("pay", Some(&letters[1].id))
                .await
                .expect("purged"),
            1
        );
        assert_eq!(
            said(&all(&service).await),
            [(None, "{}"), (Some("bills"), "a bill")]
        );
        assert_eq!(service.purge("pay", None).await.expect("purged"), 2);
        assert_eq!(all(&service).await, []);
    });
}

/// A3, A4: under refusals, lost answers and deaths, each is a dead letter or has run, and none runs
/// twice.
#[test]
fn redriving_through_any_fault_loses_nothing() {
    for seed in 0..30 {
        run(async {
            let world = World::new(seed);
            let (service, runtime) = service(&world);
            failed(&world, &service).await;
            let before = runtime.asked();
            *runtime.is_fit.lock() = |_| true;
            world.faults().refuse(percent(30));
            world.faults().lose_answer(percent(30));
            let _ = service.redrive("pay", None).await;
            world.crash_keeping_some();
            world.faults().calm();
            world.clock().sleep(Duration::from_hours(1)).await;
            service.redrive("pay", None).await.expect("calm");
            world.clock().sleep(Duration::from_hours(1)).await;
            assert_eq!(all(&service).await, [], "seed {seed}");
            let run: BTreeSet<_> = runtime
                .asked_of("pay")
                .split_off(before)
                .into_iter()
                .map(|asked| asked.function + &asked.id)
                .collect();
            assert!(run.len() >= 3, "seed {seed}: {run:?}");
        });
    }
}

/// Few are in memory at a time, however many there are.
#[test]
fn dead_letters_are_settled_in_batches_that_a_queue_accepts() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        service.deploy("shop", silent()).await.expect("deployed");
        let QueueLimits {
            batch_messages_max, ..
        } = *world.queue().limits();
        let count = 2 * batch_messages_max + 1;
        for number in 0..count {
            service
                .send("pay", number.to_string().into())
                .await
                .expect("sent");
        }
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(all(&service).await.len(), count);
        assert_eq!(
            service.purge("pay", None).await.expect("purged"),
            count as u64
        );
        assert_eq!(all(&service).await, []);
    });
}
