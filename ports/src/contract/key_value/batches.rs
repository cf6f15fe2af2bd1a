//! Lanes of numbered batches: K7.

use bytes::Bytes;

use super::{Subject, key, refusal};
use crate::{
    ErrorKind, Key,
    contract::LOOK_AGAIN,
    key_value::{Action, Batch, Batched, Change},
};

impl Subject {
    async fn batch(&self, lane: &str, sequence: u64, changes: Vec<(Key, Change)>) -> Batched {
        let batch = Batch {
            lane: Bytes::copy_from_slice(lane.as_bytes()),
            sequence,
            changes,
        };
        self.store
            .write_batch(batch)
            .await
            .expect("write_batch answers")
    }

    /// The cursor with which the store refuses an early batch.
    async fn early(&self, lane: &str, sequence: u64, changes: Vec<(Key, Change)>) -> u64 {
        match self.batch(lane, sequence, changes).await {
            Batched::Early { cursor, .. } => cursor,
            batched => panic!("batch {sequence} of {lane} came early: {batched:?}"),
        }
    }
}

/// Adds one to a counter, and the batch's number to a list.
fn count(place: &Key, sequence: u64) -> Vec<(Key, Change)> {
    let element = Bytes::copy_from_slice(&sequence.to_be_bytes());
    let actions = vec![
        Action::Add("n".into(), 1),
        Action::Append("order".into(), vec![element]),
    ];
    vec![(place.clone(), Change::Modify(actions))]
}

/// K7.
pub(super) async fn a_lane_applies_its_batches_in_order_each_once(subject: Subject) {
    let (place, other) = (key("lane", "item"), key("another partition", "item"));
    assert_eq!(subject.early("lane", 2, count(&place, 2)).await, 0);
    assert_eq!(subject.get(&place).await, None);

    let mut both = count(&place, 1);
    both.push((other.clone(), Change::Put(vec![])));
    assert!(matches!(
        subject.batch("lane", 1, both.clone()).await,
        Batched::Done(_)
    ));
    assert!(matches!(
        subject.batch("lane", 1, both.clone()).await,
        Batched::Repeat(_)
    ));
    assert_eq!(subject.integer(&place, "n").await, Some(1));
    assert!(
        subject.get(&other).await.is_some(),
        "every change of a batch is applied"
    );

    assert_eq!(subject.early("lane", 3, count(&place, 3)).await, 1);
    assert!(matches!(
        subject
            .batch("lane", 2, vec![(other.clone(), Change::Delete)])
            .await,
        Batched::Done(_)
    ));
    assert!(matches!(
        subject.batch("lane", 3, count(&place, 3)).await,
        Batched::Done(_)
    ));
    for sequence in 1..=3 {
        assert!(matches!(
            subject.batch("lane", sequence, both.clone()).await,
            Batched::Repeat(_)
        ));
    }
    assert_eq!(
        (
            subject.integer(&place, "n").await,
            subject.get(&other).await
        ),
        (Some(2), None)
    );
    assert_eq!(subject.early("lane", 5, vec![]).await, 3);
    assert!(matches!(
        subject.batch("lane", 4, vec![]).await,
        Batched::Done(_)
    ));
    assert!(
        matches!(subject.batch("lane", 5, vec![]).await, Batched::Done(_)),
        "an empty one moves on too"
    );
    assert!(matches!(
        subject.batch("lane", 4, vec![]).await,
        Batched::Repeat(_)
    ));
}

/// K7.
pub(super) async fn changes_of_one_item_in_one_batch_are_made_one_after_the_other(
    subject: Subject,
) {
    let (place, gone) = (key("twice", "item"), key("twice", "gone"));
    let mut changes = [count(&place, 1), count(&place, 2)].concat();
    changes.extend(count(&gone, 1));
    changes.push((gone.clone(), Change::Delete));
    assert!(matches!(
        subject.batch("twice", 1, changes).await,
        Batched::Done(_)
    ));
    let item = subject.get(&place).await.expect("the item is there");
    let order = [1_u64, 2].map(|n| Bytes::copy_from_slice(&n.to_be_bytes()));
    assert_eq!(
        (item.integer("n"), item.list("order")),
        (Some(2), &order[..])
    );
    assert_eq!(subject.get(&gone).await, None);
}

/// K7.
pub(super) async fn lanes_do_not_wait_for_each_other(subject: Subject) {
    let place = key("lanes", "item");
    for (lane, sequences) in [("one", 1..=3), ("two", 1..=2)] {
        for sequence in sequences {
            let batched = subject.batch(lane, sequence, count(&place, sequence)).await;
            assert!(
                matches!(batched, Batched::Done(_)),
                "{lane} {sequence}: {batched:?}"
            );
        }
    }
    assert_eq!(subject.early("two", 4, vec![]).await, 2);
    assert_eq!(subject.integer(&place, "n").await, Some(5));
}

/// K7.
pub(super) async fn racing_repeats_of_one_batch_apply_once(subject: Subject) {
    let place = key("racing", "item");
    let answers = subject
        .together((0..32).map(|_| {
            let (subject, place) = (subject.clone(), place.clone());
            async move { subject.batch("racing", 1, count(&place, 1)).await }
        }))
        .await;
    let done = answers
        .iter()
        .filter(|answer| matches!(answer, Batched::Done(_)))
        .count();
    let repeats = answers
        .iter()
        .filter(|answer| matches!(answer, Batched::Repeat(_)))
        .count();
    assert_eq!((done, repeats), (1, 31));
    assert_eq!(subject.integer(&place, "n").await, Some(1));
}

/// K7.
pub(super) async fn batches_sent_out_of_order_are_applied_in_order(subject: Subject) {
    const BATCHES: u64 = 32;
    let place = key("pipeline", "item");
    subject
        .together((1..=BATCHES).rev().map(|sequence| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                while let Batched::Early { cursor, .. } = subject
                    .batch("pipeline", sequence, count(&place, sequence))
                    .await
                {
                    assert!(cursor + 1 < sequence, "it was next: {cursor} {sequence}");
                    subject.clock.sleep(LOOK_AGAIN).await;
                }
            }
        }))
        .await;
    let item = subject.get(&place).await.expect("the item is there");
    let order: Vec<Bytes> = (1..=BATCHES)
        .map(|n| Bytes::copy_from_slice(&n.to_be_bytes()))
        .collect();
    assert_eq!(
        (item.integer("n"), item.list("order")),
        (Some(BATCHES as i64), &order[..])
    );
}

/// K7, K3.
pub(super) async fn a_refused_batch_changes_nothing_and_keeps_its_place(subject: Subject) {
    let (place, text) = (key("refused", "item"), key("refused", "text"));
    subject
        .batch(
            "refused",
            1,
            vec![(text.clone(), Change::Modify(vec![Action::set("n", "text")]))],
        )
        .await;
    let mut misfit = count(&place, 2);
    misfit.extend(count(&text, 2));
    let limit = subject.store.limits().batch_items_max;
    let many = (0..=limit)
        .map(|n| (key("refused many", &n.to_string()), Change::Put(vec![])))
        .collect();
    for changes in [misfit, many] {
        let batch = Batch {
            lane: Bytes::from_static(b"refused"),
            sequence: 2,
            changes,
        };
        assert_eq!(
            refusal(subject.store.write_batch(batch).await),
            ErrorKind::Invalid
        );
        assert_eq!(subject.get(&place).await, None);
    }
    assert!(matches!(
        subject.batch("refused", 2, count(&place, 2)).await,
        Batched::Done(_)
    ));
    assert_eq!(subject.integer(&place, "n").await, Some(1));
}
