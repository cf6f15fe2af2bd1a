//! The cache beside the volume without one, in random calls of several clients.

use std::panic::catch_unwind;

use futures_util::FutureExt as _;
use transactions::serializable::{
    ModelVolume,
    model::{BlockBytes, Proposal, ProposalId, Verdict, Write, Writes},
};

use super::*;
use crate::tests::must_fail;

const KEYS: u32 = 24;
const STEPS: u32 = 400;

fn key(number: u32) -> Key {
    let group = [b'g', (number % 5) as u8].to_vec();
    Key::new(group, number.to_be_bytes().to_vec()).expect("short")
}

fn volume() -> Arc<ModelVolume> {
    Arc::new(ModelVolume::new(BlockBytes::new(4_096).expect("a power")))
}

/// The result of a call on a volume in memory. The call never waits.
fn now<T>(call: BoxFuture<'_, Result<T>>) -> T {
    let answer = call.now_or_never().expect("it answers at once");
    answer.expect("it succeeds")
}

fn write(store: &dyn VolumeStore, id: u64, writes: Vec<Write>) {
    let slot = now(store.snapshot()).value.slot;
    let proposal = Proposal {
        at: slot,
        id: ProposalId::new(id.to_be_bytes().to_vec(), 0).expect("short"),
        reads: Vec::new(),
        predicates: Vec::new(),
        writes: Writes::Inline(writes),
    };
    let verdict = now(store.commit(proposal)).value;
    assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
}

/// Reads keys through the cache and beside it, at slots that it returned and at the tail.
fn random_reads(seed: u64, policy: Policy, bytes_max: usize, mutant: Mutant<Broken>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let volume = volume();
    let cached = CachedVolume::broken(volume.clone(), policy, bytes_max, mutant);
    let mut slots = vec![now(cached.snapshot()).value.slot];
    for step in 0..STEPS {
        match random.u32(0..10) {
            0..3 => {
                let key = key(random.u32(0..KEYS));
                let write_one = if random.bool() {
                    let value = Bytes::from(vec![random.u8(..); random.usize(0..200)]);
                    Write::Put { key, value }
                } else {
                    Write::Delete { key }
                };
                write(&*volume, u64::from(step), vec![write_one]);
            }
            3 => slots.push(now(cached.snapshot()).value.slot),
            4 if random.u32(0..8) == 0 => {
                volume.crash();
                slots = vec![now(cached.snapshot()).value.slot];
            }
            _ => {
                let keys: Vec<Key> = (0..random.usize(1..6))
                    .map(|_| key(random.u32(0..KEYS)))
                    .collect();
                let at = match random.u32(0..3) {
                    0 => At::Tail,
                    _ => {
                        At::Slot(slots[random.usize(slots.len() - slots.len().min(3)..slots.len())])
                    }
                };
                let found = now(cached.get_many(at, &keys)).value;
                let expected = now(volume.get_many(At::Slot(found.slot), &keys)).value;
                assert_eq!(found, expected, "seed {seed}, step {step}: {keys:?} {at:?}");
                if at == At::Tail {
                    let tail = now(volume.snapshot()).value.slot;
                    let fresh = now(volume.get_many(At::Slot(tail), &keys)).value;
                    assert_eq!(found.found, fresh.found, "seed {seed}, step {step}");
                }
            }
        }
        let figures = cached.figures();
        assert!(figures.bytes <= bytes_max as u64, "{figures:?}");
    }
}

fn all_reads(mutant: Mutant<Broken>) {
    for seed in 0..100 {
        for policy in [Policy::Eager, Policy::Lazy] {
            for bytes_max in [1 << 20, 2_000] {
                random_reads(seed, policy, bytes_max, mutant);
            }
        }
    }
}

#[test]
fn reads_through_the_cache_are_those_of_the_volume() {
    all_reads(Mutant::NONE);
}

#[test]
fn keeping_changed_values_is_noticed() {
    must_fail(|| all_reads(Broken::KeepsChanged.into()));
}

/// A client that reads at an old snapshot must not spoil the cache for newer ones.
fn old_reads(mutant: Mutant<Broken>) {
    let volume = volume();
    let put = |value: &'static str| Write::Put {
        key: key(1),
        value: Bytes::from(value),
    };
    write(&*volume, 1, vec![put("old")]);
    let cached = CachedVolume::broken(volume.clone(), Policy::Eager, 1 << 20, mutant);
    let old = now(cached.snapshot()).value.slot;
    write(&*volume, 2, vec![put("new")]);
    let new = now(cached.snapshot()).value.slot;
    let read = |at| now(cached.get_many(At::Slot(at), &[key(1)])).value.found;
    assert_eq!(read(old), [Some(Bytes::from("old"))]);
    assert_eq!(read(new), [Some(Bytes::from("new"))]);
}

#[test]
fn an_old_snapshot_does_not_spoil_the_cache() {
    old_reads(Mutant::NONE);
}

#[test]
fn keeping_old_reads_is_noticed() {
    must_fail(|| old_reads(Broken::KeepsOldReads.into()));
}

/// The paper's heuristic: blocks that are read often are sent, others are invalidated.
#[test]
fn used_values_are_updated_and_others_dropped() {
    let volume = volume();
    let cached = CachedVolume::new(volume.clone(), Policy::Eager, 1 << 20);
    let keys = [key(1), key(2)];
    let slot = now(cached.snapshot()).value.slot;
    now(cached.get_many(At::Slot(slot), &keys));
    now(cached.get_many(At::Slot(slot), &keys[..1]));
    let put = |key: &Key| Write::Put {
        key: key.clone(),
        value: Bytes::from("value"),
    };
    write(&*volume, 1, keys.iter().map(put).collect());
    now(cached.snapshot());
    let CacheFigures {
        updated,
        invalidated,
        misses,
        ..
    } = cached.figures();
    assert_eq!((updated, invalidated, misses), (1, 1, 2));
}

#[test]
fn a_file_is_brought_up_to_date_when_it_is_read() {
    let volume = volume();
    let cached = CachedVolume::new(volume.clone(), Policy::Lazy, 1 << 20);
    let keys = [key(1), key(2)];
    let first = now(cached.snapshot()).value.slot;
    now(cached.get_many(At::Slot(first), &keys));
    let put = Write::Put {
        key: key(1),
        value: Bytes::from("value"),
    };
    write(&*volume, 1, vec![put]);
    let second = now(cached.snapshot()).value.slot;
    assert_eq!(cached.figures().invalidated, 0);
    let found = now(cached.get_many(At::Slot(second), &keys)).value.found;
    assert_eq!(found, [Some(Bytes::from("value")), None]);
}

#[test]
fn the_cache_is_bounded() {
    let caught = catch_unwind(|| random_reads(7, Policy::Eager, 0, Mutant::NONE));
    assert!(caught.is_ok(), "a cache without room still answers");
}
