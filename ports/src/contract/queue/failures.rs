//! Messages that fail: Q5 and Q10 to Q12; and those that wait: Q14.

use bytes::Bytes;

use super::{LONG_MS, SHORT_MS, Subject, bodies, text};
use crate::{
    ErrorKind,
    queue::{Backlog, OnFailure, QueueOptions, Retention},
};

fn failing(visibility_timeout_ms: u64, attempts_max: u32, on_failure: OnFailure) -> QueueOptions {
    QueueOptions {
        visibility_timeout_ms,
        attempts_max,
        on_failure,
        ..QueueOptions::default()
    }
}

/// Q5.
pub(super) async fn a_message_that_fails_too_often_is_a_dead_letter_with_its_reason(
    subject: Subject,
) {
    let line = subject
        .create("poison", failing(LONG_MS, 3, OnFailure::DeadLetter))
        .await;
    line.send("group", &["poison", "next"]).await;
    for attempt in 1..=3 {
        let delivery = line.one().await;
        assert_eq!(
            (text(&delivery.body), delivery.handle.attempt),
            ("poison", attempt)
        );
        line.release(&delivery, 0, &format!("failure {attempt}"))
            .await;
    }
    let next = line.one().await;
    assert_eq!(
        (text(&next.body), next.handle.attempt),
        ("next", 1),
        "the group goes on"
    );
    let letters = line.dead_letters(1).await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(
        (text(&letter.group), text(&letter.body)),
        ("group", "poison")
    );
    assert_eq!((letter.attempts, letter.reason.as_str()), (3, "failure 3"));
    assert!(letter.sequence < next.handle.sequence);
    assert!(
        line.blocked().await.is_empty(),
        "dead letters block no group"
    );
}

/// Q5.
pub(super) async fn a_message_that_times_out_too_often_is_a_dead_letter_too(subject: Subject) {
    let line = subject
        .create("slow", failing(SHORT_MS, 2, OnFailure::DeadLetter))
        .await;
    line.send("group", &["slow", "next"]).await;
    for attempt in 1..=2 {
        let delivery = line.one().await;
        assert_eq!(
            (text(&delivery.body), delivery.handle.attempt),
            ("slow", attempt)
        );
    }
    assert_eq!(text(&line.one().await.body), "next");
    let letter = line.dead_letters(1).await.remove(0);
    assert_eq!((text(&letter.body), letter.attempts), ("slow", 2));
    assert!(
        !letter.reason.is_empty(),
        "the reason says that the timeout ran out"
    );
}

/// Q5: a consumer that hangs on one message of a batch does not say on which.
pub(super) async fn no_message_is_given_up_for_another_of_its_batch(subject: Subject) {
    for (name, retention) in [
        ("batches", Retention::Durable),
        ("batches-in-memory", Retention::Transient),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(SHORT_MS, 2, OnFailure::DeadLetter)
        };
        let line = subject.create(name, options).await;
        line.send("group", &["before", "poison", "behind"]).await;
        let mut given = Vec::new();
        for _ in 0..5 {
            let batch = line.next(10).await;
            if !bodies(&batch).contains(&"poison") {
                line.acknowledge(&batch).await;
            }
            given.push(bodies(&batch).join(" "));
        }
        let alone_at_last = [
            "before poison behind",
            "before",
            "poison behind",
            "poison",
            "behind",
        ];
        assert_eq!(given, alone_at_last, "{retention:?}");
        let letters = line.dead_letters(1).await;
        let given_up: Vec<_> = letters
            .iter()
            .map(|letter| (text(&letter.body), letter.attempts))
            .collect();
        assert_eq!(given_up, [("poison", 3)], "{retention:?}");
    }
}

/// Q5.
pub(super) async fn dead_letters_are_listed_oldest_first(subject: Subject) {
    let line = subject
        .create("letters", failing(LONG_MS, 1, OnFailure::DeadLetter))
        .await;
    for group in ["b", "a", "c"] {
        line.send(group, &[group]).await;
        let delivery = line.one().await;
        line.release(&delivery, 0, group).await;
        line.dead_letters(1).await;
    }
    let letters = line.dead_letters(3).await;
    let reasons: Vec<&str> = letters
        .iter()
        .map(|letter| letter.reason.as_str())
        .collect();
    assert_eq!(reasons, ["b", "a", "c"]);
    let two = subject
        .admin
        .dead_letters("letters", None, 2)
        .await
        .expect("dead_letters answers");
    assert_eq!(two, letters[..2]);
}

/// Q5 (rule P1).
pub(super) async fn a_message_that_blocks_its_group_raises_an_alarm_until_it_succeeds(
    subject: Subject,
) {
    let line = subject
        .create("blocking", failing(LONG_MS, 2, OnFailure::Block))
        .await;
    line.send("group", &["head", "next"]).await;
    assert!(line.blocked().await.is_empty());
    for attempt in 1..=4 {
        let delivery = line.one().await;
        assert_eq!(
            (text(&delivery.body), delivery.handle.attempt),
            ("head", attempt),
            "nothing overtakes"
        );
        line.release(&delivery, 0, &format!("failure {attempt}"))
            .await;
        let alarms = line.blocked().await;
        assert_eq!(
            alarms.len(),
            usize::from(attempt >= 2),
            "after {attempt} failures: {alarms:?}"
        );
        if let Some(alarm) = alarms.first() {
            assert_eq!((text(&alarm.body), alarm.attempts), ("head", attempt));
            assert_eq!(alarm.reason, format!("failure {attempt}"));
        }
    }
    let delivery = line.one().await;
    line.acknowledge(&[delivery]).await;
    assert!(line.blocked().await.is_empty(), "it succeeded");
    assert_eq!(text(&line.one().await.body), "next");
    let letters = subject
        .admin
        .dead_letters("blocking", None, 10)
        .await
        .expect("dead_letters answers");
    assert!(letters.is_empty(), "nothing left the group: {letters:?}");
}

/// Q5, Q2: in durable and in transient queues.
pub(super) async fn a_blocked_group_does_not_block_the_others(subject: Subject) {
    for (name, retention) in [
        ("others", Retention::Durable),
        ("others-in-memory", Retention::Transient),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(LONG_MS, 1, OnFailure::Block)
        };
        let line = subject.create(name, options).await;
        line.send("bad", &["bad"]).await;
        let bad = line.one().await;
        line.release(&bad, LONG_MS, "bad").await;
        line.send("good", &["1", "2"]).await;
        for body in ["1", "2"] {
            let delivery = line.one().await;
            assert_eq!(
                (&delivery.handle.group, text(&delivery.body)),
                (&Bytes::from("good"), body)
            );
            line.acknowledge(&[delivery]).await;
        }
        let blocked = line.blocked().await;
        assert_eq!(blocked.len(), 1, "{retention:?}");
        assert_eq!(
            (text(&blocked[0].body), blocked[0].reason.as_str()),
            ("bad", "bad"),
            "{retention:?}"
        );
    }
}

/// Q10: in durable and in transient queues.
pub(super) async fn a_backlog_counts_what_waits_and_what_was_given_up(subject: Subject) {
    for (name, retention) in [
        ("counted", Retention::Durable),
        ("counted-in-memory", Retention::Transient),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(LONG_MS, 1, OnFailure::DeadLetter)
        };
        let line = subject.create(name, options).await;
        let backlog = async |messages, dead_letters| {
            let found = subject.admin.backlog(name).await.expect("backlog answers");
            assert_eq!(
                found,
                Backlog {
                    messages,
                    dead_letters
                },
                "{retention:?}"
            );
        };
        backlog(0, 0).await;
        line.send("bad", &["bad"]).await;
        line.send("good", &["1", "2"]).await;
        backlog(3, 0).await;
        let bad = line.one().await;
        backlog(3, 0).await;
        line.release(&bad, 0, "on purpose").await;
        line.dead_letters(1).await;
        backlog(2, 1).await;
        let good = line.one().await;
        line.acknowledge(&[good]).await;
        backlog(1, 1).await;
    }
    let refused = subject
        .admin
        .backlog("unknown")
        .await
        .expect_err("there is no such queue");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// Q14: in durable and in transient queues.
pub(super) async fn what_waits_is_shown_in_the_order_of_its_groups_and_not_delivered(
    subject: Subject,
) {
    for (name, retention) in [
        ("shown", Retention::Durable),
        ("shown-in-memory", Retention::Transient),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(LONG_MS, 2, OnFailure::DeadLetter)
        };
        let line = subject.create(name, options).await;
        assert_eq!(line.waiting(10).await, [], "{retention:?}");
        line.send("a", &["1", "2", "3"]).await;
        let of = async |group: &str| {
            let shown = line.waiting(10).await.into_iter();
            let own = shown.filter(|message| message.group == *group);
            let own = own.map(|message| (text(&message.body).to_owned(), message.attempts));
            own.collect::<Vec<_>>()
        };
        let message = |body: &str, attempts| (body.to_owned(), attempts);
        for _ in 0..3 {
            let expected = [message("1", 0), message("2", 0), message("3", 0)];
            assert_eq!(of("a").await, expected, "{retention:?}: it stays untried");
        }
        line.send("b", &["4"]).await;
        assert_eq!(of("b").await, [message("4", 0)], "{retention:?}");
        assert_eq!(line.waiting(2).await.len(), 2, "{retention:?}");
        let all = subject.queue.receive(name, 3).await.expect("received");
        let group = String::from_utf8_lossy(&all[0].handle.group).into_owned();
        let given: Vec<_> = all
            .iter()
            .map(|given| message(text(&given.body), 1))
            .collect();
        assert_eq!(of(&group).await[..given.len()], given, "{retention:?}");
        line.acknowledge(&all).await;
        let left = if group == "a" { 1 } else { 3 };
        assert_eq!(line.waiting(10).await.len(), left, "{retention:?}");
    }
    let refused = subject.admin.waiting("unknown", 1).await;
    let refused = refused.expect_err("there is no such queue");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// Q11: in durable and in transient queues.
pub(super) async fn a_message_given_up_is_a_dead_letter_at_once(subject: Subject) {
    for (name, on_failure, retention) in [
        ("patient", OnFailure::DeadLetter, Retention::Durable),
        (
            "patient-in-memory",
            OnFailure::DeadLetter,
            Retention::Transient,
        ),
        ("blocking", OnFailure::Block, Retention::Durable),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(LONG_MS, u32::MAX, on_failure)
        };
        let line = subject.create(name, options).await;
        line.send("group", &["done", "hopeless", "behind"]).await;
        let batch = line.next(3).await;
        assert_eq!(bodies(&batch), ["done", "hopeless", "behind"]);
        line.acknowledge(&batch[..1]).await;
        line.give_up(&batch[1], "it cannot be helped").await;
        let behind = line.next(3).await;
        assert_eq!(bodies(&behind), ["behind"], "the group goes on");
        let letters = line.dead_letters(1).await;
        let given_up: Vec<_> = letters
            .iter()
            .map(|letter| (text(&letter.group), text(&letter.body)))
            .collect();
        assert_eq!(given_up, [("group", "hopeless")]);
        assert_eq!(
            (letters[0].attempts, letters[0].reason.as_str()),
            (1, "it cannot be helped")
        );
        line.acknowledge(&behind).await;
        assert!(
            line.blocked().await.is_empty(),
            "dead letters block no group"
        );
        let backlog = subject.admin.backlog(name).await.expect("backlog answers");
        assert_eq!(
            backlog,
            Backlog {
                messages: 0,
                dead_letters: 1
            }
        );
    }
}

/// Q11, Q6.
pub(super) async fn a_stale_handle_gives_nothing_up(subject: Subject) {
    let line = subject
        .create("stale", failing(LONG_MS, u32::MAX, OnFailure::DeadLetter))
        .await;
    line.send("group", &["message"]).await;
    let first = line.one().await;
    line.release(&first, 0, "once more").await;
    let second = line.one().await;
    line.give_up(&first, "too late").await;
    line.acknowledge(&[second]).await;
    let backlog = subject
        .admin
        .backlog("stale")
        .await
        .expect("backlog answers");
    assert_eq!(
        backlog,
        Backlog {
            messages: 0,
            dead_letters: 0
        }
    );
}

/// Q12: in durable and in transient queues.
pub(super) async fn a_delivery_counts_failures_of_its_message_and_not_of_those_before_it(
    subject: Subject,
) {
    for (name, retention) in [
        ("counted", Retention::Durable),
        ("counted-in-memory", Retention::Transient),
    ] {
        let options = QueueOptions {
            retention,
            ..failing(SHORT_MS, 1_000, OnFailure::Block)
        };
        let line = subject.create(name, options).await;
        line.send("group", &["head", "behind"]).await;
        let next = async || {
            let batch = line.next(2).await;
            let seen: Vec<_> = batch
                .iter()
                .map(|delivery| (delivery.handle.attempt, delivery.failures))
                .collect();
            (batch, seen)
        };
        let (first, seen) = next().await;
        assert_eq!(seen, [(1, 0), (1, 0)], "{retention:?}");
        line.release(&first[0], 0, "on purpose").await;
        // Kept until its visibility timeout runs out.
        let (_, seen) = next().await;
        assert_eq!(seen, [(2, 1), (2, 0)], "{retention:?}");
        let (third, seen) = next().await;
        assert_eq!(seen, [(3, 2), (3, 0)], "{retention:?}");
        line.acknowledge(&third[..1]).await;
        line.release(&third[1], 0, "it was its own fault").await;
        let (last, seen) = next().await;
        assert_eq!(seen, [(4, 1)], "{retention:?}");
        line.acknowledge(&last).await;
    }
}
