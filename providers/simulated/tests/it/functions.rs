//! Functions start as promised, die between any two steps, and run again.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ports::{
    ErrorKind, Event, Functions as _, KeyValue, Update,
    functions::{Failure, FunctionOptions, QueueTrigger},
    key_value::Action,
    queue::QueueOptions,
};
use simulated::{Options, World, run};

use crate::{Log, integer, key, message, note, read, register};

/// Three port calls for a message, each visible afterwards.
async fn three_steps(key_value: Arc<dyn KeyValue>) -> Result<Bytes, Failure> {
    for step in ["first", "second", "third"] {
        key_value
            .update(Update::modify(key(step), vec![Action::Add("n".into(), 1)]))
            .await?;
    }
    Ok(Bytes::new())
}

async fn world_with_three_steps(seed: u64) -> World {
    let world = World::new(seed);
    world
        .queue()
        .create("q", QueueOptions::default())
        .await
        .expect("calm");
    let key_value = world.key_value();
    register(&world, "f", FunctionOptions::default(), move |_| {
        three_steps(Arc::clone(&key_value))
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

/// N3.
#[test]
fn a_function_dies_between_any_two_steps_and_its_message_comes_again() {
    for seed in 0..4 {
        for calls in 0..=3 {
            run(async {
                let world = world_with_three_steps(seed).await;
                world.faults().crash_once_after("f", calls);
                world
                    .queue()
                    .send("q", vec![message("g", "m")])
                    .await
                    .expect("calm");
                world.clock().sleep(Duration::from_mins(2)).await;
                assert!(!world.faults().crash_is_pending("f"));
                let key_value = world.key_value();
                for (index, step) in ["first", "second", "third"].into_iter().enumerate() {
                    let twice = i64::from(index < calls as usize);
                    assert_eq!(
                        integer(&*key_value, &key(step), "n").await,
                        1 + twice,
                        "after {calls}: {step}"
                    );
                }
                assert_eq!(world.queue().receive("q", 1).await.expect("calm"), []);
            });
        }
    }
}

/// N3.
#[test]
fn one_invocation_runs_per_group_and_groups_run_side_by_side() {
    run(async {
        let world = World::new(1);
        world
            .queue()
            .create("q", QueueOptions::default())
            .await
            .expect("calm");
        let log = Log::default();
        let (clock, written) = (world.clock(), Arc::clone(&log));
        register(&world, "f", FunctionOptions::default(), move |event| {
            let (clock, log) = (Arc::clone(&clock), Arc::clone(&written));
            async move {
                let Event::Messages { deliveries, .. } = event else {
                    panic!("only messages come")
                };
                for delivery in deliveries {
                    let body = String::from_utf8_lossy(&delivery.body).into_owned();
                    note(&log, format!("begin {body}"));
                    clock.sleep(Duration::from_secs(1)).await;
                    note(&log, format!("end {body}"));
                }
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
        let messages = vec![message("a", "a1"), message("a", "a2"), message("b", "b1")];
        world.queue().send("q", messages).await.expect("calm");
        world.clock().sleep(Duration::from_secs(5)).await;
        assert_eq!(
            read(&log),
            [
                "begin a1", "begin b1", "end a1", "end b1", "begin a2", "end a2"
            ]
        );
    });
}

/// N3, Q5.
#[test]
fn completed_messages_are_not_delivered_again_and_only_poison_is_given_up() {
    run(async {
        let world = World::new(1);
        world
            .queue()
            .create("q", QueueOptions::default())
            .await
            .expect("calm");
        let log = Log::default();
        let written = Arc::clone(&log);
        register(&world, "f", FunctionOptions::default(), move |event| {
            let log = Arc::clone(&written);
            async move {
                let Event::Messages { deliveries, .. } = event else {
                    panic!("only messages come")
                };
                for (completed, delivery) in deliveries.iter().enumerate() {
                    if &delivery.body[..] == b"poison" {
                        return Err(Failure::after(completed, "it is poison"));
                    }
                    note(&log, String::from_utf8_lossy(&delivery.body));
                }
                Ok(Bytes::new())
            }
        });
        let trigger = QueueTrigger {
            queue: "q".into(),
            function: "f".into(),
            batch_messages_max: 10,
            groups_max: 1,
        };
        world.functions().arm_queue(trigger).await.expect("calm");
        let messages = ["1", "poison", "2"].map(|body| message("g", body)).to_vec();
        world.queue().send("q", messages).await.expect("calm");
        world.clock().sleep(Duration::from_mins(10)).await;
        assert_eq!(read(&log), ["1", "2"]);
        let letters = world
            .queue_admin()
            .dead_letters("q", None, 10)
            .await
            .expect("calm");
        assert_eq!(letters.len(), 1);
        assert_eq!(
            (&letters[0].body[..], letters[0].attempts),
            (&b"poison"[..], 5)
        );
        assert_eq!(letters[0].reason, "it is poison");
    });
}

/// N2.
#[test]
fn a_permanently_failed_event_reaches_the_exception_handler() {
    run(async {
        let world = World::new(1);
        let log = Log::default();
        let (tried, told) = (Arc::clone(&log), Arc::clone(&log));
        let options = FunctionOptions {
            exception_handler: Some("handler".into()),
            ..FunctionOptions::default()
        };
        register(&world, "f", options, move |_| {
            note(&tried, "try");
            async { Err(Failure::new("no")) }
        });
        register(
            &world,
            "handler",
            FunctionOptions::default(),
            move |event| {
                note(&told, format!("{event:?}"));
                async { Ok(Bytes::new()) }
            },
        );
        world
            .functions()
            .send("f", None, "event".into())
            .await
            .expect("calm");
        world.clock().sleep(Duration::from_mins(10)).await;
        let expected = "Failed { function: \"f\", id: None, payload: b\"event\", reason: \"no\" }";
        assert_eq!(read(&log), ["try", "try", "try", expected]);
    });
}

/// N1, N5.
#[test]
fn an_invocation_returns_its_result_or_the_reason_of_its_failure() {
    run(async {
        let world = World::new(1);
        let clock = world.clock();
        let options = FunctionOptions {
            timeout: Duration::from_secs(1),
            ..FunctionOptions::default()
        };
        register(&world, "f", options, move |event| {
            let clock = Arc::clone(&clock);
            async move {
                let Event::Call { payload, .. } = event else {
                    panic!("only calls come")
                };
                match &payload[..] {
                    b"fail" => Err(Failure::new("as ordered")),
                    b"linger" => {
                        clock.sleep(Duration::from_secs(2)).await;
                        Ok(Bytes::new())
                    }
                    _ => Ok(payload),
                }
            }
        });
        let functions = world.functions();
        assert_eq!(
            &functions.invoke("f", "x".into()).await.expect("it answers")[..],
            b"x"
        );
        let error = functions
            .invoke("f", "fail".into())
            .await
            .expect_err("it fails");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("as ordered"), "{error}");
        let error = functions
            .invoke("f", "linger".into())
            .await
            .expect_err("it takes too long");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        let error = functions
            .invoke("missing", Bytes::new())
            .await
            .expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

/// N4.
#[test]
fn a_timer_fires_each_period_until_disarmed() {
    run(async {
        let world = World::new(1);
        let fired = Arc::new(Mutex::new(0));
        let count = Arc::clone(&fired);
        register(&world, "f", FunctionOptions::default(), move |_| {
            *count.lock().expect("no panic") += 1;
            async { Ok(Bytes::new()) }
        });
        let (functions, clock) = (world.functions(), world.clock());
        let fired = || *fired.lock().expect("no panic");
        functions
            .arm_timer("f", Duration::from_secs(10))
            .await
            .expect("calm");
        clock.sleep(Duration::from_secs(35)).await;
        functions
            .arm_timer("f", Duration::from_secs(10))
            .await
            .expect("calm");
        clock.sleep(Duration::from_secs(6)).await;
        assert_eq!(fired(), 4, "arming again changed nothing");
        functions
            .arm_timer("f", Duration::from_secs(1))
            .await
            .expect("calm");
        clock.sleep(Duration::from_millis(2_500)).await;
        assert_eq!(fired(), 7, "the new period counts from the last time");
        functions.disarm_timer("f").await.expect("calm");
        let calls = world.port_calls();
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(
            (fired(), world.port_calls()),
            (7, calls),
            "a disarmed hour makes no call"
        );
    });
}

/// N3.
#[test]
fn a_crash_of_the_store_ends_invocations_and_delivers_their_messages_again() {
    for seed in 0..10 {
        run(async {
            let world = World::new(seed);
            let queue = world.queue();
            queue
                .create("q", QueueOptions::default())
                .await
                .expect("calm");
            let log = Log::default();
            let (clock, written) = (world.clock(), Arc::clone(&log));
            register(&world, "f", FunctionOptions::default(), move |_| {
                let (clock, log) = (Arc::clone(&clock), Arc::clone(&written));
                async move {
                    note(&log, "begin");
                    clock.sleep(Duration::from_secs(1)).await;
                    note(&log, "end");
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
            let sent = queue
                .send("q", vec![message("g", "m")])
                .await
                .expect("calm");
            queue.externalize(sent.point).await.expect("it is there");
            world.clock().sleep(Duration::from_millis(500)).await;
            world.crash();
            world.clock().sleep(Duration::from_mins(2)).await;
            assert_eq!(read(&log), ["begin", "begin", "end"], "seed {seed}");
        });
    }
}

#[test]
fn a_program_that_dies_with_its_store_must_arm_again() {
    run(async {
        let world = World::with_options(
            1,
            Options {
                arming_survives_crash: false,
                ..Options::default()
            },
        );
        let log = Log::default();
        let written = Arc::clone(&log);
        register(&world, "f", FunctionOptions::default(), move |_| {
            note(&written, "fired");
            async { Ok(Bytes::new()) }
        });
        world
            .functions()
            .arm_timer("f", Duration::from_secs(10))
            .await
            .expect("calm");
        world.crash();
        world.clock().sleep(Duration::from_mins(1)).await;
        assert_eq!(read(&log), Vec::<String>::new());
    });
}
