//! What functions print: U5.

use super::{Command, Subject, text};
use crate::runtime::{Invocation, Line};

/// More than any case prints.
const LINES_MAX: usize = 1000;

async fn lines(subject: &Subject, from: u64) -> Vec<Line> {
    subject.runtime.lines(&subject.function.name, from, LINES_MAX).await.expect("they are read")
}

/// U5.
pub(super) async fn what_is_printed_is_kept_under_its_invocation_before_the_answer(subject: Subject) {
    let function = subject.function(|_| {});
    for (id, line) in [("first", "in the first"), ("second", "in the second")] {
        let payload = Command::new("count").printing(line).encode();
        let ran = subject.runtime.run(&function, Invocation::new(id.to_owned(), payload, true)).await;
        let ran = ran.expect("it is run");
        let kept = lines(&subject, 0).await;
        let is_kept = kept.iter().any(|kept| kept.id == id && kept.text == line);
        assert!(is_kept, "{line:?} of {id:?} is not among {kept:?}");
        assert!(text(&ran.log_tail).contains(line), "{:?}", ran.log_tail);
    }
    let whose = |kept: &Line| kept.text.strip_prefix("in the ").is_none_or(|id| id == kept.id);
    let kept = lines(&subject, 0).await;
    assert!(kept.iter().all(whose), "{kept:?}");
}

/// U5.
pub(super) async fn what_one_that_fails_has_printed_is_kept_too(subject: Subject) {
    let function = subject.function(|_| {});
    for (command, line) in [
        (Command::with("fail", "\"words\""), "before it failed"),
        (Command::with("exit", 1), "before it ended"),
    ] {
        subject.failure(&function, &command.printing(line)).await;
        let kept = lines(&subject, 0).await;
        assert!(kept.iter().any(|kept| kept.id == "an-id" && kept.text == line), "{line:?}: {kept:?}");
    }
}

/// U5.
pub(super) async fn lines_are_read_on_from_any_of_them(subject: Subject) {
    let function = subject.function(|_| {});
    for line in ["one", "two"] {
        subject.answer(&function, &Command::new("count").printing(line)).await;
    }
    let all = lines(&subject, 0).await;
    assert!(all.windows(2).all(|pair| pair[0].number < pair[1].number), "{all:?}");
    let two = all.iter().find(|line| line.text == "two").expect("it was printed").number;
    let rest = lines(&subject, two).await;
    assert!(
        rest.iter().any(|line| line.text == "two") && rest.iter().all(|line| line.text != "one"),
        "{rest:?}"
    );
    let first = subject.runtime.lines(&subject.function.name, 0, 1).await.expect("they are read");
    assert_eq!(first, all[..1]);
}
