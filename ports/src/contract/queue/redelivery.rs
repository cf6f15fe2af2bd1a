//! Redelivery and its delays: Q3 and Q6.

use std::time::Duration;

use futures_util::future::join;

use super::{GRAIN_MS, LONG_MS, SHORT_MS, Subject, USED_MS, attempts, bodies, text, within};
use crate::Monotonic;

impl Subject {
    /// Asserts that at least `ms` have passed since `since`, within the tolerance of clocks.
    fn assert_passed(&self, since: Monotonic, ms: u64, why: &str) {
        let passed = self.clock.monotonic().since(since);
        assert!(
            passed >= Duration::from_millis(ms - GRAIN_MS),
            "{why} after {passed:?} instead of {ms} ms"
        );
    }
}

/// Q1, Q3.
pub(super) async fn order_survives_a_redelivery_of_all_but_the_middle(subject: Subject) {
    let line = subject.patient("middle", LONG_MS).await;
    line.send("group", &["1", "2", "3", "4", "5"]).await;
    let batch = line.next(3).await;
    assert_eq!(bodies(&batch), ["1", "2", "3"]);
    line.acknowledge(&batch[1..2]).await;
    line.release(&batch[0], 0, "not done").await;
    let mut received = Vec::new();
    while received.len() < 4 {
        let deliveries = line.next(2).await;
        received.extend(bodies(&deliveries).into_iter().map(String::from));
        line.acknowledge(&deliveries).await;
    }
    assert_eq!(received, ["1", "3", "4", "5"]);
}

/// Q3, Q1.
pub(super) async fn a_message_not_acknowledged_in_time_is_delivered_again(subject: Subject) {
    let line = subject.patient("timeout", SHORT_MS).await;
    line.send("group", &["1", "2", "3"]).await;
    // Read before the first delivery: a pause of this case only adds to what has passed since.
    let started = subject.clock.monotonic();
    for attempt in 1..=4 {
        let batch = line.next(2).await;
        assert_eq!(
            (bodies(&batch), attempts(&batch)),
            (vec!["1", "2"], vec![attempt; 2])
        );
        if attempt > 1 {
            let hidden_ms = u64::from(attempt - 1) * SHORT_MS;
            subject.assert_passed(started, hidden_ms, "delivered again");
        }
    }
}

/// Q3.
pub(super) async fn a_released_message_is_delivered_again_with_all_after_it(subject: Subject) {
    let line = subject.patient("release", LONG_MS).await;
    line.send("group", &["1", "2", "3", "4"]).await;
    let batch = line.next(3).await;
    assert_eq!(
        (bodies(&batch), attempts(&batch)),
        (vec!["1", "2", "3"], vec![1; 3])
    );
    line.acknowledge(&batch[..1]).await;
    line.release(&batch[1], 0, "not now").await;
    let again = line.next(2).await;
    assert_eq!(
        (bodies(&again), attempts(&again)),
        (vec!["2", "3"], vec![2; 2])
    );
    line.acknowledge(&again).await;
    assert_eq!(bodies(&line.next(10).await), ["4"]);
}

/// Q3.
pub(super) async fn a_release_with_a_delay_hides_the_group_for_so_long(subject: Subject) {
    let line = subject.patient("delay", LONG_MS).await;
    line.send("group", &["1", "2"]).await;
    let first = line.one().await;
    let started = subject.clock.monotonic();
    line.release(&first, SHORT_MS, "later").await;
    let again = line.one().await;
    subject.assert_passed(started, SHORT_MS, "delivered again");
    assert_eq!((text(&again.body), again.handle.attempt), ("1", 2));
}

/// Q3: extending any message of a batch extends the batch.
pub(super) async fn an_extended_delivery_stays_hidden_with_its_batch(subject: Subject) {
    const EXTENSION_MS: u64 = USED_MS * 3 / 2;
    let line = subject.patient("extend", USED_MS).await;
    line.send("group", &["1", "2", "3"]).await;
    let mut batch = line.next(3).await;
    for index in 0..3 {
        assert_eq!(bodies(&batch), ["1", "2", "3"]);
        let started = subject.clock.monotonic();
        line.extend(&batch[index], EXTENSION_MS).await;
        batch = line.next(3).await;
        subject.assert_passed(started, EXTENSION_MS, "delivered again");
    }
    assert_eq!(attempts(&batch), [4; 3]);
}

/// Q3: longer and shorter than the queue's timeout.
pub(super) async fn a_consumer_may_hide_its_batch_for_a_time_of_its_own(subject: Subject) {
    const OWN_MS: u64 = 4 * SHORT_MS;
    for (name, visibility_timeout_ms) in [("hidden longer", SHORT_MS), ("hidden shorter", LONG_MS)]
    {
        let line = subject.patient(name, visibility_timeout_ms).await;
        line.send("group", &["1", "2"]).await;
        let started = subject.clock.monotonic();
        let batch = subject
            .queue
            .receive_hidden(name, 2, Some(OWN_MS))
            .await
            .expect("receive answers");
        assert_eq!(bodies(&batch), ["1", "2"]);
        let again = line.next(2).await;
        subject.assert_passed(started, OWN_MS, "delivered again");
        assert_eq!(attempts(&again), [2; 2], "{name}");
    }
}

/// Q3.
pub(super) async fn an_acknowledged_message_never_comes_back(subject: Subject) {
    let line = subject.patient("done", USED_MS).await;
    line.send("group", &["1", "2"]).await;
    let batch = line.next(2).await;
    line.extend(&batch[0], LONG_MS).await;
    line.acknowledge(&batch).await;
    subject
        .clock
        .sleep(Duration::from_millis(USED_MS * 3 / 2))
        .await;
    line.nothing("both were acknowledged").await;
}

/// Q3: the continuous poll misses nothing.
pub(super) async fn ready_wakes_for_a_send_a_release_and_a_timeout(subject: Subject) {
    let line = subject.patient("ready", USED_MS).await;
    let a_little = Duration::from_millis(20);
    let send = async {
        subject.clock.sleep(a_little).await;
        line.send("group", &["1"]).await;
    };
    let (first, ()) = join(line.one(), send).await;
    assert_eq!(first.handle.attempt, 1);
    assert_eq!(line.one().await.handle.attempt, 2, "after the timeout");

    let held = line.one().await;
    let release = async {
        subject.clock.sleep(a_little).await;
        line.release(&held, 0, "given back").await;
    };
    let (again, ()) = join(line.one(), release).await;
    assert_eq!(again.handle.attempt, held.handle.attempt + 1);

    line.send("another group", &["1"]).await;
    let ready = subject.queue.ready("ready");
    within(&*subject.clock, "ready, with a message there", ready)
        .await
        .expect("ready answers");
}

/// Q6.
pub(super) async fn a_stale_handle_acknowledges_nothing(subject: Subject) {
    let line = subject.patient("stale", LONG_MS).await;
    line.send("group", &["1", "2"]).await;
    let first = line.one().await;
    line.release(&first, 0, "again").await;
    let second = line.one().await;
    line.acknowledge(std::slice::from_ref(&first)).await;
    line.nothing("the message is with its second consumer")
        .await;
    line.release(&second, 0, "and again").await;
    let third = line.one().await;
    assert_eq!((text(&third.body), third.handle.attempt), ("1", 3));
    line.acknowledge(&[first, second]).await;
    line.acknowledge(std::slice::from_ref(&third)).await;
    line.acknowledge(&[third]).await;
    assert_eq!(
        text(&line.one().await.body),
        "2",
        "acknowledging twice does no harm"
    );
}
