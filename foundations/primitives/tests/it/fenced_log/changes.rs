//! S16: changes that are made together with a slot.

use bytes::Bytes;
use ports::{
    Condition, ErrorKind, Key, KeyValue, Update,
    key_value::{Action, Transacted},
};
use primitives::{Appended, Cursor, SlotIndex};
use simulated::{Chance, World, run};

use super::{log, payloads};

fn row() -> Key {
    Key::new("rows", "row")
}

fn create(value: i64) -> Update {
    Update::modify(row(), vec![Action::set_integer("n", value)]).when(Condition::Absent)
}

async fn value(store: &dyn KeyValue) -> Option<i64> {
    store
        .get(&row())
        .await
        .expect("calm")
        .value
        .and_then(|item| item.integer("n"))
}

/// S16, S11.
#[test]
fn changes_are_made_with_their_slot_or_not_at_all() {
    run(async {
        let world = World::new(1);
        let (log, store) = (log(&world), world.key_value());
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        let done = writer
            .append_with(Bytes::from_static(b"a"), vec![create(1)])
            .await
            .expect("calm");
        assert_eq!(done.map(|(slot, _)| slot), Some(SlotIndex(2)));
        assert_eq!(value(&*store).await, Some(1));
        // The row is there by now: neither it nor the slot is written.
        let refused = writer
            .append_with(Bytes::from_static(b"b"), vec![create(2)])
            .await
            .expect("calm");
        assert_eq!(refused, None);
        assert_eq!(
            (payloads(&log, Cursor::START).await, value(&*store).await),
            (vec!["a".to_owned()], Some(1))
        );
        let after = writer.append(Bytes::from_static(b"c")).await.expect("calm");
        assert!(
            matches!(after, Appended::At(SlotIndex(3), _)),
            "the slot is free: {after:?}"
        );
    });
}

/// S16, S10.
#[test]
fn a_fenced_writer_changes_nothing() {
    run(async {
        let world = World::new(1);
        let (log, store) = (log(&world), world.key_value());
        let (mut first, _) = log.take_over(Cursor::START).await.expect("calm");
        let (_second, _) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(
            first
                .append_with(Bytes::from_static(b"a"), vec![create(1)])
                .await
                .expect("calm"),
            None
        );
        assert_eq!(
            first.append(Bytes::from_static(b"a")).await.expect("calm"),
            Appended::Fenced
        );
        assert_eq!(value(&*store).await, None);
    });
}

/// S16: once the slot exists, it is known permanently whether the changes were made. It exists
/// once.
#[test]
fn changes_whose_answer_was_lost_are_settled_with_their_slot() {
    run(async {
        let world = World::new(1);
        let (log, store) = (log(&world), world.key_value());
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        world.faults().lose_answer(Chance::ALWAYS);
        let error = writer
            .append_with(Bytes::from_static(b"a"), vec![create(1)])
            .await
            .expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        world.faults().calm();
        let next = writer
            .append_with(Bytes::from_static(b"b"), vec![create(2)])
            .await
            .expect("calm");
        assert_eq!(next, None, "first the one before it");
        assert!(matches!(
            writer.settle().await.expect("calm"),
            Some(Appended::At(SlotIndex(2), _))
        ));
        assert_eq!(
            (payloads(&log, Cursor::START).await, value(&*store).await),
            (vec!["a".to_owned()], Some(1))
        );
    });
}

/// S16: the slot was filled without them, and then they arrive.
#[test]
fn changes_that_arrive_behind_their_slot_are_refused() {
    run(async {
        let world = World::new(1);
        let (log, store) = (log(&world), world.key_value());
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        // The transaction in flight, as `append_with` sends it.
        let slot = Key::new("log", [b"s".as_slice(), &2_u64.to_be_bytes()].concat());
        let filling =
            Update::modify(slot, vec![Action::set_integer("epoch", 1)]).when(Condition::Absent);
        let late = vec![filling, create(1)];
        let filled = writer.append(Bytes::from_static(b"a")).await.expect("calm");
        assert!(matches!(filled, Appended::At(SlotIndex(2), _)));
        let arrived = store.transact(late).await.expect("calm");
        assert!(
            matches!(arrived, Transacted::Conflict { index: 0, .. }),
            "{arrived:?}"
        );
        assert_eq!(value(&*store).await, None);
    });
}
