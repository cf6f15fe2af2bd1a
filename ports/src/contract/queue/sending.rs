//! Sending, once and whole: limits, Q4, Q7 to Q9.

use std::time::Duration;

use bytes::Bytes;

use super::{GRAIN_MS, LONG_MS, Subject, bodies, message, text};
use crate::{
    ErrorKind, Key, Update,
    queue::{DEDUPLICATION_BYTES_MAX, GROUP_BYTES_MAX, Message, OnFailure, QueueOptions},
};

fn with_id(group: &str, body: &str, id: &str) -> Message {
    Message {
        deduplication: Some(Bytes::copy_from_slice(id.as_bytes())),
        ..message(group, body)
    }
}

/// Q3: a sender would lose track of messages that a refused send accepted.
pub(super) async fn a_send_beyond_the_limits_is_refused_and_nothing_of_it_sent(subject: Subject) {
    let limits = *subject.queue.limits();
    let line = subject.patient("limits", LONG_MS).await;
    let mut large = message("group", "");
    large.body = Bytes::from(vec![b'x'; limits.message_bytes_max + 1]);
    let many = vec![message("group", "one too many"); limits.batch_messages_max + 1];
    let long_group = message(&"g".repeat(GROUP_BYTES_MAX + 1), "small");
    let long_id = with_id("group", "small", &"i".repeat(DEDUPLICATION_BYTES_MAX + 1));
    for messages in [
        vec![message("group", "small"), large],
        many,
        vec![long_group],
        vec![long_id],
    ] {
        let answer = subject.queue.send("limits", messages).await;
        assert_eq!(
            answer.expect_err("beyond a limit").kind(),
            ErrorKind::Invalid
        );
    }
    line.nothing("nothing was sent").await;
    for messages in [vec![message("group", "1")], Vec::new()] {
        let nowhere = subject.queue.send("no such queue", messages).await;
        assert_eq!(
            nowhere.expect_err("there is no such queue").kind(),
            ErrorKind::Invalid
        );
    }
    subject
        .queue
        .send("limits", Vec::new())
        .await
        .expect("the queue is there");
    line.nothing("nothing was sent").await;

    let most: Vec<String> = (0..limits.batch_messages_max.min(100))
        .map(|n| n.to_string())
        .collect();
    line.send(
        "group",
        &most.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let batch = line.next(usize::MAX).await;
    assert!(batch.len() <= limits.batch_messages_max);
    assert_eq!(bodies(&batch), most[..batch.len()]);
}

/// Q3.
pub(super) async fn a_queue_made_again_keeps_its_messages_and_takes_the_new_options(
    subject: Subject,
) {
    let line = subject.patient("again", LONG_MS).await;
    line.send("group", &["1", "2"]).await;
    let options = QueueOptions {
        visibility_timeout_ms: LONG_MS,
        attempts_max: 1,
        on_failure: OnFailure::DeadLetter,
        ..QueueOptions::default()
    };
    subject.create("again", options).await;
    let first = line.one().await;
    assert_eq!(text(&first.body), "1");
    line.release(&first, 0, "once is enough now").await;
    assert_eq!(text(&line.one().await.body), "2");
    assert_eq!(line.dead_letters(1).await[0].reason, "once is enough now");
}

/// Q4.
pub(super) async fn messages_with_one_deduplication_id_are_one(subject: Subject) {
    let line = subject.patient("deduplication", LONG_MS).await;
    let send = async |queue: &str, messages| {
        subject
            .queue
            .send(queue, messages)
            .await
            .expect("send answers");
    };
    send(
        "deduplication",
        vec![
            with_id("group", "1", "one"),
            with_id("group", "again", "one"),
        ],
    )
    .await;
    send(
        "deduplication",
        vec![
            with_id("group", "again", "one"),
            with_id("group", "2", "two"),
        ],
    )
    .await;
    send(
        "deduplication",
        vec![message("group", "3"), message("group", "3")],
    )
    .await;
    let mut received = Vec::new();
    while received.len() < 4 {
        let batch = line.next(10).await;
        received.extend(bodies(&batch).into_iter().map(String::from));
        line.acknowledge(&batch).await;
    }
    assert_eq!(
        received,
        ["1", "2", "3", "3"],
        "without an id each message is its own"
    );
    line.nothing("that is all").await;

    let other = subject.patient("another queue", LONG_MS).await;
    send("another queue", vec![with_id("group", "1", "one")]).await;
    assert_eq!(
        text(&other.one().await.body),
        "1",
        "ids belong to one queue"
    );
}

/// Q4.
pub(super) async fn a_deduplication_id_is_remembered_after_its_message_is_done(subject: Subject) {
    let line = subject.patient("remembered", LONG_MS).await;
    let first = subject
        .queue
        .send("remembered", vec![with_id("group", "1", "id")])
        .await;
    let first = first.expect("send answers");
    let delivery = line.one().await;
    line.acknowledge(&[delivery]).await;
    let again = subject
        .queue
        .send("remembered", vec![with_id("group", "1", "id")])
        .await;
    let again = again.expect("a repeat is no error");
    assert!(
        again.point >= first.point,
        "who waits for the repeat's point waits for the message's"
    );
    line.nothing("the repeat is no message").await;
}

/// Q4: after the window, a message with the same id is a new one. Not promised: whether a repeat
/// prolongs the window.
pub(super) async fn a_deduplication_id_is_forgotten_when_its_window_is_over(subject: Subject) {
    let window = Duration::from_millis(subject.queue.limits().deduplication_window_ms);
    let line = subject.patient("window", LONG_MS).await;
    let send = async || {
        let sent = subject
            .queue
            .send("window", vec![with_id("group", "1", "id")])
            .await;
        sent.expect("send answers");
    };
    let started = subject.clock.monotonic();
    send().await;
    line.acknowledge(&[line.one().await]).await;

    subject.clock.sleep(window / 2).await;
    send().await;
    let passed = subject.clock.monotonic().since(started);
    // On a busy machine the window may have ended by now, and the repeat is a new message.
    if passed + Duration::from_millis(GRAIN_MS) < window {
        line.nothing("the window is not over").await;
    }

    subject
        .clock
        .sleep(window + Duration::from_millis(GRAIN_MS))
        .await;
    send().await;
    assert_eq!(text(&line.one().await.body), "1", "the window is over");
}

/// Q8: also in the longest groups and the shortest, and under the longest ids.
pub(super) async fn every_delivery_carries_the_id_its_message_was_sent_with(subject: Subject) {
    let line = subject.patient("carried", LONG_MS).await;
    let longest = (
        "g".repeat(GROUP_BYTES_MAX),
        "i".repeat(DEDUPLICATION_BYTES_MAX),
    );
    for (group, id) in [("", "1"), ("group", ""), (&*longest.0, &*longest.1)] {
        let messages = vec![with_id(group, "named", id), message(group, "nameless")];
        subject
            .queue
            .send("carried", messages)
            .await
            .expect("send answers");
        for attempt in 1..=3 {
            let batch = line.next(10).await;
            let ids: Vec<_> = batch
                .iter()
                .map(|delivery| delivery.deduplication.as_deref())
                .collect();
            assert_eq!(
                ids,
                [Some(id.as_bytes()), None],
                "attempt {attempt} in group {group:?}"
            );
            assert_eq!(
                (&*batch[0].handle.group, bodies(&batch)),
                (group.as_bytes(), vec!["named", "nameless"])
            );
            if attempt < 3 {
                line.release(&batch[0], 0, "once more").await;
            } else {
                line.acknowledge(&batch).await;
            }
        }
    }
    line.nothing("all is done").await;
}

/// Q7.
pub(super) async fn one_point_covers_queue_and_store_where_they_share_a_journal(subject: Subject) {
    let Some(store) = subject
        .key_value
        .clone()
        .filter(|_| subject.queue.limits().shares_journal)
    else {
        return;
    };
    let line = subject.patient("journal", LONG_MS).await;
    let mut last = subject.queue.point();
    for round in 0..5 {
        let sent = subject
            .queue
            .send("journal", vec![message("group", "1")])
            .await;
        let sent = sent.expect("send answers").point;
        let put = store
            .update(Update::put(Key::new("journal", format!("{round}")), vec![]))
            .await;
        let put = put.expect("update answers").receipt.point;
        let delivery = line.one().await;
        let done = subject
            .queue
            .acknowledge("journal", &[delivery.handle])
            .await;
        let done = done.expect("acknowledge answers").point;
        assert!(
            last <= sent && sent <= put && put <= done,
            "one order: {last:?} {sent:?} {put:?} {done:?}"
        );
        if round % 2 == 0 {
            store.externalize(done).await.expect("externalize answers");
        } else {
            subject
                .queue
                .externalize(done)
                .await
                .expect("externalize answers");
        }
        assert!(subject.queue.is_durable(sent) && store.is_durable(put) && store.is_durable(done));
        last = done;
    }
    assert!(store.point() >= last && subject.queue.point() >= last);
}
