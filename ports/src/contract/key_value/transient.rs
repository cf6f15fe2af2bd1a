//! Transient updates without a crash: K10. The durability suite covers crashes.

use super::{Subject, key};
use crate::{
    Condition, Key, Update,
    contract::{WRITERS, within},
    key_value::{Action, OperationId, Scan, Transacted, Version},
};

fn add(place: &Key, amount: i64) -> Update {
    Update::modify(place.clone(), vec![Action::Add("n".into(), amount)])
}

/// K10, K1, K2, K9.
pub(super) async fn a_transient_update_is_visible_and_counts_like_any_other(subject: Subject) {
    let place = key("transient", "item");
    let made = subject
        .kept(add(&place, 1).when(Condition::Absent).transient())
        .await;
    assert_eq!(subject.get(&place).await, Some(made.clone()));
    assert_eq!(
        subject
            .pages(Scan::partition("transient", 10))
            .await
            .concat(),
        [(place.sort(), made.clone())]
    );
    let present = subject
        .conflict(add(&place, 1).when(Condition::Absent).transient())
        .await;
    assert_eq!(present, Some(made.clone()));

    let durable = subject
        .kept(add(&place, 10).when(Condition::VersionIs(made.version)))
        .await;
    assert!(durable.version > made.version);
    subject
        .conflict(
            add(&place, 1)
                .when(Condition::VersionIs(made.version))
                .transient(),
        )
        .await;
    let last = subject
        .kept(
            add(&place, 100)
                .when(Condition::VersionIs(durable.version))
                .transient(),
        )
        .await;
    assert!(last.version > durable.version);
    assert_eq!(last.integer("n"), Some(111));

    let beside = key("transient", "beside");
    let transacted = subject
        .transact(vec![
            add(&place, 1_000)
                .when(Condition::VersionIs(last.version))
                .transient(),
            add(&beside, 1),
        ])
        .await;
    assert!(
        matches!(transacted, Transacted::Done { .. }),
        "{transacted:?}"
    );
    assert_eq!(subject.integer(&place, "n").await, Some(1_111));
}

/// K10, K1.
pub(super) async fn a_transient_delete_is_visible_and_so_is_a_new_item(subject: Subject) {
    let (place, beside) = (key("transient", "item"), key("transient", "beside"));
    for place in [&place, &beside] {
        subject.done(add(place, 1)).await;
    }
    assert_eq!(
        subject
            .done(Update::delete(place.clone()).transient())
            .await,
        None
    );
    assert_eq!(subject.get(&place).await, None);
    let again = subject.kept(add(&place, 7).transient()).await;
    assert_eq!(again.integer("n"), Some(7));
    subject.done(Update::delete(place.clone())).await;
    assert_eq!(subject.get(&place).await, None);
    assert_eq!(
        subject
            .pages(Scan::partition("transient", 10))
            .await
            .concat()
            .len(),
        1
    );
}

/// K10, K8.
pub(super) async fn a_repeated_transient_operation_is_recognised_as_done(subject: Subject) {
    let place = key("transient operation", "item");
    let operation = add(&place, 1)
        .as_operation(OperationId(1), Version(0))
        .transient();
    for _ in 0..3 {
        subject.done(operation.clone()).await;
    }
    subject
        .done(Update {
            retention: crate::queue::Retention::Durable,
            ..operation
        })
        .await;
    assert_eq!(subject.integer(&place, "n").await, Some(1));
}

/// K10, K4.
pub(super) async fn transient_and_durable_updates_of_concurrent_writers_all_count(
    subject: Subject,
) {
    const UPDATES: i64 = 20;
    let place = key("transient counter", "item");
    subject
        .together((0..WRITERS).map(|writer| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                for update in 0..UPDATES {
                    let add = add(&place, 1);
                    let is_transient = (writer as i64 + update) % 2 == 0;
                    subject
                        .done(if is_transient { add.transient() } else { add })
                        .await;
                }
            }
        }))
        .await;
    assert_eq!(
        subject.integer(&place, "n").await,
        Some(WRITERS as i64 * UPDATES)
    );
}

/// K10: its point is like that of other updates. It covers the updates before it, and not the
/// transient one.
pub(super) async fn the_point_of_a_transient_update_covers_the_updates_before_it(subject: Subject) {
    let store = &subject.store;
    let (place, beside) = (
        key("transient points", "item"),
        key("transient points", "beside"),
    );
    let mut before = store.point();
    for _ in 0..10 {
        let durable = store
            .update(add(&beside, 1))
            .await
            .expect("update answers")
            .receipt
            .point;
        let transient = store
            .update(add(&place, 1).transient())
            .await
            .expect("update answers")
            .receipt
            .point;
        let read = store.get(&place).await.expect("get answers").point;
        assert!([before, durable, transient, read, store.point()].is_sorted());
        within(
            &*subject.clock,
            "the point of a transient update",
            store.externalize(transient),
        )
        .await
        .expect("externalize answers");
        assert!(store.is_durable(durable) && store.is_durable(transient));
        before = read;
    }
}
