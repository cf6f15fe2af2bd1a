//! The lines that an invocation prints: U5.

use super::{Command, Subject, text};
use crate::{
    logs::{Line, Page},
    runtime::Invocation,
};

/// More lines than any case prints.
const LINES_MAX: usize = 1000;

/// All lines of the subject's function.
async fn kept(subject: &Subject) -> Vec<Line> {
    let page = Page {
        from: 0,
        lines_max: LINES_MAX,
        bytes_max: usize::MAX,
    };
    subject
        .logs
        .lines(&subject.function.name, page)
        .await
        .expect("the lines are read")
}

/// U5.
pub(super) async fn output_is_kept_under_its_invocation_before_the_result(subject: Subject) {
    let function = subject.function(|_| {});
    for (id, line) in [("first", "in the first"), ("second", "in the second")] {
        let payload = Command::new("count").printing(line).encode();
        let ran = subject
            .runtime
            .run(&function, Invocation::new(id.to_owned(), payload, true))
            .await;
        let ran = ran.expect("it is run");
        let lines = kept(&subject).await;
        let is_kept = lines.iter().any(|kept| kept.id == id && kept.text == line);
        assert!(is_kept, "{line:?} of {id:?} is not among {lines:?}");
        assert!(text(&ran.log_tail).contains(line), "{:?}", ran.log_tail);
    }
    let whose = |kept: &Line| {
        kept.text
            .strip_prefix("in the ")
            .is_none_or(|id| id == kept.id)
    };
    let lines = kept(&subject).await;
    assert!(lines.iter().all(whose), "{lines:?}");
}

/// U5.
pub(super) async fn output_of_a_failed_invocation_is_kept(subject: Subject) {
    let function = subject.function(|_| {});
    for (command, line) in [
        (Command::with("fail", "\"words\""), "before it failed"),
        (Command::with("exit", 1), "before it ended"),
    ] {
        subject.failure(&function, &command.printing(line)).await;
        let lines = kept(&subject).await;
        assert!(
            lines
                .iter()
                .any(|kept| kept.id == "an-id" && kept.text == line),
            "{line:?}: {lines:?}"
        );
    }
}
