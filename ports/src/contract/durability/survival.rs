//! Externalized changes survive a crash: D1.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::{future::join_all, poll};

use super::{Subject, eventually};
use crate::{
    Condition, DurabilityPoint, Key, Update,
    contract::pause,
    key_value::{Action, OperationId, Outcome, SharedKeyValue, Transacted, Version},
    objects::{ObjectError, ObjectPath, ObjectStoreExt, PutMode},
    queue::{Message, OnFailure, QueueOptions, SharedQueue},
};

/// How long a delivered message stays hidden in these cases. A crash may shorten this.
pub(super) const VISIBILITY_MS: u64 = 100;

/// Writes `n` under `place` and returns the update's point.
pub(super) async fn write(store: &SharedKeyValue, place: Key, n: i64) -> DurabilityPoint {
    let update = Update::modify(place, vec![Action::set_integer("n", n)]);
    store
        .update(update)
        .await
        .expect("update answers")
        .receipt
        .point
}

/// The number that [`write`] stored under `place`, if any.
pub(super) async fn read(store: &SharedKeyValue, place: &Key) -> Option<i64> {
    store
        .get(place)
        .await
        .expect("get answers")
        .value
        .and_then(|item| item.integer("n"))
}

/// The `n`th key of a series.
pub(super) fn nth(series: &str, n: i64) -> Key {
    Key::new(series, format!("{n:05}"))
}

/// D1.
pub(super) async fn externalized_changes_survive_a_crash(subject: Subject) {
    const EXTERNALIZED: i64 = 30;
    let mut subject = subject;
    for round in 0..4 {
        let series = format!("round {round}");
        let store = subject.key_value();
        let mut point = DurabilityPoint::DURABLE;
        for n in 0..EXTERNALIZED {
            point = write(&store, nth(&series, n), n * round).await;
            write(&store, nth("overwritten", n), round).await;
        }
        store
            .externalize(store.point())
            .await
            .expect("externalize answers");
        assert!(store.is_durable(point));
        for n in EXTERNALIZED..2 * EXTERNALIZED {
            write(&store, nth(&series, n), n).await;
        }
        drop(store);
        subject = subject.crash_and_reopen().await;
        let store = subject.key_value();
        for n in 0..EXTERNALIZED {
            for earlier in 0..=round {
                let place = nth(&format!("round {earlier}"), n);
                assert_eq!(
                    read(&store, &place).await,
                    Some(n * earlier),
                    "{place:?} after {round}"
                );
            }
            assert_eq!(read(&store, &nth("overwritten", n)).await, Some(round));
        }
    }
}

/// D1: with group commit, many callers wait for one flush.
pub(super) async fn each_of_many_concurrent_waiters_finds_its_own_write(subject: Subject) {
    let store = subject.key_value();
    let writers = (0..32).map(|writer| {
        let store = store.clone();
        async move {
            for n in 0..5 {
                let point = write(&store, nth(&format!("writer {writer}"), n), n).await;
                store.externalize(point).await.expect("externalize answers");
                assert!(store.is_durable(point));
            }
        }
    });
    join_all(writers).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    for writer in 0..32 {
        for n in 0..5 {
            assert_eq!(
                read(&store, &nth(&format!("writer {writer}"), n)).await,
                Some(n),
                "{writer} {n}"
            );
        }
    }
}

/// D1.
pub(super) async fn externalized_deletes_and_transactions_stay_done(subject: Subject) {
    let store = subject.key_value();
    for n in 0..3 {
        write(&store, nth("mixed", n), n).await;
    }
    store
        .update(Update::delete(nth("mixed", 0)))
        .await
        .expect("update answers");
    let transacted = store
        .transact(vec![
            Update::delete(nth("mixed", 1)),
            Update::modify(nth("mixed", 2), vec![Action::Add("n".into(), 10)]),
            Update::modify(nth("mixed", 3), vec![Action::Add("n".into(), 3)]),
        ])
        .await
        .expect("transact answers");
    let Transacted::Done { receipt, .. } = transacted else {
        panic!("{transacted:?}")
    };
    store
        .externalize(receipt.point)
        .await
        .expect("externalize answers");
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    for (n, expected) in [(0, None), (1, None), (2, Some(12)), (3, Some(3))] {
        assert_eq!(read(&store, &nth("mixed", n)).await, expected, "{n}");
    }
}

pub(super) fn message(body: &str) -> Message {
    Message {
        group: Bytes::from_static(b"group"),
        deduplication: Some(Bytes::copy_from_slice(body.as_bytes())),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub(super) fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Receives and acknowledges all messages, after those that an earlier start delivered are visible
/// again.
pub(super) async fn drain(subject: &Subject, queue: &SharedQueue, name: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    let clock = subject.clock();
    let mut idle_since = clock.monotonic();
    loop {
        // The last receive is after the wait, however long the wait took.
        let is_last =
            clock.monotonic().since(idle_since) >= Duration::from_millis(3 * VISIBILITY_MS);
        let deliveries = queue.receive(name, 10).await.expect("receive answers");
        if deliveries.is_empty() {
            if is_last {
                return bodies;
            }
            clock.sleep(Duration::from_millis(10)).await;
            continue;
        }
        bodies.extend(deliveries.iter().map(|delivery| text(&delivery.body)));
        let handles: Vec<_> = deliveries
            .into_iter()
            .map(|delivery| delivery.handle)
            .collect();
        queue
            .acknowledge(name, &handles)
            .await
            .expect("acknowledge answers");
        idle_since = clock.monotonic();
    }
}

pub(super) async fn create(
    queue: &SharedQueue,
    name: &str,
    attempts_max: u32,
    on_failure: OnFailure,
) {
    let options = QueueOptions {
        visibility_timeout_ms: VISIBILITY_MS,
        attempts_max,
        on_failure,
        ..QueueOptions::default()
    };
    queue.create(name, options).await.expect("create answers");
}

/// D1, Q3.
pub(super) async fn sent_messages_come_back_and_acknowledged_ones_do_not(subject: Subject) {
    let Some(queue) = subject.queue() else { return };
    create(&queue, "sent", 1_000, OnFailure::Block).await;
    let sent: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    queue
        .send("sent", sent.iter().map(|body| message(body)).collect())
        .await
        .expect("send answers");
    let batch = queue.receive("sent", 3).await.expect("receive answers");
    assert_eq!(batch.len(), 3);
    let handles: Vec<_> = batch.into_iter().map(|delivery| delivery.handle).collect();
    let done = queue
        .acknowledge("sent", &handles)
        .await
        .expect("acknowledge answers");
    let in_flight = queue.receive("sent", 2).await.expect("receive answers");
    assert_eq!(in_flight.len(), 2);
    queue
        .externalize(done.point)
        .await
        .expect("externalize answers");
    drop(queue);
    let subject = subject.crash_and_reopen().await;
    let queue = subject.queue().expect("it had queues before");
    queue
        .send("sent", vec![message("0"), message("last")])
        .await
        .expect("send answers");
    let mut expected = sent[3..].to_vec();
    expected.push("last".to_owned());
    assert_eq!(
        drain(&subject, &queue, "sent").await,
        expected,
        "in order, and no repeat of the first (Q4)"
    );
}

/// D1, Q5.
pub(super) async fn dead_letters_and_queue_options_survive_with_their_reasons(subject: Subject) {
    let Some(queue) = subject.queue() else { return };
    create(&queue, "letters", 1, OnFailure::DeadLetter).await;
    queue
        .send("letters", vec![message("one"), message("two")])
        .await
        .expect("send answers");
    let delivery = queue
        .receive("letters", 1)
        .await
        .expect("receive answers")
        .remove(0);
    queue
        .release("letters", &delivery.handle, 0, "before")
        .await
        .expect("release answers");
    queue
        .externalize(queue.point())
        .await
        .expect("externalize answers");
    drop(queue);
    let subject = subject.crash_and_reopen().await;
    let queue = subject.queue().expect("it had queues before");
    let clock = subject.clock();
    let second = eventually(&*clock, "the second message", async || {
        queue
            .receive("letters", 1)
            .await
            .expect("receive answers")
            .pop()
    })
    .await;
    assert_eq!(text(&second.body), "two");
    queue
        .release("letters", &second.handle, 0, "after")
        .await
        .expect("release answers");
    let admin = subject.queue_admin().expect("queues are administered");
    let letters = eventually(&*clock, "both dead letters", async || {
        let letters = admin
            .dead_letters("letters", None, 10)
            .await
            .expect("dead_letters answers");
        (letters.len() == 2).then_some(letters)
    })
    .await;
    let told: Vec<_> = letters
        .iter()
        .map(|letter| (text(&letter.body), letter.reason.as_str()))
        .collect();
    assert_eq!(
        told,
        [("one".to_owned(), "before"), ("two".to_owned(), "after")]
    );
}

/// D1, K8, K9.
pub(super) async fn remembered_operations_survive(subject: Subject) {
    let store = subject.key_value();
    let (place, gone) = (
        Key::new("operations", "item"),
        Key::new("operations", "gone"),
    );
    let add = |place: &Key, id| {
        let update = Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]);
        update
            .when(Condition::Absent)
            .as_operation(OperationId(id), Version(0))
    };
    store.update(add(&place, 1)).await.expect("update answers");
    let made = store
        .update(add(&gone, 2))
        .await
        .expect("update answers")
        .outcome;
    let Outcome::Done(Some(made)) = made else {
        panic!("{made:?}")
    };
    let delete = Update::delete(gone.clone()).as_operation(OperationId(3), made.version);
    let deleted = store.update(delete.clone()).await.expect("update answers");
    store
        .externalize(deleted.receipt.point)
        .await
        .expect("externalize answers");
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    let repeat = store
        .update(add(&place, 1))
        .await
        .expect("update answers")
        .outcome;
    assert!(
        matches!(&repeat, Outcome::Done(Some(item)) if item.integer("n") == Some(1)),
        "{repeat:?}"
    );
    let again = store
        .update(add(&gone, 4))
        .await
        .expect("update answers")
        .outcome;
    assert!(
        matches!(&again, Outcome::Done(Some(item)) if item.version > made.version),
        "{again:?}"
    );
    store.update(delete).await.expect("update answers");
    assert_eq!(
        read(&store, &gone).await,
        Some(1),
        "the repeated delete spares what was made since"
    );
}

/// D1, O1.
pub(super) async fn a_put_object_survives(subject: Subject) {
    let Some(objects) = subject.objects() else {
        return;
    };
    let (path, content) = (
        ObjectPath::from("kept/object"),
        Bytes::from(vec![7; 100_000]),
    );
    objects
        .put_opts(&path, content.clone().into(), PutMode::Create.into())
        .await
        .expect("create answers");
    drop(objects);
    let subject = subject.crash_and_reopen().await;
    let objects = subject.objects().expect("it had objects before");
    let found = objects.get(&path).await.expect("the object is there");
    assert_eq!(found.bytes().await.expect("it is read whole"), content);
}

/// D1, O5.
pub(super) async fn a_completed_upload_survives_and_no_other_is_shown(subject: Subject) {
    let Some(objects) = subject.objects().filter(|_| subject.takes_parts()) else {
        return;
    };
    let (path, left) = (
        ObjectPath::from("kept/upload"),
        ObjectPath::from("kept/left"),
    );
    let part = Bytes::from(vec![7; 100_000]);
    for (path, is_completed) in [(&path, true), (&left, false)] {
        let upload = objects.put_multipart(path).await;
        let mut upload = upload.expect("put_multipart answers");
        upload
            .put_part(part.clone().into())
            .await
            .expect("put_part answers");
        if is_completed {
            upload.complete().await.expect("complete answers");
        } else {
            // A crash gives it no time to clean up.
            std::mem::forget(upload);
        }
    }
    drop(objects);
    let subject = subject.crash_and_reopen().await;
    let objects = subject.objects().expect("it had objects before");
    let found = objects.get(&path).await.expect("the object is there");
    assert_eq!(found.bytes().await.expect("it is read whole"), part);
    assert!(
        matches!(objects.get(&left).await, Err(ObjectError::NotFound { .. })),
        "it was not completed"
    );
}

/// D1, O2: a caller that is told that an object exists may depend on it, even if its writer died
/// before the object was durable.
pub(super) async fn an_object_that_a_create_found_survives(subject: Subject) {
    const POLLS_MAX: usize = 6;
    let mut subject = subject;
    for polls in 1..=POLLS_MAX {
        let Some(objects) = subject.objects() else {
            return;
        };
        let (path, content) = (
            ObjectPath::from(format!("found/{polls}")),
            Bytes::from(vec![7; 10_000]),
        );
        let put = || objects.put_opts(&path, content.clone().into(), PutMode::Create.into());
        {
            let mut first = pin!(put());
            for _ in 0..polls {
                if poll!(&mut first).is_ready() {
                    break;
                }
                pause().await;
            }
        }
        match put().await {
            Ok(_) | Err(ObjectError::AlreadyExists { .. }) => {}
            Err(error) => panic!("create {path}: {error}"),
        }
        drop(objects);
        subject = subject.crash_and_reopen().await;
        let objects = subject.objects().expect("it had objects before");
        let found = objects.get(&path).await.expect("the object is there");
        assert_eq!(
            found.bytes().await.expect("it is read whole"),
            content,
            "{path}"
        );
    }
}
