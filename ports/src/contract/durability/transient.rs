//! The effect of a crash on transient updates: D5.

use std::sync::Arc;

use super::{
    Subject,
    survival::{VISIBILITY_MS, drain, message, nth, read},
};
use crate::{
    Item, Key, Update,
    key_value::{Action, OperationId, Outcome, SharedKeyValue, Version},
    queue::{QueueOptions, Retention},
};

fn add(place: &Key, amount: i64) -> Update {
    Update::modify(place.clone(), vec![Action::Add("n".into(), amount)])
}

async fn done(store: &SharedKeyValue, update: Update) -> Option<Arc<Item>> {
    match store.update(update).await.expect("update answers").outcome {
        Outcome::Done(item) => item,
        Outcome::Conflict(item) => panic!("it conflicts with {item:?}"),
    }
}

async fn settle(store: &SharedKeyValue) {
    store
        .externalize(store.point())
        .await
        .expect("externalize answers");
}

/// The version and the number of the item under `place`.
async fn state(store: &SharedKeyValue, place: &Key) -> Option<(u64, i64)> {
    let item = store.get(place).await.expect("get answers").value?;
    Some((item.version.0, item.integer("n").expect("it has a number")))
}

/// D5, D1.
pub(super) async fn a_crash_takes_nothing_but_transient_updates(subject: Subject) {
    let mut subject = subject;
    let (place, beside) = (nth("transient", 0), nth("transient", 1));
    for round in 1..=3 {
        let store = subject.key_value();
        done(&store, add(&place, 100)).await;
        settle(&store).await;
        let (version, n) = state(&store, &place).await.expect("it was made");
        for _ in 0..10 {
            done(&store, add(&place, 1).transient()).await;
        }
        done(&store, add(&beside, 1)).await;
        settle(&store).await;
        drop(store);
        subject = subject.crash_and_reopen().await;
        let store = subject.key_value();
        let (kept_version, kept) = state(&store, &place)
            .await
            .expect("the durable update is there");
        assert!(
            (n..=n + 10).contains(&kept),
            "round {round}: {kept} is no state it was in since {n}"
        );
        assert_eq!(
            kept_version - version,
            (kept - n) as u64,
            "round {round}: whole updates"
        );
        assert_eq!(
            read(&store, &beside).await,
            Some(round),
            "what was ordered later is durable"
        );
    }
}

/// D5, D1.
pub(super) async fn a_durable_change_makes_transient_ones_before_it_durable(subject: Subject) {
    let mut subject = subject;
    let (mut expected, mut last) = (0, Version(0));
    let place = nth("along", 0);
    for round in 0..3 {
        let store = subject.key_value();
        for amount in [1, 10] {
            done(&store, add(&place, amount).transient()).await;
        }
        if round == 1 {
            settle(&store).await;
        }
        last = done(&store, add(&place, 100))
            .await
            .expect("it is there")
            .version;
        expected += 111;
        settle(&store).await;
        drop(store);
        subject = subject.crash_and_reopen().await;
        assert_eq!(
            state(&subject.key_value(), &place).await,
            Some((last.0, expected)),
            "round {round}"
        );
    }
    let store = subject.key_value();
    done(&store, add(&place, 1).transient()).await;
    done(&store, Update::delete(place.clone())).await;
    settle(&store).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    assert_eq!(state(&store, &place).await, None, "{last:?} was deleted");
}

/// D5.
pub(super) async fn an_item_made_by_a_transient_update_is_whole_or_gone(subject: Subject) {
    let store = subject.key_value();
    for n in 0..10 {
        let both = vec![
            Action::set_integer("n", n),
            Action::set_integer("twice", 2 * n),
        ];
        done(&store, Update::modify(nth("made", n), both).transient()).await;
        if n % 2 == 0 {
            done(&store, Update::delete(nth("made", n))).await;
        }
    }
    settle(&store).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    for n in 0..10 {
        let Some(item) = store.get(&nth("made", n)).await.expect("get answers").value else {
            continue;
        };
        assert_eq!(
            (item.integer("n"), item.integer("twice")),
            (Some(n), Some(2 * n))
        );
        assert!(n % 2 == 1, "{n} was deleted for good");
    }
}

/// D5, K10, K5.
pub(super) async fn a_transient_update_in_a_transaction_survives_with_it(subject: Subject) {
    let store = subject.key_value();
    let (left, right) = (nth("pair", 0), nth("pair", 1));
    done(&store, add(&left, 1).transient()).await;
    store
        .transact(vec![add(&left, 10).transient(), add(&right, 10)])
        .await
        .expect("transact answers");
    settle(&store).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    assert_eq!(
        (read(&store, &left).await, read(&store, &right).await),
        (Some(11), Some(10))
    );
}

/// D5, K10, K8: otherwise its repeat would be recognised as done.
pub(super) async fn a_transient_operation_is_forgotten_with_what_it_did(subject: Subject) {
    let store = subject.key_value();
    let place = nth("operation", 0);
    let operation = add(&place, 1)
        .as_operation(OperationId(1), Version(0))
        .transient();
    done(&store, operation.clone()).await;
    settle(&store).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    done(&store, operation).await;
    assert_eq!(read(&store, &place).await, Some(1));
}

/// D5, Q4: otherwise a message that its sender must send again would be dropped as a duplicate.
pub(super) async fn a_transient_message_is_forgotten_with_its_id(subject: Subject) {
    let mut subject = subject;
    let options = QueueOptions {
        visibility_timeout_ms: VISIBILITY_MS,
        retention: Retention::Transient,
        ..QueueOptions::default()
    };
    for round in 0..3 {
        let Some(queue) = subject.queue() else { return };
        queue
            .create("transient", options.clone())
            .await
            .expect("create answers");
        let (last, next) = (format!("{round}"), format!("{}", round + 1));
        queue
            .send("transient", vec![message(&last), message(&next)])
            .await
            .expect("send answers");
        queue
            .externalize(queue.point())
            .await
            .expect("externalize answers");
        drop(queue);
        subject = subject.crash_and_reopen().await;
        let queue = subject.queue().expect("it had queues before");
        let mut arrived = drain(&subject, &queue, "transient").await;
        queue
            .send("transient", vec![message(&next)])
            .await
            .expect("send answers");
        arrived.extend(drain(&subject, &queue, "transient").await);
        assert_eq!(
            arrived.last(),
            Some(&next),
            "round {round}: taken by the crash and sent again"
        );
    }
}
