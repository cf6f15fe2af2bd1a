use super::*;
use crate::{
    model::{Attempt, NodeId, Position, Timestamp, TransactionId, Version},
    storage::records::{Place, Write},
};

fn key(index: u8) -> Key {
    Key::new(vec![index]).expect("short")
}

fn record(version: u64, keys: &[u8]) -> Arc<CommitRecord> {
    let node = NodeId(1);
    let writes = keys.iter().map(|index| Write {
        key: key(*index),
        write: 1,
        place: Place::Inline { bytes: 1 },
    });
    Arc::new(CommitRecord {
        id: TransactionId::new(format!("{version}")).expect("a name"),
        attempt: Attempt {
            node,
            sequence: version,
        },
        version: Version {
            timestamp: Timestamp(version),
            node,
        },
        position: Position {
            log: node,
            slot: version,
        },
        writes: writes.collect(),
        parts: 0,
        point: DurabilityPoint::DURABLE,
    })
}

fn versions(index: &Index, key: &Key) -> Option<Vec<u64>> {
    let entry = index.entry(key)?;
    Some(
        entry
            .versions
            .iter()
            .map(|record| record.version.timestamp.0)
            .collect(),
    )
}

/// A record that each key's load has read separately is held once, and dropped when no entry needs
/// it any more.
#[test]
fn a_record_is_held_once_whoever_read_it() {
    let mut index = Index::new(1 << 20);
    for number in 0..100 {
        index.load(&key(number));
        index.finish_load(
            &key(number),
            &[record(7, &(0..100).collect::<Vec<_>>())],
            DurabilityPoint::DURABLE,
        );
    }
    let held = index.record(record(7, &[]).attempt).expect("it is in use");
    assert_eq!(Arc::strong_count(&held), 101);
    drop(held);
    index.clear(&Error::unavailable("the engine stops"));
    assert!(index.record(record(7, &[]).attempt).is_none());
    for version in 0..100_000 {
        index.apply(&record(version, &[1]));
    }
    assert!(
        index.in_use.len() <= 2_048,
        "unused records are forgotten: {}",
        index.in_use.len()
    );
}

/// I1, I2, I3: after any order of evictions, loads and merges, an entry is whole.
#[test]
fn an_entry_is_whole_or_not_there() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        // Small, so that entries are evicted all the time.
        let mut index = Index::new(8_000);
        let mut store: Vec<Arc<CommitRecord>> = Vec::new();
        let mut scanned: BTreeMap<u8, Vec<Arc<CommitRecord>>> = BTreeMap::new();
        for step in 1..200 {
            match random.u8(..4) {
                0 => {
                    let keys: Vec<u8> = (0..6).filter(|_| random.u8(..3) == 0).collect();
                    let record = record(if random.bool() { step } else { step + 1_000 }, &keys);
                    store.push(Arc::clone(&record));
                    index.apply(&record);
                    index.apply(&record);
                }
                1 => {
                    let number = random.u8(..6);
                    if index.entry(&key(number)).is_none()
                        && let Loading::ByCaller(_) = index.load(&key(number))
                    {
                        let written = store
                            .iter()
                            .filter(|record| record.write_of(&key(number)).is_some());
                        scanned.insert(number, written.cloned().collect());
                    }
                }
                _ => {
                    if let Some((number, found)) = scanned.pop_first() {
                        index.finish_load(&key(number), &found, DurabilityPoint::DURABLE);
                    }
                }
            }
            for number in 0..6 {
                let written = store
                    .iter()
                    .filter(|record| record.write_of(&key(number)).is_some());
                let mut whole: Vec<u64> =
                    written.map(|record| record.version.timestamp.0).collect();
                whole.sort_unstable();
                if let Some(versions) = versions(&index, &key(number)) {
                    assert_eq!(versions, whole, "seed {seed} step {step} key {number}");
                }
            }
        }
    }
}

#[test]
fn one_load_serves_all_who_wait() {
    let mut index = Index::new(1 << 20);
    let Loading::ByCaller(first) = index.load(&key(1)) else {
        panic!("no load is running yet")
    };
    let Loading::UnderWay(second) = index.load(&key(1)) else {
        panic!("a load is running")
    };
    index.apply(&record(7, &[1]));
    index.finish_load(&key(1), &[record(3, &[1, 2])], DurabilityPoint::DURABLE);
    for waiter in [first, second] {
        let loaded = waiter.borrow().clone().expect("done").expect("well");
        assert_eq!(loaded.versions.len(), 2);
    }
    assert_eq!(versions(&index, &key(2)), None, "it was not loaded");
    index.clear(&Error::NoRoom);
    assert_eq!((index.bytes(), versions(&index, &key(1))), (0, None));
}

#[test]
fn who_waits_for_a_load_hears_that_it_failed() {
    let mut index = Index::new(1 << 20);
    let Loading::ByCaller(waiter) = index.load(&key(1)) else {
        panic!("no load is running yet")
    };
    index.fail_load(&key(1), Error::NoRoom);
    assert_eq!(*waiter.borrow(), Some(Err(Error::NoRoom)));
    assert!(matches!(index.load(&key(1)), Loading::ByCaller(_)));
}

#[test]
fn entries_that_grow_push_others_out() {
    let mut index = Index::new(50_000);
    for number in 0..20 {
        let Loading::ByCaller(_) = index.load(&key(number)) else {
            panic!("no load is running")
        };
        index.finish_load(&key(number), &[], DurabilityPoint::DURABLE);
    }
    for version in 0..2_000 {
        index.apply(&record(version, &[(version % 20) as u8]));
        assert!(index.bytes() <= 51_000, "{}", index.bytes());
    }
}

/// Versions that a load has read may be collected before it ends.
#[test]
fn what_is_collected_during_a_load_does_not_come_back_with_it() {
    let mut index = Index::new(1 << 20);
    let Loading::ByCaller(_) = index.load(&key(1)) else {
        panic!("no load is running yet")
    };
    let (old, new) = (record(3, &[1, 2]), record(7, &[1]));
    index.drop_versions(&key(1), &[old.attempt].into());
    index.finish_load(&key(1), &[old, new], DurabilityPoint::DURABLE);
    assert_eq!(versions(&index, &key(1)), Some(vec![7]));
}

/// Among several nodes each drops versions that others collect, and keeps those that it collects
/// itself.
#[test]
fn what_nobody_needs_is_dropped_but_what_is_to_be_collected_here() {
    let kept = |own: &[u64], agreed: u64| {
        let mut index = Index::new(1 << 20);
        let Loading::ByCaller(_) = index.load(&key(1)) else {
            panic!("no load is running yet")
        };
        let all: Vec<_> = (1..=5).map(|version| record(version, &[1])).collect();
        index.finish_load(&key(1), &all, DurabilityPoint::DURABLE);
        let mut applied = Frontier::default();
        applied.advance(NodeId(1), agreed);
        index.prune(&key(1), &applied, |record| {
            own.contains(&record.version.timestamp.0)
        });
        versions(&index, &key(1)).expect("loaded")
    };
    assert_eq!(kept(&[], 0), [1, 2, 3, 4, 5], "a reader may need all");
    assert_eq!(kept(&[], 3), [3, 4, 5]);
    assert_eq!(
        kept(&[2], 4),
        [1, 2, 4, 5],
        "the first goes with the slot of the second"
    );
    assert_eq!(kept(&[4], 4), [1, 2, 3, 4, 5]);
    assert_eq!(
        kept(&[5], 4),
        [4, 5],
        "it is not collected yet, and supersedes what is above the horizon"
    );
}
