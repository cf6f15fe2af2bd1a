//! The cost of calls: K12.

use std::sync::Arc;

use bytes::Bytes;

use super::{Subject, key};
use crate::{
    Condition, Cost, Item, Key, Update,
    key_value::{Action, Batch, Batched, Change, OperationId, Outcome, Transacted, Version},
};

/// Adds one to a counter, and a byte to a text.
fn longer(place: &Key, text: &str) -> Update {
    let actions = vec![
        Action::Add("n".into(), 1),
        Action::set("text", text.to_owned()),
    ];
    Update::modify(place.clone(), actions)
}

fn read(item: Option<&Arc<Item>>) -> Cost {
    Cost {
        reads: 1,
        writes: 0,
        bytes: bytes(item),
    }
}

fn write(item: Option<&Arc<Item>>) -> Cost {
    Cost {
        reads: 0,
        writes: 1,
        bytes: bytes(item),
    }
}

fn bytes(item: Option<&Arc<Item>>) -> u64 {
    item.map_or(0, |item| item.bytes_len()) as u64
}

fn sum(costs: impl IntoIterator<Item = Cost>) -> Cost {
    let mut sum = Cost::default();
    costs.into_iter().for_each(|cost| sum += cost);
    sum
}

/// K12.
pub(super) async fn an_update_costs_a_write_or_a_read_if_it_changes_nothing(subject: Subject) {
    let (place, nothing) = (key("costs", "item"), key("costs", "nothing"));
    let cost = async |update: Update| {
        let updated = subject.store.update(update).await.expect("update answers");
        (updated.outcome, updated.receipt.cost)
    };
    let (_, made) = cost(longer(&place, "short")).await;
    assert_eq!(made, write(subject.get(&place).await.as_ref()), "made");
    let operation = longer(&place, "longer than it was").as_operation(OperationId(1), Version(0));
    let (_, changed) = cost(operation.clone()).await;
    let item = subject.get(&place).await;
    assert!(changed.bytes > made.bytes, "it has grown");
    assert_eq!(
        changed,
        write(item.as_ref()),
        "changed: as it is after that"
    );
    assert_eq!(cost(operation).await.1, read(item.as_ref()), "done before");
    let (outcome, refused) = cost(longer(&place, "").when(Condition::Absent)).await;
    assert!(matches!(outcome, Outcome::Conflict(Some(_))), "{outcome:?}");
    assert_eq!(refused, read(item.as_ref()), "refused");
    assert_eq!(
        cost(longer(&nothing, "").when(Condition::Exists)).await.1,
        read(None),
        "refused for nothing"
    );
    assert_eq!(
        cost(Update::check(place.clone(), Condition::Exists))
            .await
            .1,
        read(item.as_ref()),
        "a check"
    );
    assert_eq!(
        cost(Update::delete(nothing)).await.1,
        read(None),
        "nothing to delete"
    );
    let transient = Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]).transient();
    assert_eq!(
        cost(transient).await.1,
        write(subject.get(&place).await.as_ref()),
        "transient"
    );
    assert_eq!(cost(Update::delete(place)).await.1, write(None), "deleted");
}

/// K12.
pub(super) async fn a_transaction_costs_its_updates_and_a_refused_one_its_conflict(
    subject: Subject,
) {
    let (one, two) = (key("costs together", "one"), key("costs together", "two"));
    subject.done(longer(&one, "some text")).await;
    let checked = Update::check(one.clone(), Condition::Exists);
    match subject
        .transact(vec![checked, longer(&two, "other text")])
        .await
    {
        Transacted::Done { items, receipt } => {
            let [one, two] = &items[..] else {
                panic!("{items:?}")
            };
            assert_eq!(receipt.cost, sum([read(one.as_ref()), write(two.as_ref())]));
        }
        conflict @ Transacted::Conflict { .. } => panic!("{conflict:?}"),
    }
    let refused = longer(&two, "").when(Condition::Absent);
    match subject
        .transact(vec![longer(&one, "never written"), refused])
        .await
    {
        Transacted::Conflict {
            index: 1,
            item,
            receipt,
        } => {
            assert!(item.is_some());
            assert_eq!(
                receipt.cost,
                read(item.as_ref()),
                "the one that it is refused for"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// K12.
pub(super) async fn a_batch_costs_each_of_its_items_once_and_its_lanes_cursor(subject: Subject) {
    let place = |sort| key("costs of a batch", sort);
    let (changed, kept, made, absent) = (
        place("changed"),
        place("kept"),
        place("made"),
        place("absent"),
    );
    for place in [&changed, &kept] {
        subject.done(longer(place, "some text")).await;
    }
    let change = |place: &Key, text| (place.clone(), longer(place, text).change);
    let changes = vec![
        change(&changed, "first"),
        (kept.clone(), Change::Keep),
        change(&made, "made"),
        (absent.clone(), Change::Delete),
        change(&changed, "first and then"),
    ];
    let batch = async |sequence| {
        let batch = Batch {
            lane: Bytes::from_static(b"costs"),
            sequence,
            changes: changes.clone(),
        };
        subject
            .store
            .write_batch(batch)
            .await
            .expect("write_batch answers")
    };
    let Batched::Done(receipt) = batch(1).await else {
        panic!("it is the first")
    };
    let (mut items, mut cost) = (Vec::new(), sum([write(None), read(None)]));
    for place in [changed, made, kept] {
        items.push(subject.get(&place).await);
    }
    cost += sum([
        write(items[0].as_ref()),
        write(items[1].as_ref()),
        read(items[2].as_ref()),
    ]);
    assert_eq!(receipt.cost, cost, "the cursor is an item without bytes");
    let Batched::Repeat(receipt) = batch(1).await else {
        panic!("it is done")
    };
    assert_eq!(receipt.cost, read(None), "the cursor was looked at");
    let Batched::Early { receipt, .. } = batch(3).await else {
        panic!("the second one is missing")
    };
    assert_eq!(receipt.cost, read(None), "the cursor was looked at");
}
