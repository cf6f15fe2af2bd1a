//! The reserve: which changes may use it when the disk is full (rule P6).

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use embedded::{Capacity, Embedded};
use ports::{
    ErrorKind, KeyValue, Update,
    key_value::{self, Action, OperationId, Transacted, Version},
};

use crate::{
    room::{faulty, fill, filler, space_returns},
    world::{block_on, directory, durably, found, key, put, settle, value},
};

/// P6.
#[test]
fn a_caller_with_the_reserve_goes_on_when_others_are_refused_until_it_is_used_up() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, reserved) = (store.key_value(), store.key_value_with_reserve());
        assert_eq!(reserved.room(), key_value::Room::Free);
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        let written = fill(&kv).await;
        assert_eq!(reserved.room(), key_value::Room::Scarce);
        for session in 0..5 {
            durably(&reserved, put(&format!("session-{session}"), 1)).await;
        }
        let both = vec![put("session-5", 1), put("session-6", 1)];
        let transacted = reserved
            .transact(both)
            .await
            .expect("the reserve takes transactions");
        assert!(matches!(transacted, Transacted::Done { .. }));
        let refused = kv
            .update(filler(written))
            .await
            .expect_err("others are still refused");
        assert_eq!(refused.kind(), ErrorKind::NoRoom);

        let used_up = fill(&reserved).await;
        assert_eq!(reserved.room(), key_value::Room::Exhausted);
        assert_eq!(value(&kv, "session-6").await, Some(1));
        faults.capacity.store(0, Ordering::SeqCst);
        found("the store asks the disk again", async || {
            (reserved.room() == key_value::Room::Free).then_some(())
        })
        .await;
        assert_ne!(store.status().room, Capacity::Refusing);
        space_returns(&kv, used_up).await;
    });
}

/// Sets `bytes` of data under `name`.
fn set(name: &str, bytes: usize) -> Update {
    Update::modify(
        key(name),
        vec![Action::set("data", Bytes::from(vec![1; bytes]))],
    )
}

/// Fills the disk up to the reserve. A small write fills the rest that the last filler did not fit
/// in.
async fn fill_to_the_reserve(kv: &Arc<dyn KeyValue>) {
    fill(kv).await;
    for number in 0..10_000 {
        match kv.update(put(&format!("little-{number}"), 1)).await {
            Ok(_) => settle(kv).await,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                return;
            }
        }
    }
    panic!("the disk never filled");
}

async fn is_refused(kv: &Arc<dyn KeyValue>, update: Update) {
    let refused = kv
        .update(update.clone())
        .await
        .expect_err("it frees too little");
    assert_eq!(refused.kind(), ErrorKind::NoRoom, "{refused}");
    let refused = kv
        .transact(vec![update])
        .await
        .expect_err("it frees too little");
    assert_eq!(refused.kind(), ErrorKind::NoRoom, "{refused}");
}

/// P6: a small value frees less than the journal takes for its key and the item's operation memory.
#[test]
fn a_change_that_frees_less_than_it_takes_in_the_journal_may_not_use_the_reserve() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        let long = "k".repeat(1_000);
        for (name, bytes) in [
            (&long[..], 400),
            ("remembers", 150),
            ("large", 10_000),
            ("long-gone", 10),
        ] {
            durably(&kv, set(name, bytes)).await;
        }
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        fill_to_the_reserve(&kv).await;
        let operation = OperationId(u128::MAX);
        for update in [
            set(&long, 1),
            set("remembers", 1).as_operation(operation, Version(0)),
        ] {
            is_refused(&kv, update).await;
        }
        durably(&kv, set("large", 1_000)).await;
        durably(
            &kv,
            Update::delete(key("long-gone")).as_operation(operation, Version(0)),
        )
        .await;
        durably(&kv, Update::delete(key(&long))).await;
    });
}

/// P6: the item's operation memory was journaled before too, so a change may count the bytes beside
/// it as freed.
#[test]
fn a_change_of_an_item_with_much_memory_may_use_the_reserve_if_it_frees_enough() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        let operation = |update: Update, number: u128| {
            update.as_operation(OperationId(u128::MAX - number), Version(0))
        };
        // A full operation memory takes some 1,300 bytes.
        for number in 0..64 {
            for name in ["enough", "too-little"] {
                durably(&kv, operation(set(name, 2_000), number)).await;
            }
        }
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        fill_to_the_reserve(&kv).await;
        is_refused(&kv, set("too-little", 1_000)).await;
        durably(&kv, set("enough", 100)).await;
    });
}
