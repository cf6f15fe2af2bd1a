//! The points of answers: D6.
//!
//! A case changes an item, requests an answer that depends on the change, externalizes only the
//! point of that answer, and crashes the store. The data that the answer showed must survive.
//! Otherwise a caller that retried an update, or lost to another writer, would pass on data that a
//! crash then takes.

use super::{
    Subject,
    survival::{create, drain, message, nth, read, text, write},
};
use crate::{
    Condition, DurabilityPoint, Key, Update,
    key_value::{
        Action, OperationId, Outcome, Scan, SharedKeyValue, Test, Transacted, Updated, Version,
    },
    queue::{OnFailure, QueueOptions, SharedQueue},
};

/// How often a case crashes the store: a crash may by chance keep data that was not durable.
const ROUNDS: i64 = 4;

/// Updates before each change that are not externalized, so that a crash which keeps some of them
/// takes the change.
const UNHEEDED: i64 = 9;

fn add(place: &Key) -> Update {
    Update::modify(place.clone(), vec![Action::Add("n".into(), 1)])
}

/// The addition as an operation whose repeat is recognised.
fn operation(place: &Key) -> Update {
    add(place).as_operation(OperationId(1), Version(0))
}

async fn update(store: &SharedKeyValue, update: Update) -> Updated {
    store.update(update).await.expect("update answers")
}

/// The point of an update that is done.
async fn done(store: &SharedKeyValue, asked: Update) -> DurabilityPoint {
    let updated = update(store, asked).await;
    assert!(matches!(updated.outcome, Outcome::Done(_)), "{updated:?}");
    updated.receipt.point
}

/// The point of a transaction that is done.
async fn transacted(store: &SharedKeyValue, updates: Vec<Update>) -> DurabilityPoint {
    match store.transact(updates).await.expect("transact answers") {
        Transacted::Done { receipt, .. } => receipt.point,
        conflict @ Transacted::Conflict { .. } => panic!("{conflict:?}"),
    }
}

/// Runs `change` and `ask` on an existing item, and checks D6 for the point of the second answer.
async fn covers(
    subject: Subject,
    change: impl AsyncFn(&SharedKeyValue, &Key) -> DurabilityPoint,
    ask: impl AsyncFn(&SharedKeyValue, &Key) -> DurabilityPoint,
) {
    let mut subject = subject;
    for round in 0..ROUNDS {
        let (place, store) = (nth("answers", round), subject.key_value());
        let before = write(&store, place.clone(), 1).await;
        store
            .externalize(before)
            .await
            .expect("externalize answers");
        for n in 0..UNHEEDED {
            write(&store, nth("unheeded", n), round).await;
        }
        let changed = change(&store, &place).await;
        let answered = ask(&store, &place).await;
        let seen = read(&store, &place).await;
        assert_ne!(seen, Some(1), "it was changed");
        assert!(
            answered >= changed,
            "{answered:?} does not cover {changed:?}"
        );
        store
            .externalize(answered)
            .await
            .expect("externalize answers");
        drop(store);
        subject = subject.crash_and_reopen().await;
        assert_eq!(
            read(&subject.key_value(), &place).await,
            seen,
            "{answered:?} in round {round}"
        );
    }
}

/// D6.
pub(super) async fn the_point_of_a_read_covers_what_it_saw(subject: Subject) {
    covers(
        subject,
        async |store, place| done(store, add(place)).await,
        async |store, place| {
            let got = store.get(place).await.expect("get answers");
            assert!(got.value.is_some());
            let scanned = store
                .scan(&Scan::partition("answers", 10))
                .await
                .expect("scan answers");
            assert!(!scanned.value.items.is_empty());
            got.point.min(scanned.point)
        },
    )
    .await;
}

/// D6.
pub(super) async fn the_point_of_a_read_that_finds_nothing_covers_the_deletion(subject: Subject) {
    covers(
        subject,
        async |store, place| done(store, Update::delete(place.clone())).await,
        async |store, place| {
            let got = store.get(place).await.expect("get answers");
            assert_eq!(got.value, None);
            let scan = Scan {
                from: place.sort(),
                ..Scan::partition("answers", 10)
            };
            let scanned = store.scan(&scan).await.expect("scan answers");
            assert!(scanned.value.items.is_empty(), "{scanned:?}");
            got.point.min(scanned.point)
        },
    )
    .await;
}

/// D6, K2.
pub(super) async fn the_point_of_a_conflict_covers_the_item_it_shows(subject: Subject) {
    covers(
        subject,
        async |store, place| done(store, add(place)).await,
        async |store, place| {
            let loser = add(place).when(Condition::attribute("n", Test::is_integer(1)));
            let updated = update(store, loser).await;
            assert!(
                matches!(updated.outcome, Outcome::Conflict(Some(_))),
                "{updated:?}"
            );
            updated.receipt.point
        },
    )
    .await;
}

/// D6, K8: the response to the first attempt was lost.
pub(super) async fn the_point_of_a_repeat_covers_the_first_attempt(subject: Subject) {
    let attempt = async |store: &SharedKeyValue, place: &Key| done(store, operation(place)).await;
    covers(subject, attempt, attempt).await;
}

/// D6, K8, K5.
pub(super) async fn the_point_of_a_repeated_transaction_covers_the_first_attempt(subject: Subject) {
    let attempt = async |store: &SharedKeyValue, place: &Key| {
        let beside = Key::new("answers", [&place.sort()[..], b" beside"].concat());
        transacted(store, vec![operation(place), operation(&beside)]).await
    };
    covers(subject, attempt, attempt).await;
}

/// D6.
pub(super) async fn the_point_of_an_update_that_changes_nothing_covers_what_it_saw(
    subject: Subject,
) {
    covers(
        subject,
        async |store, place| done(store, add(place)).await,
        async |store, place| done(store, Update::check(place.clone(), Condition::Exists)).await,
    )
    .await;
}

/// D6, K5.
pub(super) async fn the_point_of_a_transaction_that_changes_nothing_covers_what_it_saw(
    subject: Subject,
) {
    covers(
        subject,
        async |store, place| done(store, add(place)).await,
        async |store, place| {
            transacted(store, vec![Update::check(place.clone(), Condition::Exists)]).await
        },
    )
    .await;
}

/// D6, K5.
pub(super) async fn the_point_of_a_transactions_conflict_covers_the_item_it_shows(
    subject: Subject,
) {
    covers(
        subject,
        async |store, place| done(store, add(place)).await,
        async |store, place| {
            let loser = add(place).when(Condition::attribute("n", Test::is_integer(1)));
            let beside = Update::put(
                Key::new("answers", [&place.sort()[..], b" beside"].concat()),
                vec![],
            );
            match store
                .transact(vec![beside, loser])
                .await
                .expect("transact answers")
            {
                Transacted::Conflict {
                    index: 1, receipt, ..
                } => receipt.point,
                other => panic!("{other:?}"),
            }
        },
    )
    .await;
}

/// The point of a message sent to `name`.
async fn sent(queue: &SharedQueue, name: &str, body: &str) -> DurabilityPoint {
    queue
        .send(name, vec![message(body)])
        .await
        .expect("send answers")
        .point
}

/// D6.
pub(super) async fn the_point_of_a_queues_creation_covers_it(subject: Subject) {
    let mut subject = subject;
    for round in 0..ROUNDS {
        let Some(queue) = subject.queue() else { return };
        create(&queue, "earlier", 5, OnFailure::Block).await;
        let mut earlier = DurabilityPoint::DURABLE;
        for n in 0..UNHEEDED {
            earlier = sent(&queue, "earlier", &format!("{round} {n}")).await;
        }
        let name = format!("made {round}");
        let made = queue
            .create(&name, QueueOptions::default())
            .await
            .expect("create answers")
            .point;
        assert!(made >= earlier, "{made:?} after {earlier:?}");
        queue.externalize(made).await.expect("externalize answers");
        drop(queue);
        subject = subject.crash_and_reopen().await;
        let queue = subject.queue().expect("it had queues before");
        queue
            .send(&name, Vec::new())
            .await
            .expect("the queue is there");
    }
}

/// D6: another caller may have made the queue before.
pub(super) async fn the_point_of_a_repeated_creation_covers_the_first_one(subject: Subject) {
    let mut subject = subject;
    for round in 0..ROUNDS {
        let Some(queue) = subject.queue() else { return };
        create(&queue, "earlier", 5, OnFailure::Block).await;
        for n in 0..UNHEEDED {
            sent(&queue, "earlier", &format!("{round} {n}")).await;
        }
        let name = format!("made twice {round}");
        let made = queue
            .create(&name, QueueOptions::default())
            .await
            .expect("create answers")
            .point;
        let again = queue
            .create(&name, QueueOptions::default())
            .await
            .expect("create answers")
            .point;
        assert!(again >= made, "{again:?} does not cover {made:?}");
        queue.externalize(again).await.expect("externalize answers");
        drop(queue);
        subject = subject.crash_and_reopen().await;
        let queue = subject.queue().expect("it had queues before");
        queue
            .send(&name, Vec::new())
            .await
            .expect("the queue is there");
    }
}

/// D6, Q3: the response to the first attempt was lost.
pub(super) async fn the_point_of_a_repeated_acknowledgement_covers_the_first_one(subject: Subject) {
    let mut subject = subject;
    for round in 0..ROUNDS {
        let Some(queue) = subject.queue() else { return };
        let name = format!("acknowledged {round}");
        create(&queue, &name, 1_000, OnFailure::Block).await;
        create(&queue, "earlier", 5, OnFailure::Block).await;
        let before = sent(&queue, &name, "done").await;
        queue
            .externalize(before)
            .await
            .expect("externalize answers");
        let delivery = queue
            .receive(&name, 1)
            .await
            .expect("receive answers")
            .remove(0);
        for n in 0..UNHEEDED {
            sent(&queue, "earlier", &format!("{round} {n}")).await;
        }
        let handles = [delivery.handle];
        let done = queue
            .acknowledge(&name, &handles)
            .await
            .expect("acknowledge answers")
            .point;
        let again = queue
            .acknowledge(&name, &handles)
            .await
            .expect("acknowledge answers")
            .point;
        assert!(again >= done, "{again:?} does not cover {done:?}");
        queue.externalize(again).await.expect("externalize answers");
        drop(queue);
        subject = subject.crash_and_reopen().await;
        let queue = subject.queue().expect("it had queues before");
        sent(&queue, &name, "last").await;
        assert_eq!(
            drain(&subject, &queue, &name).await,
            ["last"],
            "round {round}"
        );
    }
}

/// D6, Q5.
pub(super) async fn the_point_of_a_release_covers_the_dead_letter_it_made(subject: Subject) {
    let mut subject = subject;
    for round in 0..ROUNDS {
        let Some(queue) = subject.queue() else { return };
        let name = format!("released {round}");
        create(&queue, &name, 1, OnFailure::DeadLetter).await;
        create(&queue, "earlier", 5, OnFailure::Block).await;
        sent(&queue, &name, "poison").await;
        let delivery = queue
            .receive(&name, 1)
            .await
            .expect("receive answers")
            .remove(0);
        let mut earlier = DurabilityPoint::DURABLE;
        for n in 0..UNHEEDED {
            earlier = sent(&queue, "earlier", &format!("{round} {n}")).await;
        }
        let released = queue.release(&name, &delivery.handle, 0, "failed").await;
        let released = released.expect("release answers").point;
        assert!(released >= earlier, "{released:?} after {earlier:?}");
        queue
            .externalize(released)
            .await
            .expect("externalize answers");
        drop(queue);
        subject = subject.crash_and_reopen().await;
        let admin = subject.queue_admin().expect("queues are administered");
        let letters = admin
            .dead_letters(&name, None, 10)
            .await
            .expect("dead_letters answers");
        let told: Vec<_> = letters
            .iter()
            .map(|letter| (text(&letter.body), letter.reason.as_str()))
            .collect();
        assert_eq!(told, [("poison".to_owned(), "failed")], "round {round}");
    }
}
