//! Failures of an invocation and their limits: U2.

use std::time::Duration;

use super::{Command, Subject};
use crate::runtime::Invocation;

const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_secs(1);

/// U2.
pub(super) async fn an_invocation_past_its_timeout_fails_and_its_instance_is_gone(
    subject: Subject,
) {
    let function = subject.function(|function| function.timeout = SHORT);
    let before = subject.answer(&function, &Command::new("instance")).await;
    let begun = subject.clock.monotonic();
    subject
        .failure(&function, &Command::new("echo").after(LONG))
        .await;
    let took = subject.clock.monotonic().since(begun);
    assert!(took >= SHORT && took < LONG / 2, "it took {took:?}");
    assert_ne!(
        subject.answer(&function, &Command::new("instance")).await,
        before
    );
}

/// U2.
pub(super) async fn an_invocation_may_be_given_less_than_its_function_may_take(subject: Subject) {
    let function = subject.function(|function| function.timeout = 10 * LONG);
    let payload = Command::new("echo").after(LONG).encode();
    let invocation = Invocation {
        timeout: Some(SHORT),
        ..Invocation::new("short".to_owned(), payload, true)
    };
    let ran = subject
        .runtime
        .run(&function, invocation)
        .await
        .expect("it is run");
    ran.result.expect_err("it ran past what it was given");
}

/// U2.
pub(super) async fn one_that_ends_its_process_fails_and_others_do_not(subject: Subject) {
    let function = subject.function(|function| function.concurrency = 2);
    let other = subject.function(|function| function.name += "-other");
    let before = subject.answer(&other, &Command::new("instance")).await;
    subject.failure(&function, &Command::with("exit", 3)).await;
    subject.failure(&function, &Command::with("exit", 0)).await;
    assert_eq!(
        subject.answer(&function, &Command::new("count")).await,
        "1",
        "a new instance"
    );
    assert_eq!(
        subject.answer(&other, &Command::new("instance")).await,
        before,
        "another function's goes on"
    );
}
