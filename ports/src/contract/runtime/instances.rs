//! The instance that runs an invocation: U1, U4.

use std::{cell::Cell, time::Duration};

use futures_util::future::join;

use super::{Command, Subject};
use crate::{contract::eventually, runtime::Refused};

const A_WHILE: Duration = Duration::from_millis(400);

/// How long a call holds an instance at most: less than the function's timeout.
const HELD_MAX: Duration = Duration::from_secs(20);

/// U1.
pub(super) async fn an_instance_is_used_again(subject: Subject) {
    let function = subject.function(|_| {});
    for count in ["1", "2", "3"] {
        assert_eq!(
            subject.answer(&function, &Command::new("count")).await,
            count
        );
    }
}

/// U1.
pub(super) async fn calls_beside_each_other_have_instances_of_their_own(subject: Subject) {
    let function = subject.function(|function| function.concurrency = 2);
    let command = Command::new("instance").after(A_WHILE);
    let (one, other) = join(
        subject.answer(&function, &command),
        subject.answer(&function, &command),
    )
    .await;
    assert_ne!(one, other, "one instance had two invocations at a time");
}

/// U1.
pub(super) async fn a_call_beyond_the_instances_waits_or_is_refused(subject: Subject) {
    let mut held = 2 * A_WHILE;
    let function = loop {
        let function = subject.function(|function| {
            function.concurrency = 1;
            function.name = format!("{}-{}", function.name, held.as_millis());
        });
        let first = Command::new("count").after(held);
        let is_over = Cell::new(false);
        let others = async {
            eventually(&*subject.clock, "the first call to run", async || {
                (is_over.get() || subject.runtime.figures().busy == 1).then_some(())
            })
            .await;
            let refused = subject.at_once(&function, &Command::new("count")).await;
            let second = subject.answer(&function, &Command::new("count")).await;
            (refused, second)
        };
        let first = async {
            let ran = subject.at_once(&function, &first).await;
            is_over.set(true);
            ran
        };
        let (first, (refused, second)) = join(first, others).await;
        if held < HELD_MAX && !matches!(refused, Err(Refused::Throttled)) {
            // The first call may have ended before: on a slow machine it holds its instance longer.
            held *= 2;
            continue;
        }
        assert!(matches!(refused, Err(Refused::Throttled)), "{refused:?}");
        let first = first.expect("it is run").result.expect("it succeeds");
        assert_eq!(
            (&first[..], second.as_str()),
            (&b"1"[..], "2"),
            "on one instance, one after the other"
        );
        break function;
    };
    let free = subject.at_once(&function, &Command::new("count")).await;
    assert!(free.is_ok(), "{free:?}");
}

/// U4.
pub(super) async fn no_instance_is_used_again_after_retiring(subject: Subject) {
    let function = subject.function(|_| {});
    let before = subject.answer(&function, &Command::new("instance")).await;
    assert_eq!(
        subject.answer(&function, &Command::new("instance")).await,
        before
    );
    subject.runtime.retire(&function.name);
    assert_ne!(
        subject.answer(&function, &Command::new("instance")).await,
        before
    );
}

/// U4.
pub(super) async fn another_revision_has_instances_of_its_own(subject: Subject) {
    let before = subject.function(|_| {});
    let after = subject.function(|function| function.revision += "-next");
    subject.runtime.renew(&before);
    let instance = subject.answer(&before, &Command::new("instance")).await;
    subject.runtime.renew(&after);
    assert_ne!(
        subject.answer(&after, &Command::new("instance")).await,
        instance
    );
}

/// U4.
pub(super) async fn a_call_of_an_earlier_revision_runs_the_current_one(subject: Subject) {
    let before = subject.function(|_| {});
    let after = subject.function(|function| function.revision += "-next");
    subject.runtime.renew(&before);
    subject.runtime.renew(&after);
    let instance = subject.answer(&after, &Command::new("instance")).await;
    assert_eq!(
        subject.answer(&before, &Command::new("instance")).await,
        instance
    );
    subject.runtime.renew(&after);
    assert_eq!(
        subject.answer(&after, &Command::new("instance")).await,
        instance,
        "it is in place already"
    );
}

/// U4.
pub(super) async fn an_invocation_finishes_although_its_function_is_retired(subject: Subject) {
    let function = subject.function(|_| {});
    let command = Command::new("instance").after(2 * A_WHILE);
    let retired = async {
        subject.busy(1).await;
        subject.runtime.retire(&function.name);
    };
    let (before, ()) = join(subject.answer(&function, &command), retired).await;
    assert_ne!(
        subject.answer(&function, &Command::new("instance")).await,
        before
    );
}
