//! Results and errors: U3.

use super::{Command, Subject, text};
use crate::runtime::Invocation;

/// U3.
pub(super) async fn an_answer_is_returned_whole(subject: Subject) {
    let function = subject.function(|_| {});
    assert_eq!(
        subject
            .answer(&function, &Command::with("echo", "[1,\"a\",null]"))
            .await
            .replace(' ', ""),
        "[1,\"a\",null]"
    );
    let long = subject
        .answer(&function, &Command::with("long", 3_000_000))
        .await;
    assert_eq!(
        (long.len(), long.replace('x', "")),
        (3_000_002, "\"\"".to_owned())
    );
}

/// U3.
pub(super) async fn an_answer_that_is_too_long_fails_and_is_not_cut(subject: Subject) {
    let function = subject.function(|_| {});
    subject
        .failure(&function, &Command::with("long", 8_000_000))
        .await;
    assert_eq!(
        subject.answer(&function, &Command::with("echo", 1)).await,
        "1",
        "it goes on"
    );
}

/// U3.
pub(super) async fn a_failure_says_why_in_the_functions_own_words(subject: Subject) {
    let function = subject.function(|_| {});
    let said = subject
        .failure(&function, &Command::with("fail", "\"in these words\""))
        .await;
    assert!(said.contains("in these words"), "{said}");
}

/// U3.
pub(super) async fn an_invocation_is_run_once_whether_it_fails_or_not(subject: Subject) {
    let function = subject.function(|_| {});
    assert_eq!(subject.answer(&function, &Command::new("count")).await, "1");
    subject
        .failure(&function, &Command::with("fail", "\"words\""))
        .await;
    assert_eq!(subject.answer(&function, &Command::new("count")).await, "3");
}

/// U3.
pub(super) async fn a_function_sees_the_id_of_its_invocation(subject: Subject) {
    let function = subject.function(|_| {});
    for id in ["one", "another"] {
        let invocation = Invocation::new(id.to_owned(), Command::new("id").encode(), true);
        let ran = subject
            .runtime
            .run(&function, invocation)
            .await
            .expect("it is run");
        assert_eq!(text(&ran.result.expect("it answers")), format!("\"{id}\""));
    }
}
