//! Free and event functions: N1, N2, N5 and N6.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Notes, Running, Subject, payload, text};
use crate::{
    ErrorKind, Event,
    contract::{FOR_EVER, LOOK_AGAIN, eventually, pause, within},
    functions::{Failure, FunctionOptions},
    queue::DEDUPLICATION_BYTES_MAX,
};

/// A larger payload is too large for a test to make.
const PAYLOAD_TO_TRY_MAX: usize = 64 << 20;

/// N1.
pub(super) async fn an_invocation_runs_once_and_returns_its_result(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("upper", FunctionOptions::default(), move |event| {
        let notes = noted.clone();
        async move {
            pause().await;
            notes.add(payload(&event));
            Ok(Bytes::from(payload(&event).to_uppercase()))
        }
    });
    assert_eq!(
        subject
            .functions
            .invoke("upper", Bytes::from("once"))
            .await
            .expect("invoke answers"),
        "ONCE"
    );
    assert_eq!(notes.all(), ["once"]);
    let payloads: Vec<String> = (0..16).map(|n| format!("n{n:02}")).collect();
    let invocations = payloads.iter().map(|payload| {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        subject.functions.invoke("upper", payload)
    });
    for (result, payload) in join_all(invocations).await.into_iter().zip(&payloads) {
        assert_eq!(result.expect("invoke answers"), payload.to_uppercase());
    }
    subject.a_while().await;
    let mut noted = notes.all().split_off(1);
    noted.sort_unstable();
    assert_eq!(noted, payloads);
}

/// N1.
pub(super) async fn a_failed_invocation_is_not_repeated_and_says_why(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    let options = FunctionOptions {
        exception_handler: Some("handler".to_owned()),
        ..Default::default()
    };
    subject.define("failing", options, move |event| {
        noted.add(payload(&event));
        async { Err(Failure::new("the tide is out")) }
    });
    let noted = notes.clone();
    subject.define("handler", FunctionOptions::default(), move |_| {
        noted.add("the exception handler ran".to_owned());
        async { Ok(Bytes::new()) }
    });
    let error = subject
        .functions
        .invoke("failing", Bytes::from("once"))
        .await
        .expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("the tide is out"),
        "the caller hears why: {error}"
    );
    subject.a_while().await;
    assert_eq!(notes.all(), ["once"]);
}

/// N1.
pub(super) async fn invocations_that_cannot_run_are_refused(subject: Subject) {
    let unknown = subject
        .functions
        .invoke("no such function", Bytes::new())
        .await;
    assert_eq!(
        unknown.expect_err("there is no such function").kind(),
        ErrorKind::Invalid
    );
    let unknown = subject
        .functions
        .send("no such function", None, Bytes::new())
        .await;
    assert_eq!(
        unknown.expect_err("there is no such function").kind(),
        ErrorKind::Invalid
    );
    assert!(
        !subject
            .functions
            .knows("no such function")
            .await
            .expect("knows answers")
    );
    subject.define("there", FunctionOptions::default(), |_| async {
        Ok(Bytes::new())
    });
    assert!(
        subject
            .functions
            .knows("there")
            .await
            .expect("knows answers")
    );
    let limit = subject.functions.limits().payload_bytes_max;
    if limit > PAYLOAD_TO_TRY_MAX {
        return;
    }
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("noting", FunctionOptions::default(), move |_| {
        noted.add(());
        async { Ok(Bytes::new()) }
    });
    let large = Bytes::from(vec![b'x'; limit + 1]);
    let invoked = subject.functions.invoke("noting", large.clone()).await;
    assert_eq!(
        invoked.expect_err("it is too large").kind(),
        ErrorKind::Invalid
    );
    let sent = subject.functions.send("noting", None, large).await;
    assert_eq!(
        sent.expect_err("it is too large").kind(),
        ErrorKind::Invalid
    );
    subject.a_while().await;
    assert!(notes.all().is_empty());
}

/// N1.
pub(super) async fn a_function_may_invoke_another(subject: Subject) {
    subject.define("inner", FunctionOptions::default(), |event| async move {
        Ok(Bytes::from(format!("inner {}", payload(&event))))
    });
    let functions = Arc::clone(&subject.functions);
    subject.define("outer", FunctionOptions::default(), move |event| {
        let functions = Arc::clone(&functions);
        async move {
            let inner = functions
                .invoke("inner", Bytes::from(payload(&event)))
                .await?;
            Ok(Bytes::from(format!("outer {}", text(&inner))))
        }
    });
    let result = subject.functions.invoke("outer", Bytes::from("call")).await;
    assert_eq!(result.expect("invoke answers"), "outer inner call");
}

/// N2.
pub(super) async fn a_sent_event_runs_and_its_sender_does_not_wait(subject: Subject) {
    let (started, ended) = (Notes::new(), Notes::new());
    let (noted_start, noted_end, clock) =
        (started.clone(), ended.clone(), Arc::clone(&subject.clock));
    let is_sent = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&is_sent);
    subject.define("slow", FunctionOptions::default(), move |event| {
        let (started, ended, clock) = (noted_start.clone(), noted_end.clone(), Arc::clone(&clock));
        let is_sent = Arc::clone(&gate);
        async move {
            started.add(payload(&event));
            while !is_sent.load(Ordering::SeqCst) {
                clock.sleep(LOOK_AGAIN).await;
            }
            ended.add(payload(&event));
            Ok(Bytes::new())
        }
    });
    let sent = subject.functions.send("slow", None, Bytes::from("event"));
    let what = "the sender, which does not wait for the end";
    let sent = within(&*subject.clock, what, sent).await;
    sent.expect("send answers");
    is_sent.store(true, Ordering::SeqCst);
    subject.noted("the event to be handled", &ended, 1).await;
    assert_eq!(started.all()[0], "event");
}

/// N2.
pub(super) async fn a_failed_event_is_tried_again_until_it_succeeds(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    let options = FunctionOptions {
        attempts_max: 5,
        exception_handler: Some("handler".to_owned()),
        ..Default::default()
    };
    subject.define("third time", options, move |event| {
        let attempt = noted.add(payload(&event));
        async move {
            if attempt < 3 {
                Err(Failure::new("not yet"))
            } else {
                Ok(Bytes::new())
            }
        }
    });
    let handled = Notes::new();
    let noted = handled.clone();
    subject.define("handler", FunctionOptions::default(), move |_| {
        noted.add(());
        async { Ok(Bytes::new()) }
    });
    subject
        .functions
        .send("third time", None, Bytes::from("event"))
        .await
        .expect("send answers");
    let attempts = subject.noted("three attempts", &notes, 3).await;
    subject.a_while().await;
    assert_eq!(attempts, ["event", "event", "event"]);
    assert!(handled.all().is_empty(), "it succeeded in the end");
}

/// N2 (requirement 2 of the paper).
pub(super) async fn an_event_that_fails_for_good_goes_to_the_exception_handler_with_its_reason(
    subject: Subject,
) {
    let (attempts, handled) = (Notes::new(), Notes::new());
    let (noted, noted_failure) = (attempts.clone(), handled.clone());
    let options = FunctionOptions {
        attempts_max: 2,
        exception_handler: Some("handler".to_owned()),
        ..Default::default()
    };
    subject.define("failing", options, move |event| {
        let attempt = noted.add(payload(&event));
        async move { Err(Failure::new(format!("failure {attempt}"))) }
    });
    subject.define("handler", FunctionOptions::default(), move |event| {
        let Event::Failed {
            function,
            payload,
            reason,
            ..
        } = event
        else {
            panic!("an exception handler gets failures, not {event:?}");
        };
        noted_failure.add((function, text(&payload), reason));
        async { Ok(Bytes::new()) }
    });
    subject
        .functions
        .send("failing", None, Bytes::from("event"))
        .await
        .expect("send answers");
    let (function, payload, reason) = subject.noted("the failure", &handled, 1).await.remove(0);
    assert_eq!((function.as_str(), payload.as_str()), ("failing", "event"));
    assert!(
        reason.contains("failure"),
        "what the function said: {reason}"
    );
    assert!(
        attempts.all().len() >= 2,
        "after {} attempts",
        attempts.all().len()
    );
    subject.a_while().await;
    assert_eq!((attempts.all().len(), handled.all().len()), (2, 1));
}

/// N2: no attempt to hand an event to its handler is the last one.
pub(super) async fn an_event_waits_for_its_unavailable_exception_handler(subject: Subject) {
    let (attempts, handled) = (Notes::new(), Notes::new());
    let (noted, noted_failure) = (attempts.clone(), handled.clone());
    let options = FunctionOptions {
        attempts_max: 2,
        exception_handler: Some("late".to_owned()),
        ..Default::default()
    };
    subject.define("failing", options, move |event| {
        noted.add(payload(&event));
        async { Err(Failure::new("always")) }
    });
    subject
        .functions
        .send("failing", None, Bytes::from("event"))
        .await
        .expect("send answers");
    subject.noted("the last attempt", &attempts, 2).await;
    subject.a_while().await;
    subject.define("late", FunctionOptions::default(), move |event| {
        let Event::Failed {
            function, payload, ..
        } = event
        else {
            panic!("an exception handler gets failures, not {event:?}");
        };
        noted_failure.add((function, text(&payload)));
        async { Ok(Bytes::new()) }
    });
    let told = subject.noted("the failure", &handled, 1).await;
    assert_eq!(told, [("failing".to_owned(), "event".to_owned())]);
    assert_eq!(attempts.all().len(), 2, "waiting is no further attempt");
}

fn impatient(attempts_max: u32) -> FunctionOptions {
    FunctionOptions {
        timeout: Duration::from_millis(100),
        attempts_max,
        exception_handler: Some("handler".to_owned()),
        ..FunctionOptions::default()
    }
}

/// N5.
pub(super) async fn an_invocation_past_its_timeout_is_dropped(subject: Subject) {
    let (running, ended) = (Arc::new(AtomicUsize::new(0)), Notes::new());
    let (counted, noted, clock) = (
        Arc::clone(&running),
        ended.clone(),
        Arc::clone(&subject.clock),
    );
    subject.define("endless", impatient(1), move |_| {
        let (counted, ended, clock) = (Arc::clone(&counted), noted.clone(), Arc::clone(&clock));
        async move {
            let _running = Running::enter(&counted);
            clock.sleep(FOR_EVER).await;
            ended.add(());
            Ok(Bytes::new())
        }
    });
    let started = subject.clock.monotonic();
    subject
        .functions
        .invoke("endless", Bytes::new())
        .await
        .expect_err("it runs too long");
    let passed = subject.clock.monotonic().since(started);
    assert!(
        passed >= Duration::from_millis(95),
        "dropped after {passed:?} already"
    );
    eventually(
        &*subject.clock,
        "the invocation to be dropped",
        async || (running.load(Ordering::SeqCst) == 0).then_some(()),
    )
    .await;
    assert!(ended.all().is_empty(), "it was not to reach its end");
}

/// N5, N2.
pub(super) async fn an_event_that_times_out_counts_as_failed(subject: Subject) {
    let (attempts, handled) = (Notes::new(), Notes::new());
    let (noted, clock) = (attempts.clone(), Arc::clone(&subject.clock));
    subject.define("endless", impatient(2), move |_| {
        noted.add(());
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(FOR_EVER).await;
            Ok(Bytes::new())
        }
    });
    let noted = handled.clone();
    subject.define("handler", FunctionOptions::default(), move |event| {
        if let Event::Failed { reason, .. } = event {
            noted.add(reason);
        }
        async { Ok(Bytes::new()) }
    });
    subject
        .functions
        .send("endless", None, Bytes::new())
        .await
        .expect("send answers");
    let reasons = subject.noted("the failure", &handled, 1).await;
    assert_eq!(attempts.all().len(), 2);
    assert!(
        !reasons[0].is_empty(),
        "the reason says that it ran too long"
    );
}

/// N6.
pub(super) async fn an_event_shows_its_id_in_every_run_and_to_its_exception_handler(
    subject: Subject,
) {
    let (runs, handled) = (Notes::new(), Notes::new());
    let (noted, noted_failure) = (runs.clone(), handled.clone());
    let options = FunctionOptions {
        attempts_max: 2,
        exception_handler: Some("handler".to_owned()),
        ..Default::default()
    };
    subject.define("failing", options, move |event| {
        let Event::Call { id, payload } = event else {
            panic!("a call is expected, not {event:?}")
        };
        noted.add((text(&payload), id));
        async { Err(Failure::new("always")) }
    });
    subject.define("handler", FunctionOptions::default(), move |event| {
        let Event::Failed { id, payload, .. } = event else {
            panic!("an exception handler gets failures, not {event:?}");
        };
        noted_failure.add((text(&payload), id));
        async { Ok(Bytes::new()) }
    });
    let longest = Bytes::from(vec![b'i'; DEDUPLICATION_BYTES_MAX]);
    for id in [Some(Bytes::from("order-17/0")), Some(longest), None] {
        subject
            .functions
            .send("failing", id.clone(), Bytes::from("event"))
            .await
            .expect("send answers");
        let sent = ("event".to_owned(), id);
        let count = handled.all().len() + 1;
        assert_eq!(
            subject.noted("the failure", &handled, count).await.last(),
            Some(&sent)
        );
        let runs = runs.all();
        assert!(
            runs.len() == 2 * count && runs.ends_with(&[sent.clone(), sent]),
            "{runs:?}"
        );
    }
    let too_long = Some(Bytes::from(vec![b'i'; DEDUPLICATION_BYTES_MAX + 1]));
    let refused = subject
        .functions
        .send("failing", too_long, Bytes::new())
        .await;
    assert_eq!(
        refused.expect_err("its id is too long").kind(),
        ErrorKind::Invalid
    );
}

/// N6: the handler of a failed handler receives the event that the latter failed to handle.
pub(super) async fn an_exception_handler_that_fails_hands_the_id_on(subject: Subject) {
    let told = Notes::new();
    let noted = told.clone();
    subject.define("last", FunctionOptions::default(), move |event| {
        let Event::Failed {
            function,
            id,
            payload,
            ..
        } = event
        else {
            panic!("an exception handler gets failures, not {event:?}");
        };
        noted.add((function, id, text(&payload)));
        async { Ok(Bytes::new()) }
    });
    for (name, handler) in [("failing handler", "last"), ("failing", "failing handler")] {
        let exception_handler = Some(handler.to_owned());
        let options = FunctionOptions {
            attempts_max: 1,
            exception_handler,
            ..Default::default()
        };
        subject.define(name, options, |_| async { Err(Failure::new("always")) });
    }
    for id in [Some(Bytes::from("order-17/0")), None] {
        subject
            .functions
            .send("failing", id.clone(), Bytes::from("event"))
            .await
            .expect("send answers");
        let count = told.all().len() + 1;
        let expected = ("failing handler".to_owned(), id, "event".to_owned());
        assert_eq!(
            subject
                .noted("the second failure", &told, count)
                .await
                .last(),
            Some(&expected)
        );
    }
}
