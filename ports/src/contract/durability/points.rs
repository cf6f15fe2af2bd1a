//! Points and prefixes: D1 to D4.

use super::{
    Subject,
    survival::{create, drain, message, nth, read, write},
};
use crate::{
    DurabilityPoint, ErrorKind, Incarnation, Position, Update,
    key_value::{Action, SharedKeyValue},
    queue::OnFailure,
};

/// How many writes a case makes before it crashes the store.
const WRITES: i64 = 200;

/// D1.
pub(super) async fn an_externalized_point_is_durable_and_so_are_all_before_it(subject: Subject) {
    let store = subject.key_value();
    let mut points = vec![store.point()];
    for n in 0..20 {
        points.push(write(&store, nth("points", n), n).await);
        assert!(
            points.is_sorted(),
            "points follow the order of updates: {points:?}"
        );
        assert!(store.point() >= *points.last().expect("there are some"));
    }
    let middle = points[10];
    store
        .externalize(middle)
        .await
        .expect("externalize answers");
    assert!(points[..=10].iter().all(|point| store.is_durable(*point)));
    store
        .externalize(points[3])
        .await
        .expect("a durable point returns at once");
    store
        .externalize(DurabilityPoint::DURABLE)
        .await
        .expect("the point before all others is durable");
    assert!(store.is_durable(DurabilityPoint::DURABLE));
}

/// D1: nor is a lost point ever called durable (D3).
pub(super) async fn changes_reported_as_durable_survive_a_crash(subject: Subject) {
    let mut subject = subject;
    for round in 0..3 {
        let (series, store) = (format!("called {round}"), subject.key_value());
        let mut points = Vec::new();
        for n in 0..WRITES {
            points.push(write(&store, nth(&series, n), n).await);
            if n == WRITES / 4 {
                store
                    .externalize(points[n as usize])
                    .await
                    .expect("externalize answers");
            }
        }
        let called: Vec<bool> = points
            .iter()
            .map(|point| store.is_durable(*point))
            .collect();
        assert!(
            called[..=WRITES as usize / 4].iter().all(|called| *called),
            "what was externalized is"
        );
        drop(store);
        subject = subject.crash_and_reopen().await;
        let store = subject.key_value();
        for (n, point) in points.into_iter().enumerate() {
            let is_there = read(&store, &nth(&series, n as i64)).await.is_some();
            assert!(
                is_there || !called[n],
                "{point:?} was called durable, and item {n} is lost"
            );
            assert!(
                is_there || !store.is_durable(point),
                "{point:?} is called durable, and item {n} is lost"
            );
        }
    }
}

/// How many of a series exist, counted from its start. Panics if one exists after a gap.
async fn prefix(store: &SharedKeyValue, series: &str) -> i64 {
    let mut survived = 0;
    for n in 0..WRITES {
        if let Some(found) = read(store, &nth(series, n)).await {
            assert_eq!(
                (found, n),
                (n, survived),
                "{series} {n} survived, {survived} did not"
            );
            survived += 1;
        }
    }
    survived
}

/// D2.
pub(super) async fn the_surviving_changes_are_a_prefix(subject: Subject) {
    let mut subject = subject;
    for round in 0..3 {
        let (series, store) = (format!("prefix {round}"), subject.key_value());
        for n in 0..WRITES {
            let point = write(&store, nth(&series, n), n).await;
            if n == WRITES / 4 {
                store.externalize(point).await.expect("externalize answers");
            }
        }
        drop(store);
        subject = subject.crash_and_reopen().await;
        let survived = prefix(&subject.key_value(), &series).await;
        assert!(
            survived > WRITES / 4,
            "only {survived} survived, more were externalized"
        );
    }
}

/// D2, K5.
pub(super) async fn no_transaction_survives_by_half(subject: Subject) {
    let store = subject.key_value();
    for n in 0..WRITES {
        let set = |series| Update::modify(nth(series, n), vec![Action::set_integer("n", n)]);
        let mut updates = vec![set("halves"), set("halves")];
        updates[1].key = nth("halves", WRITES + n);
        store.transact(updates).await.expect("transact answers");
        if n == WRITES / 2 {
            store
                .externalize(store.point())
                .await
                .expect("externalize answers");
        }
    }
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    let survived = prefix(&store, "halves").await;
    assert!(survived > WRITES / 2);
    for n in 0..WRITES {
        let other = read(&store, &nth("halves", WRITES + n)).await;
        assert_eq!(other.is_some(), n < survived, "half of transaction {n}");
    }
}

/// D2, Q7.
pub(super) async fn queue_and_store_survive_as_one_prefix_where_they_share_a_journal(
    subject: Subject,
) {
    let Some(queue) = subject
        .queue()
        .filter(|queue| queue.limits().shares_journal)
    else {
        return;
    };
    let store = subject.key_value();
    create(&queue, "prefix", 1_000, OnFailure::Block).await;
    for n in 0..WRITES {
        queue
            .send("prefix", vec![message(&n.to_string())])
            .await
            .expect("send answers");
        let point = write(&store, nth("beside", n), n).await;
        if n == WRITES / 4 {
            queue.externalize(point).await.expect("externalize answers");
        }
    }
    drop((queue, store));
    let subject = subject.crash_and_reopen().await;
    let queue = subject.queue().expect("it had queues before");
    let written = prefix(&subject.key_value(), "beside").await;
    let sent = drain(&subject, &queue, "prefix").await;
    let expected: Vec<String> = (0..sent.len()).map(|n| n.to_string()).collect();
    assert_eq!(sent, expected, "the messages are a prefix by themselves");
    let ahead = sent.len() as i64 - written;
    assert!(
        (0..=1).contains(&ahead),
        "{} messages beside {written} items",
        sent.len()
    );
    assert!(written > WRITES / 4);
}

/// D3 (rule P3).
pub(super) async fn an_old_point_is_lost_exactly_if_its_changes_are(subject: Subject) {
    let store = subject.key_value();
    let mut points = Vec::new();
    for n in 0..WRITES {
        points.push(write(&store, nth("old", n), n).await);
        if n == WRITES / 4 {
            store
                .externalize(points[n as usize])
                .await
                .expect("externalize answers");
        }
    }
    drop(store);
    let mut subject = subject.crash_and_reopen().await;
    for start in ["second", "third"] {
        let store = subject.key_value();
        for n in 0..2 * WRITES {
            write(&store, nth(start, n), n).await;
        }
        store
            .externalize(store.point())
            .await
            .expect("externalize answers");
        for (n, point) in points.iter().enumerate() {
            let is_there = read(&store, &nth("old", n as i64)).await.is_some();
            match store.externalize(*point).await {
                Ok(()) => assert!(
                    is_there,
                    "{point:?} is said to be durable, and item {n} is lost"
                ),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{point:?}: {error}");
                    assert!(
                        !is_there,
                        "{point:?} is said to be lost, and item {n} is there"
                    );
                }
            }
        }
        drop(store);
        subject = subject.crash_and_reopen().await;
    }
}

/// D3, D4: a point is as good as any other if its item was made and deleted again, although the
/// store keeps nothing of it.
pub(super) async fn no_crash_loses_a_point_of_changes_that_undo_each_other(subject: Subject) {
    const PAIRS: i64 = 20;
    let (mut subject, mut called) = (subject, Vec::new());
    for round in 0..3 {
        let store = subject.key_value();
        let beside = write(&store, nth("beside", round), round).await;
        // Any data that is kept with it would keep their points as well.
        store
            .externalize(beside)
            .await
            .expect("externalize answers");
        let mut points = Vec::new();
        for n in 0..PAIRS {
            points.push(write(&store, nth("undone", n), n).await);
            let deleted = store
                .update(Update::delete(nth("undone", n)))
                .await
                .expect("update answers");
            points.push(deleted.receipt.point);
        }
        store
            .externalize(points[PAIRS as usize])
            .await
            .expect("externalize answers");
        assert!(
            points[..=PAIRS as usize]
                .iter()
                .all(|point| store.is_durable(*point))
        );
        if round == 1 {
            store
                .externalize(store.point())
                .await
                .expect("externalize answers");
        }
        called.extend(points.into_iter().filter(|point| store.is_durable(*point)));
        drop(store);
        subject = subject.crash_and_reopen().await;
        let store = subject.key_value();
        for point in &called {
            let answer = store.externalize(*point).await;
            answer.unwrap_or_else(|error| panic!("{point:?} was called durable: {error}"));
            assert!(store.is_durable(*point), "{point:?}");
        }
        let last = *called.last().expect("some were called durable");
        let set = Update::modify(
            nth("dependent", round),
            vec![Action::set_integer("n", round)],
        );
        store
            .update(set.depends_on(last))
            .await
            .expect("its dependency is not lost");
    }
}

/// D3.
pub(super) async fn points_of_a_later_start_are_greater(subject: Subject) {
    let mut subject = subject;
    let mut last = DurabilityPoint::DURABLE;
    for round in 0..4 {
        let store = subject.key_value();
        let written = write(&store, nth("starts", round), round).await;
        assert!(
            written == DurabilityPoint::DURABLE || written > last,
            "{written:?} after {last:?}"
        );
        last = store.point().max(written);
        drop(store);
        subject = subject.crash_and_reopen().await;
    }
}

/// D4.
pub(super) async fn an_update_that_depends_on_a_lost_point_changes_nothing(subject: Subject) {
    let store = subject.key_value();
    let mut points = Vec::new();
    for n in 0..WRITES {
        points.push(write(&store, nth("basis", n), n).await);
        if n == WRITES / 4 {
            store
                .externalize(points[n as usize])
                .await
                .expect("externalize answers");
        }
    }
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    for n in 0..WRITES {
        let (basis, is_there) = (
            points[n as usize],
            read(&store, &nth("basis", n)).await.is_some(),
        );
        let set = |series| {
            Update::modify(nth(series, n), vec![Action::set_integer("n", n)]).depends_on(basis)
        };
        let error = store.update(set("alone")).await.err();
        assert_eq!(
            error.map(|error| error.kind()),
            (!is_there).then_some(ErrorKind::Lost),
            "{basis:?}"
        );
        assert_eq!(
            read(&store, &nth("alone", n)).await.is_some(),
            is_there,
            "{basis:?}"
        );
    }
}

/// D4, K5. It does not matter which of its updates names the point.
pub(super) async fn a_transaction_depends_on_the_points_of_all_its_updates(subject: Subject) {
    let store = subject.key_value();
    let lost = write(&store, nth("basis", 0), 0).await;
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.key_value();
    let is_there = read(&store, &nth("basis", 0)).await.is_some();
    for dependent in 0..3 {
        let key = |n| nth("together", 3 * dependent + n);
        let set = |n| Update::modify(key(n), vec![Action::set_integer("n", n)]);
        let mut updates: Vec<_> = (0..3).map(set).collect();
        updates[dependent as usize].depends_on = lost;
        let error = store.transact(updates).await.err();
        assert_eq!(
            error.map(|error| error.kind()),
            (!is_there).then_some(ErrorKind::Lost),
            "update {dependent} depends on {lost:?}"
        );
        for n in 0..3 {
            let is_made = read(&store, &key(n)).await.is_some();
            assert_eq!(is_made, is_there, "update {n}, {dependent} depends");
        }
    }
}

/// D4.
pub(super) async fn an_update_that_depends_on_an_unknown_start_changes_nothing(subject: Subject) {
    let store = subject.key_value();
    let now = write(&store, nth("never", 0), 0).await;
    if now == DurabilityPoint::DURABLE {
        return;
    }
    let basis = DurabilityPoint {
        incarnation: Incarnation(now.incarnation.0 + 1_000),
        position: Position(0),
    };
    let set = Update::modify(nth("never", 1), vec![Action::set_integer("n", 1)]).depends_on(basis);
    let error = store
        .update(set)
        .await
        .expect_err("the store knows of no such start");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(read(&store, &nth("never", 1)).await, None);
}
