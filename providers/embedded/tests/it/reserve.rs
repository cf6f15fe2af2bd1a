//! The reserve: which changes may use it when the disk is full (rule P6).

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use embedded::Embedded;
use ports::{
    ErrorKind, KeyValue, Update,
    key_value::{Action, OperationId, Transacted, Version},
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
        assert!(reserved.has_room());
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        let written = fill(&kv).await;
        assert!(!reserved.has_room());
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
        assert!(!reserved.has_room());
        assert_eq!(value(&kv, "session-6").await, Some(1));
        faults.capacity.store(0, Ordering::SeqCst);
        found("the store asks the disk again", async || {
            reserved.has_room().then_some(())
        })
        .await;
        assert!(!store.status().is_full);
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

/// P6: a deletion frees its item, and an overwrite frees nothing before a checkpoint.
#[test]
fn only_deletions_may_use_the_reserve_without_a_claim_to_it() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        for name in ["kept", "deleted", "remembers", "first", "second", "third"] {
            durably(&kv, set(name, 10_000)).await;
        }
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        fill_to_the_reserve(&kv).await;
        is_refused(&kv, set("kept", 10)).await;
        is_refused(
            &kv,
            Update::delete(key("absent")).as_operation(OperationId(1), Version(0)),
        )
        .await;
        durably(&kv, Update::delete(key("deleted"))).await;
        durably(
            &kv,
            Update::delete(key("remembers")).as_operation(OperationId(1), Version(0)),
        )
        .await;
        let mixed = vec![Update::delete(key("first")), set("kept", 10)];
        let refused = kv.transact(mixed).await.expect_err("one of them adds");
        assert_eq!(refused.kind(), ErrorKind::NoRoom, "{refused}");
        let both = vec![Update::delete(key("first")), Update::delete(key("second"))];
        let done = kv.transact(both).await.expect("both free their items");
        assert!(matches!(done, Transacted::Done { .. }), "{done:?}");
    });
}

/// P6: work that goes on while the disk is full leaves a part of the reserve to deletions.
#[test]
fn deletions_have_room_when_other_work_has_used_up_its_part_of_the_reserve() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, reserved) = (store.key_value(), store.key_value_with_reserve());
        let items: Vec<_> = (0..20).map(|number| format!("item-{number}")).collect();
        for name in &items {
            durably(&kv, set(name, 100)).await;
        }
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        fill(&kv).await;
        fill_to_the_reserve(&reserved).await;
        let deletions = items.iter().map(|name| Update::delete(key(name)));
        let done = kv
            .transact(deletions.collect())
            .await
            .expect("a part of the reserve is left");
        assert!(matches!(done, Transacted::Done { .. }), "{done:?}");
    });
}
