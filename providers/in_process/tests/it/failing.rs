//! N2, N3: failed events and messages, and those of an earlier start. In virtual time.

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use in_process::Functions;
use ports::{
    Clock, ErrorKind, Event, Functions as _, Handler, Monotonic,
    faults::{Fault, FaultyQueue, Script},
    functions::{Definition, Failure, FunctionOptions, QueueTrigger, Register as _},
    queue::{DeadLetter, Message, OnFailure, QueueOptions},
};
use simulated::World;

/// An upper bound of the duration of every test.
const LONG: Duration = Duration::from_mins(5);

/// Records when it runs and with which event, and returns the configured result.
struct Noting {
    seen: Mutex<Vec<(Monotonic, Event)>>,
    clock: Arc<dyn Clock>,
    ends: fn() -> Result<Bytes, Failure>,
}

impl fmt::Debug for Noting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noting").finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for Noting {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.seen
            .lock()
            .expect("no thread panics while holding it")
            .push((self.clock.monotonic(), event));
        (self.ends)()
    }
}

impl Noting {
    fn new(world: &World, ends: fn() -> Result<Bytes, Failure>) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::default(),
            clock: world.clock(),
            ends,
        })
    }

    fn seen(&self) -> Vec<(Monotonic, Event)> {
        self.seen
            .lock()
            .expect("no thread panics while holding it")
            .clone()
    }

    /// The function, the payload and the reason of the only reported failure.
    fn told(&self) -> (String, Bytes, String) {
        match &self.seen()[..] {
            [
                (
                    _,
                    Event::Failed {
                        function,
                        payload,
                        reason,
                        ..
                    },
                ),
            ] => (function.clone(), payload.clone(), reason.clone()),
            other => panic!("one failure is expected, not {other:?}"),
        }
    }
}

/// Stops all functions, and then fails.
#[derive(Debug)]
struct Stopping(Weak<Functions>);

impl Stopping {
    fn new(functions: &Arc<Functions>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(functions)))
    }
}

#[async_trait]
impl Handler for Stopping {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        self.0
            .upgrade()
            .expect("it is there for the whole test")
            .stop();
        fails()
    }
}

#[allow(clippy::unnecessary_wraps)] // Why: functions may fail.
fn done() -> Result<Bytes, Failure> {
    Ok(Bytes::new())
}

fn fails() -> Result<Bytes, Failure> {
    Err(Failure::new("always"))
}

fn panics() -> Result<Bytes, Failure> {
    panic!("the ice broke")
}

/// Defines a function with `attempts_max` attempts and the exception handler `told`.
fn define(functions: &Functions, code: &Arc<Noting>, attempts_max: u32) {
    let exception_handler = Some("told".to_owned());
    let options = FunctionOptions {
        attempts_max,
        exception_handler,
        ..FunctionOptions::default()
    };
    functions.register(Definition {
        name: "works".into(),
        options,
        handler: code.clone(),
    });
}

/// Defines a function with one attempt and the exception handler `handler`.
fn define_hasty(functions: &Functions, name: String, handler: &str, code: &Arc<Noting>) {
    let exception_handler = Some(handler.to_owned());
    let options = FunctionOptions {
        attempts_max: 1,
        exception_handler,
        ..FunctionOptions::default()
    };
    functions.register(Definition {
        name: name.into(),
        options,
        handler: code.clone(),
    });
}

/// The dead letters among the events of `function`.
async fn letters(world: &World, functions: &Functions, function: &str) -> Vec<DeadLetter> {
    let queue = functions.event_queue(function);
    world
        .queue_admin()
        .dead_letters(&queue, None, 100)
        .await
        .expect("dead_letters answers")
}

fn define_told(functions: &Functions, code: &Arc<Noting>) {
    let options = FunctionOptions::default();
    functions.register(Definition {
        name: "told".into(),
        options,
        handler: code.clone(),
    });
}

async fn one_event(functions: &Functions) {
    functions
        .send("works", None, Bytes::from("event"))
        .await
        .expect("send answers");
}

/// N2.
#[test]
fn an_event_whose_function_panics_has_failed() {
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        let (code, told) = (Noting::new(&world, panics), Noting::new(&world, done));
        define(&functions, &code, 2);
        define_told(&functions, &told);
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        assert_eq!(code.seen().len(), 2);
        let (function, payload, reason) = told.told();
        assert_eq!(
            (function.as_str(), payload),
            ("works", Bytes::from("event"))
        );
        assert!(
            reason.contains("panicked") && reason.contains("the ice broke"),
            "{reason}"
        );
    });
}

/// N1.
#[test]
fn an_invocation_that_panics_reports_it() {
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        define(&functions, &Noting::new(&world, panics), 2);
        let error = functions
            .invoke("works", Bytes::new())
            .await
            .expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("the ice broke"), "{error}");
    });
}

/// N3.
#[test]
fn messages_whose_function_panics_are_delivered_again() {
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        let code = Noting::new(&world, panics);
        define(&functions, &code, 1);
        let queue = world.queue();
        let options = QueueOptions {
            attempts_max: 3,
            on_failure: OnFailure::DeadLetter,
            ..Default::default()
        };
        queue
            .create("work", options)
            .await
            .expect("the queue is made");
        let trigger = QueueTrigger {
            queue: "work".into(),
            function: "works".into(),
            batch_messages_max: 1,
            groups_max: 1,
        };
        functions
            .arm_queue(trigger)
            .await
            .expect("the trigger is armed");
        let message = Message {
            group: "group".into(),
            deduplication: None,
            body: Bytes::new(),
        };
        queue
            .send("work", vec![message])
            .await
            .expect("send answers");
        world.clock().sleep(LONG).await;
        assert_eq!(code.seen().len(), 3);
        let letters = world
            .queue_admin()
            .dead_letters("work", None, 10)
            .await
            .expect("dead_letters answers");
        assert_eq!(letters.len(), 1);
        assert!(
            letters[0].reason.contains("the ice broke"),
            "{}",
            letters[0].reason
        );
    });
}

/// N2: the handler's queue refuses for longer than one delivery of the event waits.
#[test]
fn an_event_waits_for_an_exception_handler_whose_queue_is_unavailable() {
    const REFUSALS: usize = 35;
    simulated::run(async {
        let world = World::new(1);
        let refused = std::iter::repeat_n(Fault::RefuseBefore, REFUSALS);
        let sends = Arc::new(Script::of(
            "queue.send",
            std::iter::once(Fault::None).chain(refused),
        ));
        let queue = FaultyQueue::new(world.queue(), sends, world.clock());
        let functions = Functions::new(Arc::new(queue));
        let (code, told) = (Noting::new(&world, fails), Noting::new(&world, done));
        define(&functions, &code, 2);
        define_told(&functions, &told);
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        assert_eq!(code.seen().len(), 2, "waiting is no further attempt");
        let (function, payload, _) = told.told();
        assert_eq!(
            (function.as_str(), payload),
            ("works", Bytes::from("event"))
        );
    });
}

/// Asserts that an event that always fails waits twice as long before each of its 12 repeats, up to
/// `longest`.
fn waits_up_to(longest: Duration, options: FunctionOptions) {
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        let code = Noting::new(&world, fails);
        functions.register(Definition {
            name: "works".into(),
            options: FunctionOptions {
                attempts_max: 13,
                ..options
            },
            handler: code.clone(),
        });
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        let ran: Vec<Monotonic> = code.seen().into_iter().map(|(at, _)| at).collect();
        let waited: Vec<Duration> = ran.windows(2).map(|two| two[1].since(two[0])).collect();
        assert_eq!(waited.len(), 12);
        for (doublings, waited) in waited.into_iter().enumerate() {
            let least = Duration::from_millis(50 << doublings).min(longest);
            assert!(
                waited >= least && waited < least * 2,
                "{waited:?} after attempt {}",
                doublings + 1
            );
        }
    });
}

/// N2: each delay is twice as long as the one before, up to half a minute.
#[test]
fn a_failed_event_waits_longer_before_each_attempt() {
    let options = FunctionOptions {
        exception_handler: Some("told".to_owned()),
        ..FunctionOptions::default()
    };
    waits_up_to(Duration::from_secs(30), options);
}

/// N2: a function may bound its delays, and a message that always fails then keeps that pace.
#[test]
fn a_function_bounds_the_delay_before_the_next_attempt() {
    let retry_delay_max = Duration::from_secs(1);
    let options = FunctionOptions {
        retry_delay_max,
        ..FunctionOptions::default()
    };
    waits_up_to(retry_delay_max, options);
}

/// N2, Q3.
#[test]
fn an_event_of_an_earlier_start_runs_once_its_function_is_registered() {
    simulated::run(async {
        let world = World::new(1);
        let code = Noting::new(&world, done);
        let earlier = Functions::new(world.queue());
        define(&earlier, &Noting::new(&world, fails), 100);
        one_event(&earlier).await;
        earlier.stop();
        world.clock().sleep(LONG).await;
        let functions = Functions::new(world.queue());
        define(&functions, &code, 100);
        world.clock().sleep(LONG).await;
        let seen = code.seen();
        assert!(
            matches!(&seen[..], [(_, Event::Call { payload, .. })] if payload == "event"),
            "{seen:?}"
        );
    });
}

/// N2: an event that fails during the stop is still forwarded, but not run.
#[test]
fn an_event_forwarded_after_the_stop_waits_for_the_next_start() {
    simulated::run(async {
        let world = World::new(1);
        let functions = Arc::new(Functions::new(world.queue()));
        let (code, told) = (Stopping::new(&functions), Noting::new(&world, done));
        let options = FunctionOptions {
            attempts_max: 1,
            exception_handler: Some("told".to_owned()),
            ..FunctionOptions::default()
        };
        functions.register(Definition {
            name: "works".into(),
            options,
            handler: code,
        });
        define_told(&functions, &told);
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        assert!(told.seen().is_empty(), "a stopped function forwarded it");
        let next = Functions::new(world.queue());
        define_told(&next, &told);
        world.clock().sleep(LONG).await;
        assert_eq!(told.told().0, "works");
    });
}

/// N2: a cycle of exception handlers would forward the event without end.
#[test]
fn an_event_is_not_forwarded_to_a_function_that_gave_up_on_it() {
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        let (code, told) = (Noting::new(&world, fails), Noting::new(&world, fails));
        define_hasty(&functions, "works".to_owned(), "told", &code);
        define_hasty(&functions, "told".to_owned(), "works", &told);
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        assert_eq!((code.seen().len(), told.seen().len()), (1, 1));
        let kept = letters(&world, &functions, "told").await;
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert!(
            kept[0].reason.contains("works -> told -> works"),
            "{}",
            kept[0].reason
        );
        assert!(kept[0].reason.ends_with("always"), "{}", kept[0].reason);
        define_hasty(&functions, "works".to_owned(), "works", &code);
        one_event(&functions).await;
        world.clock().sleep(LONG).await;
        assert_eq!((code.seen().len(), told.seen().len()), (2, 1));
        assert_eq!(letters(&world, &functions, "works").await.len(), 1);
    });
}

/// N2: the same for a chain without a cycle.
#[test]
fn an_event_is_forwarded_a_bounded_number_of_times() {
    const FORWARDS_MAX: usize = 16;
    simulated::run(async {
        let world = World::new(1);
        let functions = Functions::new(world.queue());
        let code = Noting::new(&world, fails);
        for number in 0..2 * FORWARDS_MAX {
            define_hasty(
                &functions,
                format!("f{number}"),
                &format!("f{}", number + 1),
                &code,
            );
        }
        functions
            .send("f0", None, Bytes::from("event"))
            .await
            .expect("send answers");
        world.clock().sleep(LONG).await;
        assert_eq!(code.seen().len(), 1 + FORWARDS_MAX);
        assert_eq!(
            letters(&world, &functions, &format!("f{FORWARDS_MAX}"))
                .await
                .len(),
            1
        );
    });
}
