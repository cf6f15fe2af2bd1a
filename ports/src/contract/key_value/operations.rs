//! Repeats and versions: K8 and K9.

use super::{Subject, key, refusal};
use crate::{
    Condition, ErrorKind, Key, Update,
    key_value::{Action, OperationId, Outcome, Transacted, Version},
};

/// The version of a missing item.
const NONE: Version = Version(0);

fn add(place: &Key) -> Update {
    Update::modify(place.clone(), vec![Action::Add("n".into(), 1)])
}

impl Subject {
    /// `count` updates by other writers, each an operation of its own.
    async fn others(&self, place: &Key, first_id: u128, count: usize) {
        for id in (first_id..).take(count) {
            let known = self.get(place).await.map_or(NONE, |item| item.version);
            let other = Update::modify(place.clone(), vec![Action::Add("others".into(), 1)]);
            self.done(other.as_operation(OperationId(id), known)).await;
        }
    }
}

/// K8.
pub(super) async fn a_repeat_is_recognised_as_done_and_changes_nothing(subject: Subject) {
    let place = key("repeat", "item");
    let create = add(&place)
        .when(Condition::Absent)
        .as_operation(OperationId(1), NONE);
    let made = subject.kept(create.clone()).await;
    assert_eq!(
        subject.done(create.clone()).await,
        Some(made.clone()),
        "not a conflict: it was done"
    );
    assert_eq!(subject.get(&place).await, Some(made.clone()));

    let next = add(&place).when(Condition::VersionIs(made.version));
    let next = next.as_operation(OperationId(2), made.version);
    subject.done(next.clone()).await;
    let plain = subject.kept(add(&place)).await;
    for repeat in [create, next] {
        assert_eq!(
            subject.done(repeat).await,
            Some(plain.clone()),
            "the item as it is now"
        );
    }
    assert_eq!(plain.integer("n"), Some(3));
    let other = add(&place)
        .when(Condition::Absent)
        .as_operation(OperationId(3), NONE);
    assert_eq!(
        subject.conflict(other).await,
        Some(plain),
        "another operation is not recognised"
    );
}

/// K8.
pub(super) async fn a_repeat_is_recognised_after_as_many_others_as_are_remembered(
    subject: Subject,
) {
    let remembered = subject.store.limits().operations_remembered;
    assert!(
        remembered >= 64,
        "an item remembers at least 64 operations, not {remembered}"
    );
    let place = key("remembered", "item");
    let operation = add(&place).as_operation(OperationId(1), NONE);
    subject.done(operation.clone()).await;
    subject.others(&place, 100, remembered - 1).await;
    subject.done(operation).await;
    let item = subject.get(&place).await.expect("the item is there");
    assert_eq!(
        (item.integer("n"), item.integer("others")),
        (Some(1), Some(remembered as i64 - 1))
    );
}

/// K8: between attempt and repeat, more writers come than the item remembers ids (rule P2).
pub(super) async fn a_repeat_older_than_the_memory_stays_unknown_and_changes_nothing(
    subject: Subject,
) {
    let remembered = subject.store.limits().operations_remembered;
    let place = key("forgotten", "item");
    let before = subject
        .kept(Update::put(place.clone(), vec![]))
        .await
        .version;
    let done = add(&place)
        .when(Condition::VersionIs(before))
        .as_operation(OperationId(1), before);
    subject.done(done.clone()).await;
    subject.others(&place, 100, remembered + 8).await;
    let present = subject.get(&place).await.expect("the item is there");

    let never_arrived = add(&place)
        .when(Condition::Absent)
        .as_operation(OperationId(2), before);
    for repeat in [done, never_arrived] {
        let answer = subject.store.update(repeat.clone()).await;
        assert_eq!(refusal(answer), ErrorKind::OutcomeUnknown);
        let answer = subject
            .store
            .transact(vec![add(&key("forgotten", "other")), repeat])
            .await;
        assert_eq!(refusal(answer), ErrorKind::OutcomeUnknown);
    }
    assert_eq!(subject.get(&place).await, Some(present.clone()));
    assert_eq!(subject.get(&key("forgotten", "other")).await, None);

    let fresh = add(&place).as_operation(OperationId(3), present.version);
    assert_eq!(
        subject.kept(fresh).await.integer("n"),
        Some(2),
        "who knows the present item goes on"
    );
}

/// K8, K9.
pub(super) async fn a_repeated_delete_spares_what_was_made_since(subject: Subject) {
    let place = key("spared", "item");
    let made = subject
        .kept(add(&place).as_operation(OperationId(1), NONE))
        .await;
    let delete = Update::delete(place.clone()).when(Condition::VersionIs(made.version));
    let delete = delete.as_operation(OperationId(2), made.version);
    assert_eq!(subject.done(delete.clone()).await, None);
    assert_eq!(subject.done(delete.clone()).await, None);
    let again = subject
        .kept(
            add(&place)
                .when(Condition::Absent)
                .as_operation(OperationId(3), NONE),
        )
        .await;
    assert_eq!(subject.done(delete).await, Some(again.clone()));
    assert_eq!(subject.get(&place).await, Some(again));
}

/// K8.
pub(super) async fn racing_attempts_of_one_operation_apply_once(subject: Subject) {
    let place = key("attempts", "item");
    let outcomes = subject
        .together((0..32).map(|_| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                subject
                    .update(add(&place).as_operation(OperationId(1), NONE))
                    .await
            }
        }))
        .await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Done(Some(_)))),
        "{outcomes:?}"
    );
    assert_eq!(subject.integer(&place, "n").await, Some(1));
}

/// K8.
pub(super) async fn a_refused_operation_is_not_remembered(subject: Subject) {
    let place = key("refused operation", "item");
    let operation = add(&place)
        .when(Condition::Exists)
        .as_operation(OperationId(1), NONE);
    assert_eq!(subject.conflict(operation.clone()).await, None);
    subject.done(Update::put(place.clone(), vec![])).await;
    assert_eq!(subject.kept(operation).await.integer("n"), Some(1));
}

/// K8, K5.
pub(super) async fn a_repeated_transaction_is_recognised_as_done(subject: Subject) {
    let places = [key("repeated", "one"), key("repeated", "two")];
    let updates: Vec<Update> = places
        .iter()
        .map(|place| {
            add(place)
                .when(Condition::Absent)
                .as_operation(OperationId(1), NONE)
        })
        .collect();
    for attempt in 0..3 {
        let transacted = subject.transact(updates.clone()).await;
        let Transacted::Done { items, .. } = transacted else {
            panic!("attempt {attempt}: {transacted:?}");
        };
        assert_eq!(
            items,
            vec![subject.get(&places[0]).await, subject.get(&places[1]).await]
        );
        for place in &places {
            assert_eq!(subject.integer(place, "n").await, Some(1));
        }
    }
}

/// K9.
pub(super) async fn a_version_grows_with_every_change(subject: Subject) {
    let place = key("grows", "item");
    let mut last = NONE;
    for round in 0..5 {
        for update in [
            add(&place),
            Update::put(place.clone(), vec![]),
            Update::modify(place.clone(), vec![]),
        ] {
            let version = subject.kept(update).await.version;
            assert!(version > last, "round {round}: {version:?} after {last:?}");
            last = version;
        }
        let checked = subject
            .kept(Update::check(place.clone(), Condition::Exists))
            .await
            .version;
        assert_eq!(checked, last, "a check is no change");
        let read = subject
            .get(&place)
            .await
            .expect("the item is there")
            .version;
        assert_eq!(read, last);
    }
}

/// K9: otherwise a repeat, or a paused holder of the old version, would mistake the new item for
/// the old one.
pub(super) async fn a_version_does_not_go_back_when_the_item_is_made_again(subject: Subject) {
    let place = key("again", "item");
    let mut last = NONE;
    for round in 0..4_u128 {
        let id = |step: u128| OperationId(round * 10 + step);
        let made = subject
            .kept(
                add(&place)
                    .when(Condition::Absent)
                    .as_operation(id(1), last),
            )
            .await;
        assert!(
            made.version > last,
            "round {round}: {:?} after {last:?}",
            made.version
        );
        let changed = subject
            .kept(add(&place).as_operation(id(2), made.version))
            .await;
        let stale = add(&place).when(Condition::VersionIs(last));
        assert_eq!(subject.conflict(stale).await, Some(changed.clone()));
        subject
            .done(Update::delete(place.clone()).as_operation(id(3), changed.version))
            .await;
        last = changed.version;
    }
}
