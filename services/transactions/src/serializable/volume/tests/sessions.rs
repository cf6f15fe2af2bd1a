//! Quotas, locks and holds on a node.

use futures_util::poll;

use super::*;
use crate::serializable::{
    contract::commit,
    model::{
        Granted, Lock, LockBytes, LockFamily, LockMode, Owner, Predicate, Proposal, Refusal,
        SessionId, Wait,
    },
};

#[test]
fn a_quota_refuses_growth_alone() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (volume, key) = (node.create("demo").await, key("d", "a"));
        let volumes = node.engine.volumes();
        let set = async |bytes| {
            let set = volumes.set_quota(&named("demo"), Some(bytes)).await;
            set.expect("set");
        };
        set(6).await;
        committed(&*volume, blind(Slot(0), 1, vec![put(&key, "12345")])).await;
        let verdict = commit(&*volume, blind(Slot(0), 2, vec![put(&key, "123456")])).await;
        assert_eq!(verdict, Verdict::Refused(Refusal::Quota));
        set(2).await;
        committed(&*volume, blind(Slot(0), 3, vec![put(&key, "1234")])).await;
        pass(Duration::from_secs(1)).await;
        let usage = volume.usage().await.expect("an answer");
        assert_eq!((usage.bytes, usage.keys), (5, 1));
    });
}

fn lock(mode: LockMode, wait: Wait) -> Lock {
    Lock {
        key: key("i", "e"),
        family: LockFamily::Posix,
        bytes: LockBytes::ALL,
        mode,
        pid: 1,
        wait,
    }
}

fn owner(session: u64) -> Owner {
    Owner {
        session: SessionId(session),
        id: 0,
    }
}

/// F-1: a lock of another session ends elision until a later snapshot.
#[test]
fn a_held_lock_is_not_elided() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let elided = |number, at, writes| Proposal {
            predicates: vec![Predicate::LockFree(key("i", "e"))],
            ..blind(at, number, writes)
        };
        let conflict = Verdict::Conflict { key: key("i", "e") };
        committed(&*volume, elided(9, at, vec![put(&key("d", "b"), "")])).await;
        let taken = lock(LockMode::Exclusive, Wait::Never);
        assert_eq!(volume.lock(owner(1), taken).await, Ok(Granted::Yes));
        assert_eq!(commit(&*volume, elided(1, at, Vec::new())).await, conflict);
        let mut waiting = volume.lock(owner(2), lock(LockMode::Shared, Wait::UntilGranted));
        assert!(poll!(&mut waiting).is_pending());
        let (slot, _) = committed(&*volume, blind(at, 2, vec![put(&key("d", "a"), "")])).await;
        volume.end_session(SessionId(1)).await.expect("ended");
        assert_eq!(waiting.await, Ok(Granted::Yes));
        let free = lock(LockMode::Unlocked, Wait::Never);
        assert_eq!(volume.lock(owner(2), free).await, Ok(Granted::Yes));
        assert_eq!(commit(&*volume, elided(1, at, Vec::new())).await, conflict);
        committed(&*volume, elided(3, slot, Vec::new())).await;
    });
}

/// The next node has no locks, so a lock that waits at an earlier one fails, and the call is
/// repeated. Elision at an earlier slot does not pass there.
#[test]
fn a_lock_that_waits_ends_with_its_node() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let point = volume.snapshot().await.expect("a snapshot").point;
        volume.externalize(point).await.expect("durable");
        let taken = lock(LockMode::Exclusive, Wait::Never);
        assert_eq!(volume.lock(owner(1), taken).await, Ok(Granted::Yes));
        volume
            .hold(SessionId(1), key("i", "e"))
            .await
            .expect("held");
        assert_eq!(volume.is_held(&key("i", "e")).await, Ok(true));
        let waiting = volume.lock(owner(2), lock(LockMode::Shared, Wait::UntilGranted));
        let ends = async {
            pass(Duration::from_secs(1)).await;
            world.crash();
            // Any call notices that the store went back.
            let _ = volume.snapshot().await;
        };
        let (waited, ()) = tokio::join!(waiting, ends);
        assert!(
            matches!(waited, Err(crate::Error::Unavailable(_))),
            "{waited:?}"
        );
        pass(Duration::from_secs(2)).await;
        assert_eq!(volume.is_held(&key("i", "e")).await, Ok(false));
        let elided = Proposal {
            predicates: vec![Predicate::LockFree(key("i", "e"))],
            ..blind(at, 1, vec![put(&key("d", "a"), "")])
        };
        let conflict = Verdict::Conflict { key: key("i", "e") };
        assert_eq!(commit(&*volume, elided).await, conflict);
    });
}
