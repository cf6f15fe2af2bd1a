//! Order within a group, none between groups: Q1 and Q2.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{LONG_MS, Line, PATIENCE, Subject, bodies, message, text};
use crate::contract::LOOK_AGAIN;

/// Q1.
pub(super) async fn a_group_is_delivered_in_the_order_it_was_sent(subject: Subject) {
    let line = subject.patient("order", LONG_MS).await;
    let sent: Vec<String> = (0..30).map(|n| format!("{n:02}")).collect();
    for bodies in sent.chunks(4) {
        line.send(
            "group",
            &bodies.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;
    }
    let (mut received, mut sequences) = (Vec::new(), Vec::new());
    while received.len() < sent.len() {
        let deliveries = line.next(3).await;
        assert!(deliveries.len() <= 3);
        sequences.extend(deliveries.iter().map(|delivery| delivery.handle.sequence));
        received.extend(bodies(&deliveries).into_iter().map(String::from));
        assert!(
            deliveries
                .iter()
                .all(|delivery| delivery.handle.attempt == 1)
        );
        line.acknowledge(&deliveries).await;
    }
    assert_eq!(received, sent);
    assert!(
        sequences.is_sorted_by(|left, right| left < right),
        "{sequences:?}"
    );
    line.nothing("all were acknowledged").await;
}

/// Q1.
pub(super) async fn a_batch_holds_messages_of_one_group(subject: Subject) {
    let line = subject.patient("one group", LONG_MS).await;
    for body in ["1", "2", "3"] {
        for group in ["a", "b", "c"] {
            line.send(group, &[body]).await;
        }
    }
    let mut groups = Vec::new();
    for _ in 0..3 {
        let deliveries = line.next(10).await;
        let group = deliveries[0].handle.group.clone();
        assert!(
            deliveries
                .iter()
                .all(|delivery| delivery.handle.group == group),
            "{deliveries:?}"
        );
        let expected = &["1", "2", "3"][..deliveries.len()];
        assert_eq!(
            bodies(&deliveries),
            expected,
            "the head of the group, in order"
        );
        groups.push(group);
    }
    groups.sort_unstable();
    assert_eq!(groups, ["a", "b", "c"].map(Bytes::from));
}

/// Q1.
pub(super) async fn a_group_with_a_consumer_is_given_to_no_other(subject: Subject) {
    let line = subject.patient("in flight", LONG_MS).await;
    line.send("group", &["1", "2", "3"]).await;
    let first = line.one().await;
    assert_eq!(text(&first.body), "1");
    line.nothing("the group is with a consumer").await;
    line.send("group", &["4"]).await;
    line.nothing("also for what is sent meanwhile").await;
    line.acknowledge(&[first]).await;
    let rest = line.next(2).await;
    assert_eq!(bodies(&rest), ["2", "3"]);
    line.acknowledge(&rest[1..]).await;
    line.nothing("a part of the batch is still out").await;
    line.acknowledge(&rest[..1]).await;
    assert_eq!(bodies(&line.next(10).await), ["4"]);
}

/// Q1, Q6: the consumer that lost the group cannot give it to a third one.
pub(super) async fn a_stale_release_does_not_set_the_group_free(subject: Subject) {
    let line = subject.patient("stale release", LONG_MS).await;
    line.send("group", &["1", "2"]).await;
    let first = line.one().await;
    line.release(&first, 0, "once").await;
    let second = line.one().await;
    assert_eq!((text(&second.body), second.handle.attempt), ("1", 2));
    // The provider may report this or not, but the group must stay with its consumer.
    drop(
        subject
            .queue
            .release("stale release", &first.handle, 0, "late")
            .await,
    );
    line.nothing("the group is with the second consumer").await;
    line.acknowledge(&[second]).await;
    assert_eq!(text(&line.one().await.body), "2");
}

/// Q1: also when eight consumers compete and each tenth delivery fails.
pub(super) async fn consumers_that_fail_now_and_then_keep_every_groups_order(subject: Subject) {
    const GROUPS: usize = 4;
    const MESSAGES: usize = 25;
    let line = subject.patient("competing", LONG_MS).await;
    for body in 0..MESSAGES {
        let batch =
            (0..GROUPS).map(|group| message(&format!("group {group}"), &format!("{body:02}")));
        subject
            .queue
            .send("competing", batch.collect())
            .await
            .expect("send answers");
    }
    assert_eq!(line.queue, "competing");
    let log = Arc::new(Log::default());
    subject
        .together((0..8).map(|consumer| {
            let (subject, log) = (subject.clone(), Arc::clone(&log));
            async move { consume(&subject, consumer, &log, GROUPS * MESSAGES).await }
        }))
        .await;
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let expected: Vec<String> = (0..MESSAGES).map(|body| format!("{body:02}")).collect();
    assert_eq!(log.len(), GROUPS);
    for (group, bodies) in &*log {
        assert_eq!(*bodies, expected, "{group:?}");
    }
}

/// The consumers' deliveries, by group.
type Log = Mutex<BTreeMap<Bytes, Vec<String>>>;

fn note(log: &Log, group: Bytes, body: String) {
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(group)
        .or_default()
        .push(body);
}

fn noted(log: &Log) -> usize {
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .values()
        .map(Vec::len)
        .sum()
}

async fn consume(subject: &Subject, consumer: usize, log: &Log, total: usize) {
    let line = Line {
        subject,
        queue: "competing",
    };
    let started = subject.clock.monotonic();
    let mut handled = consumer;
    loop {
        if noted(log) >= total {
            return;
        }
        assert!(
            subject.clock.monotonic().since(started) < PATIENCE,
            "the queue does not drain"
        );
        for delivery in line.receive(1 + consumer % 3).await {
            handled += 1;
            if handled.is_multiple_of(10) {
                line.release(&delivery, 0, "now and then").await;
                break;
            }
            let body = text(&delivery.body).to_owned();
            note(log, delivery.handle.group.clone(), body);
            line.acknowledge(&[delivery]).await;
        }
        subject.clock.sleep(LOOK_AGAIN).await;
    }
}

/// Q2.
pub(super) async fn groups_do_not_wait_for_each_other(subject: Subject) {
    let line = subject.patient("parallel", LONG_MS).await;
    let groups: Vec<String> = (0..10).map(|n| format!("group {n}")).collect();
    for group in &groups {
        line.send(group, &["first", "second"]).await;
    }
    let mut held = Vec::new();
    for _ in &groups {
        held.push(line.one().await);
    }
    let mut seen: Vec<&str> = held
        .iter()
        .map(|delivery| text(&delivery.handle.group))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, groups);
    line.nothing("every group is with a consumer").await;
    line.acknowledge(&held[3..4]).await;
    let next = line.one().await;
    assert_eq!(
        (&next.handle.group, text(&next.body)),
        (&held[3].handle.group, "second")
    );
}

/// Q2: a busy group does not starve the others.
pub(super) async fn groups_are_served_in_turn(subject: Subject) {
    let line = subject.patient("turns", LONG_MS).await;
    for group in ["busy", "a", "b"] {
        line.send(group, &["1", "2", "3", "4", "5", "6", "7", "8"])
            .await;
    }
    let mut served = BTreeMap::<Bytes, usize>::new();
    for _ in 0..9 {
        let delivery = line.one().await;
        *served.entry(delivery.handle.group.clone()).or_default() += 1;
        line.acknowledge(&[delivery]).await;
    }
    assert_eq!(served.len(), 3, "each group has had a turn: {served:?}");
}
