//! A full store: K11.

use super::{Subject, key, refusal};
use crate::{ErrorKind, Update, contract::eventually, key_value::Action};

/// Enough to fill any disk that a test provides.
const FILLERS_MAX: usize = 10_000;

const FILLER_BYTES: usize = 20_000;

fn filler(number: usize) -> Update {
    let place = key("fillers", &format!("{number:05}"));
    Update::modify(place, vec![Action::set("data", vec![1; FILLER_BYTES])])
}

/// K11.
pub(super) async fn there_is_room_while_nothing_is_refused(subject: Subject) {
    for number in 0..20 {
        assert!(subject.store.has_room(), "before filler {number}");
        subject.done(filler(number)).await;
    }
    assert!(subject.store.has_room());
}

/// Fills the store until it refuses a filler, and returns that filler's number.
async fn fill(subject: &Subject) -> usize {
    for number in 0..FILLERS_MAX {
        match subject.store.update(filler(number)).await {
            Ok(_) => subject
                .store
                .externalize(subject.store.point())
                .await
                .expect("externalize answers"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                return number;
            }
        }
    }
    panic!("the disk is never full");
}

/// K11, K3, K10.
pub(super) async fn a_full_store_says_so_and_takes_updates_that_need_no_room(subject: Subject) {
    let store = &subject.store;
    let Some(disk) = subject.disk.as_ref().filter(|_| store.limits().tells_room) else {
        return;
    };
    let place = key("kept", "item");
    let add = || Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]);
    subject.done(add()).await;
    store
        .externalize(store.point())
        .await
        .expect("externalize answers");
    disk.fill();
    let refused = fill(&subject).await;
    assert!(
        !store.has_room(),
        "{refused} fillers were taken and one was refused"
    );
    for number in 0..=refused {
        let is_there = subject.get(&filler(number).key).await.is_some();
        assert_eq!(
            is_there,
            number < refused,
            "filler {number}; {refused} was refused"
        );
    }
    for n in 2..100 {
        assert_eq!(subject.kept(add().transient()).await.integer("n"), Some(n));
    }
    assert!(!store.has_room(), "as it was");
    disk.empty();
    eventually(
        &*subject.clock,
        "the store to notice that there is room",
        async || store.has_room().then_some(()),
    )
    .await;
    subject.done(filler(refused)).await;
    subject.done(add()).await;
    store
        .externalize(store.point())
        .await
        .expect("externalize answers");
    assert_eq!(subject.integer(&place, "n").await, Some(100));
}

/// K11, K3, P6.
pub(super) async fn a_full_store_refuses_every_kind_of_update(subject: Subject) {
    let store = &subject.store;
    let Some(disk) = subject.disk.as_ref().filter(|_| store.limits().tells_room) else {
        return;
    };
    let beside = key("kept", "item");
    disk.fill();
    let refused = fill(&subject).await;
    let both = || vec![Update::put(beside.clone(), vec![]), filler(refused)];
    assert_eq!(refusal(store.transact(both()).await), ErrorKind::NoRoom);
    for place in [&beside, &filler(refused).key] {
        assert_eq!(subject.get(place).await, None, "{place:?}");
    }
    disk.empty();
    eventually(
        &*subject.clock,
        "the store to notice that there is room",
        async || store.has_room().then_some(()),
    )
    .await;
    store.transact(both()).await.expect("there is room again");
    assert!(subject.get(&beside).await.is_some());
}
