//! A4: messages that fail permanently.

use ports::queue::{DeadLetter, Message, OnFailure, QueueOptions};
use serde_json::Value;

use super::*;
use crate::events::handler::batch::ATTEMPTS_MAX;

const TABLE: &str = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"";

/// An archive whose function `pay` is started by the queue `orders`, with `told` as its
/// `on_failure`.
fn telling() -> Bytes {
    let pay = "on_failure = \"told\"\ntriggers = [{ queue = \"orders\" }]";
    format!("[functions.pay]\n{TABLE}\n{pay}\n[functions.told]\n{TABLE}").into()
}

async fn send(world: &World, bodies: &[&[u8]]) {
    let message = |body: &&[u8]| Message {
        group: "g".into(),
        deduplication: None,
        body: Bytes::copy_from_slice(body),
    };
    let queue = world.queue();
    let sent = queue
        .send("orders", bodies.iter().map(message).collect())
        .await
        .expect("sent");
    queue.externalize(sent.point).await.expect("it is durable");
}

async fn backlog(world: &World) -> (u64, u64) {
    let Backlog {
        messages,
        dead_letters,
    } = world
        .queue_admin()
        .backlog("orders")
        .await
        .expect("backlog answers");
    (messages, dead_letters)
}

async fn dead_letters(world: &World) -> Vec<DeadLetter> {
    world
        .queue_admin()
        .dead_letters("orders", None, 10)
        .await
        .expect("dead_letters answers")
}

/// The request ids and the payloads of the runs of `told`.
fn told(runtime: &Idle) -> Vec<(String, Value)> {
    let told = runtime.asked_of("told").into_iter();
    told.map(|asked| {
        (
            asked.id,
            serde_json::from_slice(&asked.payload).expect("JSON"),
        )
    })
    .collect()
}

/// The bodies of a batch.
fn bodies(batch: &Value) -> Vec<&str> {
    let records = batch["Records"].as_array().expect("a batch");
    records
        .iter()
        .map(|record| record["body"].as_str().expect("text"))
        .collect()
}

fn has_poison(payload: &[u8]) -> bool {
    payload.windows(6).any(|part| part == b"poison")
}

/// A4. It was a dead letter, without a notice.
#[test]
fn a_permanently_failing_message_is_reported_alone_and_its_neighbours_run() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        *runtime.is_fit.lock() = |asked| asked.function == "told" || !has_poison(&asked.payload);
        service.deploy("shop", telling()).await.expect("deployed");
        send(&world, &[b"before", b"poison", b"behind"]).await;
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(backlog(&world).await, (0, 0));
        let told = told(&runtime);
        let [(id, event)] = &told[..] else {
            panic!("one failure is told once: {told:?}")
        };
        assert_eq!(bodies(&event["requestPayload"]), ["poison"]);
        assert_eq!(event["responsePayload"]["errorMessage"], FAILED);
        let context = &event["requestContext"];
        assert_eq!(
            (&context["approximateInvokeCount"], id.len()),
            (&ATTEMPTS_MAX.into(), 36)
        );
        assert_ne!(&context["requestId"], id);
        let runs: Vec<Value> = runtime
            .asked_of("pay")
            .iter()
            .map(|asked| serde_json::from_slice(&asked.payload).expect("JSON"))
            .collect();
        let at_head = runs
            .iter()
            .filter(|batch| bodies(batch)[0] == "poison")
            .count();
        assert_eq!(at_head, ATTEMPTS_MAX as usize);
        assert_eq!(bodies(runs.last().expect("it ran")), ["behind"]);
    });
}

/// A4.
#[test]
fn a_permanently_failing_message_is_a_dead_letter_without_on_failure() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        let pay = format!("[functions.pay]\n{TABLE}\ntriggers = [{{ queue = \"orders\" }}]");
        service.deploy("shop", pay.into()).await.expect("deployed");
        send(&world, &[b"poison"]).await;
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(
            (backlog(&world).await, runtime.asked()),
            ((0, 1), ATTEMPTS_MAX as usize)
        );
        assert_eq!(dead_letters(&world).await[0].reason, FAILED);
    });
}

/// A4. Every message was attributed to the first of its queues.
#[test]
fn a_function_with_two_queues_sees_the_queue_of_a_message() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        *runtime.is_fit.lock() = |asked| asked.function == "told";
        let pay =
            "on_failure = \"told\"\ntriggers = [{ queue = \"bills\" }, { queue = \"orders\" }]";
        let archive = format!("[functions.pay]\n{TABLE}\n{pay}\n[functions.told]\n{TABLE}");
        service
            .deploy("shop", archive.into())
            .await
            .expect("deployed");
        send(&world, &[b"an order"]).await;
        world.clock().sleep(Duration::from_hours(1)).await;
        let said: Value =
            serde_json::from_slice(&runtime.asked_of("pay")[0].payload).expect("JSON");
        for batch in [&said, &told(&runtime)[0].1["requestPayload"]] {
            assert_eq!(
                batch["Records"][0]["eventSourceARN"],
                "arn:aws:sqs:us-east-1:000000000000:orders"
            );
        }
    });
}

/// A4: its last attempt may have ended the process.
#[test]
fn a_message_without_attempts_left_is_reported_and_does_not_run() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        let queue = world.queue();
        let options = QueueOptions {
            on_failure: OnFailure::Block,
            ..QueueOptions::default()
        };
        queue.create("orders", options).await.expect("made");
        send(&world, &[b"deadly"]).await;
        for _ in 0..ATTEMPTS_MAX {
            let given = queue.receive("orders", 1).await.expect("receive answers");
            queue
                .release("orders", &given[0].handle, 0, "it died")
                .await
                .expect("released");
        }
        service.deploy("shop", telling()).await.expect("deployed");
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(
            (backlog(&world).await, runtime.asked_of("pay").len()),
            ((0, 0), 0)
        );
        let told = told(&runtime);
        assert_eq!(bodies(&told[0].1["requestPayload"]), ["deadly"]);
        let said = format!("failed {ATTEMPTS_MAX} times; the last error is unknown");
        assert_eq!(told[0].1["responsePayload"]["errorMessage"], said);
    });
}

/// A4: operators see the dead letter, and its group goes on.
#[test]
fn a_message_too_long_for_a_notice_is_a_dead_letter() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        *runtime.is_fit.lock() = |asked| asked.payload.len() < 1024;
        service.deploy("shop", telling()).await.expect("deployed");
        send(&world, &[&vec![b'\xff'; 200 * 1024], b"behind"]).await;
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(
            (backlog(&world).await, runtime.asked_of("told").len()),
            ((0, 1), 0)
        );
        let reason = dead_letters(&world).await[0].reason.clone();
        let said = "\"told\" was not notified, because the notice exceeds 262144 bytes; the last error was: ";
        assert_eq!(reason, [said, FAILED].concat());
    });
}

/// A4: under refusals, lost answers and deaths during the notice.
#[test]
fn a_failure_notice_has_one_id_through_any_fault() {
    let mut told_again = 0;
    for seed in 0..50 {
        told_again += run(async {
            let world = World::new(seed);
            let (service, runtime) = service(&world);
            *runtime.is_fit.lock() = |asked| asked.function == "told";
            service.deploy("shop", telling()).await.expect("deployed");
            send(&world, &[b"one", b"two"]).await;
            world.faults().refuse(percent(40));
            world.faults().lose_answer(percent(20));
            world.faults().crash_function("functions/pay", percent(30));
            world.clock().sleep(Duration::from_mins(10)).await;
            world.crash_keeping_some();
            world.faults().calm();
            world.clock().sleep(Duration::from_hours(1)).await;
            assert_eq!(backlog(&world).await, (0, 0), "seed {seed}");
            let told = told(&runtime);
            let ids: BTreeSet<_> = told
                .iter()
                .map(|(id, event)| (bodies(&event["requestPayload"])[0].to_owned(), id.clone()))
                .collect();
            let of: Vec<_> = ids.iter().map(|(body, _)| body.as_str()).collect();
            assert_eq!(of, ["one", "two"], "seed {seed}: each under one id");
            told.len() - ids.len()
        });
    }
    assert!(
        told_again > 0,
        "no fault came between telling and being done"
    );
}
