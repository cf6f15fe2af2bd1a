//! What functions print: U5.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::{Command, Subject, text};
use crate::{
    contract::within,
    runtime::{Invocation, Line, Page},
};

/// More than any case prints.
const LINES_MAX: usize = 1000;

/// All of them, from there on.
fn all_from(from: u64) -> Page {
    Page {
        from,
        lines_max: LINES_MAX,
        bytes_max: usize::MAX,
    }
}

async fn page(subject: &Subject, page: Page) -> Vec<Line> {
    subject
        .runtime
        .lines(&subject.function.name, page)
        .await
        .expect("they are read")
}

async fn lines(subject: &Subject, from: u64) -> Vec<Line> {
    page(subject, all_from(from)).await
}

/// U5.
pub(super) async fn what_is_printed_is_kept_under_its_invocation_before_the_answer(
    subject: Subject,
) {
    let function = subject.function(|_| {});
    for (id, line) in [("first", "in the first"), ("second", "in the second")] {
        let payload = Command::new("count").printing(line).encode();
        let ran = subject
            .runtime
            .run(&function, Invocation::new(id.to_owned(), payload, true))
            .await;
        let ran = ran.expect("it is run");
        let kept = lines(&subject, 0).await;
        let is_kept = kept.iter().any(|kept| kept.id == id && kept.text == line);
        assert!(is_kept, "{line:?} of {id:?} is not among {kept:?}");
        assert!(text(&ran.log_tail).contains(line), "{:?}", ran.log_tail);
    }
    let whose = |kept: &Line| {
        kept.text
            .strip_prefix("in the ")
            .is_none_or(|id| id == kept.id)
    };
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
        assert!(
            kept.iter()
                .any(|kept| kept.id == "an-id" && kept.text == line),
            "{line:?}: {kept:?}"
        );
    }
}

/// U5.
pub(super) async fn lines_are_read_on_from_any_of_them(subject: Subject) {
    let function = subject.function(|_| {});
    for line in ["one", "two"] {
        subject
            .answer(&function, &Command::new("count").printing(line))
            .await;
    }
    let all = lines(&subject, 0).await;
    assert!(
        all.windows(2).all(|pair| pair[0].number < pair[1].number),
        "{all:?}"
    );
    let two = all
        .iter()
        .find(|line| line.text == "two")
        .expect("it was printed")
        .number;
    let rest = lines(&subject, two).await;
    assert!(
        rest.iter().any(|line| line.text == "two") && rest.iter().all(|line| line.text != "one"),
        "{rest:?}"
    );
    let first = page(
        &subject,
        Page {
            lines_max: 1,
            ..all_from(0)
        },
    )
    .await;
    assert_eq!(first, all[..1]);
}

/// U5: whoever has little room reads all of it all the same, a line that is longer than that by itself.
pub(super) async fn lines_are_read_in_pages_that_have_a_bound(subject: Subject) {
    const BYTES_MAX: usize = 64;
    let function = subject.function(|_| {});
    let (short, long) = ("s".repeat(BYTES_MAX / 2), "l".repeat(2 * BYTES_MAX));
    for line in [&short, &short, &short, &long, &short] {
        subject
            .answer(&function, &Command::new("count").printing(line))
            .await;
    }
    let mut read = Vec::new();
    loop {
        let from = read.last().map_or(0, |line: &Line| line.number + 1);
        let next = page(
            &subject,
            Page {
                bytes_max: BYTES_MAX,
                ..all_from(from)
            },
        )
        .await;
        if next.is_empty() {
            break;
        }
        let bytes: usize = next.iter().map(|line| line.text.len()).sum();
        assert!(
            bytes <= BYTES_MAX || next.len() == 1,
            "{bytes} bytes in one page: {next:?}"
        );
        read.extend(next);
    }
    assert_eq!(read, lines(&subject, 0).await);
    let printed = read
        .iter()
        .filter(|line| line.text == short || line.text == long);
    assert_eq!(printed.count(), 5);
}

/// U5.
pub(super) async fn who_waits_for_a_line_is_woken_by_its_own_function_alone(subject: Subject) {
    let own = subject.function(|_| {});
    let other = subject.function(|function| function.name += "-other");
    let print = Command::new("count").printing("words");
    subject.answer(&own, &print).await;
    let next = lines(&subject, 0).await.last().expect("some").number + 1;
    let mut more = pin!(subject.runtime.more_lines(&own.name, next));
    assert!(
        more.as_mut().now_or_never().is_none(),
        "nothing more was printed"
    );
    subject.answer(&other, &print).await;
    let others = subject
        .runtime
        .lines(&other.name, all_from(0))
        .await
        .expect("they are read");
    assert!(others.iter().any(|line| line.text == "words"), "{others:?}");
    assert!(
        more.as_mut().now_or_never().is_none(),
        "another has printed"
    );
    subject.answer(&own, &print).await;
    within(&*subject.clock, "to be woken", more).await;
    assert!(!lines(&subject, next).await.is_empty());
}
