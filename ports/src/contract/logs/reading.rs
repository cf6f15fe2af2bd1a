//! How readers follow the lines: G1 to G3.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::{Subject, all_from, lines, page};
use crate::{
    contract::{runtime::Command, within},
    logs::{Line, Page},
};

/// G1.
pub(super) async fn a_reader_goes_on_from_any_line(subject: Subject) {
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

/// G2.
pub(super) async fn pages_are_bounded_and_a_longer_line_is_a_page_of_its_own(subject: Subject) {
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

/// G3.
pub(super) async fn a_waiting_reader_is_woken_by_its_own_function_alone(subject: Subject) {
    let own = subject.function(|_| {});
    let other = subject.function(|function| function.name += "-other");
    let print = Command::new("count").printing("words");
    subject.answer(&own, &print).await;
    let next = lines(&subject, 0).await.last().expect("some").number + 1;
    let mut more = pin!(subject.logs.more_lines(&own.name, next));
    assert!(
        more.as_mut().now_or_never().is_none(),
        "nothing more was printed"
    );
    subject.answer(&other, &print).await;
    let others = subject
        .logs
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
