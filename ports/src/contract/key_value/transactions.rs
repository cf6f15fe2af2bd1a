//! Several updates, all or none: K5.

use std::sync::Arc;

use super::{Subject, key, refusal};
use crate::{
    Condition, ErrorKind, Item, Key, Update,
    contract::{WRITERS, pause},
    key_value::{Action, Scan, Test, Transacted},
};

/// The first balance of each account of [`accounts`].
pub(super) const START: i64 = 100;

/// Makes `count` accounts of [`START`] each in one partition.
pub(super) async fn accounts(subject: &Subject, partition: &str, count: usize) -> Vec<Key> {
    let places: Vec<Key> = (0..count)
        .map(|n| key(partition, &format!("account {n}")))
        .collect();
    for place in &places {
        subject
            .done(Update::modify(
                place.clone(),
                vec![Action::set_integer("balance", START)],
            ))
            .await;
    }
    places
}

/// A transfer of `amount`, with the guarded debit first or last.
pub(super) fn transfer(from: &Key, to: &Key, amount: i64, debit_first: Order) -> Vec<Update> {
    let add = |place: &Key, amount| {
        Update::modify(place.clone(), vec![Action::Add("balance".into(), amount)])
    };
    let debit = add(from, -amount).when(Condition::attribute("balance", Test::Above(amount - 1)));
    match debit_first {
        Order::DebitFirst => vec![debit, add(to, amount)],
        Order::CreditFirst => vec![add(to, amount), debit],
    }
}

/// Which of a transfer's updates comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    DebitFirst,
    CreditFirst,
}

impl Order {
    /// One or the other in turn.
    pub(super) fn of(round: u64) -> Self {
        if round.is_multiple_of(2) {
            Self::DebitFirst
        } else {
            Self::CreditFirst
        }
    }
}

fn done(transacted: Transacted) -> Vec<Option<Arc<Item>>> {
    match transacted {
        Transacted::Done { items, .. } => items,
        Transacted::Conflict { index, item, .. } => {
            panic!("update {index} conflicts with {item:?}")
        }
    }
}

fn conflict(transacted: Transacted) -> (usize, Option<Arc<Item>>) {
    match transacted {
        Transacted::Conflict { index, item, .. } => (index, item),
        Transacted::Done { items, .. } => panic!("it was done, giving {items:?}"),
    }
}

/// K5.
pub(super) async fn a_transaction_applies_all_its_updates_or_none(subject: Subject) {
    let (one, two, gone) = (key("all", "one"), key("all", "two"), key("all", "gone"));
    let held = subject
        .kept(Update::modify(
            gone.clone(),
            vec![Action::set_integer("n", 1)],
        ))
        .await;
    let updates = |condition: Condition| {
        vec![
            Update::modify(one.clone(), vec![Action::Add("n".into(), 1)]),
            Update::delete(gone.clone()).when(condition),
            Update::put(two.clone(), vec![]).when(Condition::Absent),
        ]
    };
    let refused = subject.transact(updates(Condition::Absent)).await;
    assert_eq!(conflict(refused), (1, Some(held.clone())));
    assert_eq!(
        (subject.get(&one).await, subject.get(&two).await),
        (None, None)
    );
    assert_eq!(subject.get(&gone).await, Some(held));

    let items = done(subject.transact(updates(Condition::Exists)).await);
    assert_eq!(items.len(), 3);
    assert_eq!(
        items[0].as_ref().and_then(|item| item.integer("n")),
        Some(1)
    );
    assert_eq!((items[1].clone(), items[2].is_some()), (None, true));
    assert_eq!(
        items,
        vec![
            subject.get(&one).await,
            subject.get(&gone).await,
            subject.get(&two).await
        ]
    );

    let mut guarded = updates(Condition::Absent);
    guarded.truncate(1);
    guarded.push(Update::check(two.clone(), Condition::Absent));
    let refused = subject.transact(guarded).await;
    assert!(
        matches!(refused, Transacted::Conflict { index: 1, .. }),
        "a check counts: {refused:?}"
    );
    assert_eq!(subject.integer(&one, "n").await, Some(1));
}

/// K5, K3.
pub(super) async fn a_transaction_with_an_action_that_does_not_fit_changes_nothing(
    subject: Subject,
) {
    let (one, two) = (key("misfit", "one"), key("misfit", "two"));
    let made = subject
        .kept(Update::modify(two.clone(), vec![Action::set("text", "t")]))
        .await;
    let answer = subject
        .store
        .transact(vec![
            Update::modify(one.clone(), vec![Action::Add("n".into(), 1)]),
            Update::modify(two.clone(), vec![Action::Add("text".into(), 1)]),
        ])
        .await;
    assert_eq!(refusal(answer), ErrorKind::Invalid);
    assert_eq!(
        (subject.get(&one).await, subject.get(&two).await),
        (None, Some(made))
    );
}

/// K5, K3.
pub(super) async fn a_transaction_beyond_the_limits_is_refused_and_changes_nothing(
    subject: Subject,
) {
    let limits = *subject.store.limits();
    let touch = |place: Key| Update::modify(place, vec![Action::Add("n".into(), 1)]);
    let many = (0..=limits.transact_items_max)
        .map(|n| touch(key("beyond", &n.to_string())))
        .collect();
    let twice = vec![touch(key("beyond", "same")), touch(key("beyond", "same"))];
    for updates in [many, twice] {
        assert_eq!(
            refusal(subject.store.transact(updates).await),
            ErrorKind::Invalid
        );
    }
    if !limits.transact_across_partitions {
        let across = vec![
            touch(key("beyond", "a")),
            touch(key("beyond elsewhere", "a")),
        ];
        assert_eq!(
            refusal(subject.store.transact(across).await),
            ErrorKind::Invalid
        );
    }
    assert!(
        subject
            .pages(Scan::partition("beyond", 10))
            .await
            .concat()
            .is_empty()
    );

    let most = limits.transact_items_max.min(100);
    let items = done(
        subject
            .transact(
                (0..most)
                    .map(|n| touch(key("most", &n.to_string())))
                    .collect(),
            )
            .await,
    );
    assert_eq!(
        items.len(),
        most,
        "a transaction as large as the limit is done"
    );
}

/// K5, under concurrency.
pub(super) async fn money_moved_by_concurrent_transactions_is_neither_made_nor_lost(
    subject: Subject,
) {
    const ACCOUNTS: u64 = 6;
    let places = accounts(&subject, "money", ACCOUNTS as usize).await;
    subject
        .together((0..WRITERS).map(|writer| {
            let (subject, places) = (subject.clone(), places.clone());
            async move {
                for round in 0..6 {
                    let from = &places[((writer + round) % ACCOUNTS) as usize];
                    let to = &places[((writer * 5 + round * 3 + 1) % ACCOUNTS) as usize];
                    if from == to {
                        continue;
                    }
                    let (amount, order) = (30 + (writer % 50) as i64, Order::of(writer + round));
                    if let Transacted::Conflict { index, item, .. } =
                        subject.transact(transfer(from, to, amount, order)).await
                    {
                        assert_eq!(
                            index,
                            usize::from(order == Order::CreditFirst),
                            "the debit is refused"
                        );
                        let balance = item.and_then(|item| item.integer("balance"));
                        assert!(
                            balance.is_some_and(|balance| balance < amount),
                            "{balance:?} {amount}"
                        );
                    }
                    pause().await;
                }
            }
        }))
        .await;
    let mut total = 0;
    for place in &places {
        let balance = subject
            .integer(place, "balance")
            .await
            .expect("the account is there");
        assert!(balance >= 0, "{place:?} is overdrawn: {balance}");
        total += balance;
    }
    assert_eq!(total, START * ACCOUNTS as i64);
}

/// K5, K2: of two transactions that read the same versions, one is refused.
pub(super) async fn concurrent_transactions_over_the_same_items_take_turns(subject: Subject) {
    const TRANSACTIONS: i64 = 32;
    let places = accounts(&subject, "turns", 2).await;
    subject
        .together((0..TRANSACTIONS).map(|_| {
            let (subject, places) = (subject.clone(), places.clone());
            async move {
                for _ in 0..10_000 {
                    let mut updates = Vec::new();
                    for place in &places {
                        let item = subject.get(place).await.expect("the account is there");
                        let next = item.integer("balance").expect("it has a balance") + 1;
                        let set = vec![Action::set_integer("balance", next)];
                        let unchanged = Condition::VersionIs(item.version);
                        updates.push(Update::modify(place.clone(), set).when(unchanged));
                        pause().await;
                    }
                    if let Transacted::Done { .. } = subject.transact(updates).await {
                        return;
                    }
                }
                panic!("a transaction lost ten thousand times");
            }
        }))
        .await;
    for place in &places {
        assert_eq!(
            subject.integer(place, "balance").await,
            Some(START + TRANSACTIONS)
        );
    }
}

/// K5.
pub(super) async fn a_transaction_spans_partitions_where_limits_say_so(subject: Subject) {
    if !subject.store.limits().transact_across_partitions {
        return;
    }
    let (here, there) = (key("span here", "item"), key("span there", "item"));
    let add = |place: &Key| Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]);
    let refused = subject
        .transact(vec![add(&here), add(&there).when(Condition::Exists)])
        .await;
    assert_eq!(conflict(refused), (1, None));
    assert_eq!(
        (subject.get(&here).await, subject.get(&there).await),
        (None, None)
    );
    done(subject.transact(vec![add(&here), add(&there)]).await);
    assert_eq!(
        (
            subject.integer(&here, "n").await,
            subject.integer(&there, "n").await
        ),
        (Some(1), Some(1))
    );
}
