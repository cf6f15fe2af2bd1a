use std::sync::Arc;

use futures_util::{FutureExt as _, poll};

use super::*;
use crate::serializable::{
    contract::{self, blind, commit, committed, id, key, put, value},
    model::{Is, LockBytes, LockFamily, LockMode, Predicate, ProposalId, Refusal, Write},
};

fn volume() -> ModelVolume {
    ModelVolume::new(BlockBytes::new(4096).expect("a power of two"))
}

fn open() -> Arc<dyn VolumeStore> {
    Arc::new(volume())
}

#[test]
fn histories_are_strictly_serializable() {
    simulated::run(contract::histories_are_strictly_serializable(&open, 200));
}

#[test]
fn a_proposal_commits_at_most_once() {
    simulated::run(contract::a_proposal_commits_at_most_once(&open));
}

#[test]
fn numbers_have_their_range() {
    simulated::run(contract::numbers_have_their_range(&open));
}

#[test]
fn a_stage_takes_effect_as_a_whole() {
    simulated::run(contract::a_stage_takes_effect_as_a_whole(&open));
}

#[test]
fn pages_at_one_slot_are_one_state() {
    simulated::run(contract::pages_at_one_slot_are_one_state(&open));
}

#[test]
fn changes_are_listed_once() {
    simulated::run(contract::changes_are_listed_once(&open));
}

#[test]
fn a_volume_without_leases_passes() {
    simulated::run(contract::a_lease_is_recalled_before_a_commit(&open));
}

#[test]
fn collection_keeps_pins_and_what_is_newer_than_its_horizon() {
    let volume = Arc::new(volume());
    let shared = volume.clone();
    simulated::run(async move {
        let open = move || -> Arc<dyn VolumeStore> { shared.clone() };
        contract::a_pinned_state_stays_readable(&open).await;
        let pins = volume.pins().await.expect("pins");
        let pins: Vec<_> = pins
            .iter()
            .map(|(name, slot)| (name.as_str(), *slot))
            .collect();
        assert_eq!(pins, [("run", Slot(1))]);
        let read = |slot| {
            let keys = [key("d", "a")];
            let found = volume.get_many(At::Slot(Slot(slot)), &keys);
            let found = found.now_or_never().expect("at once");
            found.map(|found| found.value.found[0].clone())
        };
        volume.collect(Slot(3));
        assert_eq!(read(1), Ok(Some("old".into())));
        assert_eq!(read(2), Err(Error::SnapshotTooOld));
        assert_eq!(read(3), Ok(None));
        assert!(matches!(read(4), Err(Error::Invalid(_))));
        volume
            .unpin(&PinName::new("run").expect("short"))
            .await
            .expect("unpinned");
        volume.collect(Slot(3));
        assert_eq!(read(1), Err(Error::SnapshotTooOld));
        let everything = Changed::Everything { to: Slot(3) };
        let changed = volume.changed_since(Slot(2), &Groups::All).await;
        assert_eq!(changed.expect("an answer").value, everything);
        let late = blind(Slot(2), 9, vec![put(&key("d", "a"), "")]);
        assert_eq!(commit(&*volume, late).await, Verdict::SnapshotTooOld);
    });
}

/// V6: a crash takes the slots that no call externalized, and nothing else.
#[test]
fn a_crash_takes_what_was_not_externalized() {
    simulated::run(async {
        let (volume, key) = (volume(), key("d", "a"));
        let first = blind(Slot(0), 1, vec![put(&key, "first")]);
        let point = volume.commit(first).await.expect("a verdict").point;
        let second = blind(Slot(1), 2, vec![put(&key, "second")]);
        let lost = volume.commit(second.clone()).await.expect("a verdict");
        volume.externalize(point).await.expect("durable");
        volume.crash();
        assert_eq!(value(&volume, &key).await, Some("first".into()));
        let refused = volume.externalize(lost.point).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))));
        let (slot, _) = committed(&volume, second).await;
        assert!(slot > Slot(2), "no slot has two meanings");
    });
}

#[test]
fn a_quota_refuses_growth_alone() {
    simulated::run(async {
        let (volume, key) = (volume(), key("d", "a"));
        volume.set_quota(Some(6));
        committed(&volume, blind(Slot(0), 1, vec![put(&key, "12345")])).await;
        let verdict = commit(&volume, blind(Slot(0), 2, vec![put(&key, "123456")])).await;
        assert_eq!(verdict, Verdict::Refused(Refusal::Quota));
        volume.set_quota(Some(2));
        committed(&volume, blind(Slot(0), 3, vec![put(&key, "1234")])).await;
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

/// F-1: a lock of another session ends elision until a later snapshot.
#[test]
fn a_held_lock_is_not_elided() {
    simulated::run(async {
        let volume = volume();
        let owner = |session| Owner {
            session: SessionId(session),
            id: 0,
        };
        let elided = |number, at, writes| Proposal {
            predicates: vec![Predicate::LockFree(key("i", "e"))],
            ..blind(at, number, writes)
        };
        let conflict = Verdict::Conflict { key: key("i", "e") };
        let taken = lock(LockMode::Exclusive, Wait::Never);
        assert_eq!(volume.lock(owner(1), taken).await, Ok(Granted::Yes));
        let reader = elided(1, Slot(0), Vec::new());
        assert_eq!(commit(&volume, reader.clone()).await, conflict);
        let mut waiting = volume.lock(owner(2), lock(LockMode::Shared, Wait::UntilGranted));
        assert!(poll!(&mut waiting).is_pending());
        committed(&volume, blind(Slot(0), 2, vec![put(&key("d", "a"), "")])).await;
        volume.end_session(SessionId(1)).await.expect("ended");
        assert_eq!(waiting.await, Ok(Granted::Yes));
        let free = lock(LockMode::Unlocked, Wait::Never);
        assert_eq!(volume.lock(owner(2), free).await, Ok(Granted::Yes));
        assert_eq!(commit(&volume, reader).await, conflict, "it was held since");
        committed(&volume, elided(3, Slot(1), Vec::new())).await;
    });
}

#[test]
fn holds_end_with_their_session() {
    simulated::run(async {
        let (volume, key) = (volume(), key("i", "e"));
        for session in [1, 2] {
            let held = volume.hold(SessionId(session), key.clone()).await;
            held.expect("held");
        }
        volume.release(SessionId(1), &key).await.expect("released");
        assert_eq!(volume.is_held(&key).await, Ok(true));
        volume.end_session(SessionId(2)).await.expect("ended");
        assert_eq!(volume.is_held(&key).await, Ok(false));
        let first = volume.reserve_numbers().await.expect("numbers");
        let second = volume.reserve_numbers().await.expect("numbers");
        assert_eq!((first.start, first.end), (NUMBERS_RESERVED, second.start));
    });
}

/// Clients send these types: none decodes beyond its bounds.
#[test]
fn what_exceeds_a_bound_is_refused() {
    let long = Bytes::from(vec![0; 1_025]);
    assert!(Key::new("", "a").is_err());
    assert!(Key::new(vec![0; 17], "a").is_err());
    assert!(Key::new("a", long.clone()).is_err());
    assert!(KeyRange::new("a", "", Some(long.clone())).is_err());
    assert!(ProposalId::new("", 0).is_err());
    assert!(PinName::new("").is_err());
    assert!(BlockBytes::new(4097).is_err() && BlockBytes::new(512 << 10).is_err());
    let format = crate::serializable::FORMAT;
    let encoded = format.encode(&("a", long), 2_000);
    assert!(format.decode::<Key>(&encoded, "a key").is_err());
    let put = |bytes| blind(Slot(0), 1, vec![put(&key("d", "a"), vec![0; bytes])]);
    assert!(put(60 << 10).check().is_ok());
    assert!(put(64 << 10).check().is_err());
    let patch = Write::Patch {
        key: key("d", "a"),
        offset: u32::MAX,
        data: crate::serializable::model::Patch::Zeros(u32::MAX),
    };
    assert!(blind(Slot(0), 1, vec![patch]).check().is_err());
    let many = Proposal {
        reads: vec![key("d", "a"); 100_001],
        ..blind(Slot(0), 1, Vec::new())
    };
    assert!(many.check().is_err());
    let compared = Proposal {
        id: id(1, 0),
        predicates: vec![Predicate::Number {
            key: key("i", "n"),
            is: Is::Equals(0),
        }],
        ..blind(Slot(0), 1, Vec::new())
    };
    let encoded = format.encode(&compared, 100);
    let decoded: Proposal = format.decode(&encoded, "a proposal").expect("in bounds");
    assert_eq!(decoded, compared);
}
