//! Algorithm 1 against brute force: all sets of versions that are atomic, and the newest that
//! extends the read set.

use ports::DurabilityPoint;

use crate::{
    model::{NodeId, Position, Timestamp, TransactionId, Version},
    storage::records::{Place, Write},
};

use super::*;

const KEYS: usize = 4;
const LOG: NodeId = NodeId(1);

fn key(index: usize) -> Key {
    Key::new(vec![b'k', index as u8]).expect("short")
}

fn record(version: u64, slot: u64, keys: &[usize]) -> Arc<CommitRecord> {
    let writes = keys.iter().map(|index| Write {
        key: key(*index),
        write: 1,
        place: Place::Inline { bytes: 1 },
    });
    Arc::new(CommitRecord {
        id: TransactionId::new(format!("{version}")).expect("a name"),
        attempt: Attempt {
            node: LOG,
            sequence: version,
        },
        version: Version {
            timestamp: Timestamp(version),
            node: LOG,
        },
        position: Position { log: LOG, slot },
        writes: writes.collect(),
        parts: 0,
        point: DurabilityPoint::DURABLE,
    })
}

fn applied(slot: u64) -> Frontier {
    let mut applied = Frontier::default();
    applied.advance(LOG, slot);
    applied
}

/// All of the frontier is long past its window.
fn seen(begin_frontier: &Frontier) -> Seen<'_> {
    Seen {
        begin_frontier,
        dropped: begin_frontier,
    }
}

/// Commits whose version order differs from their slot order, as slow clocks produce them.
struct World {
    /// In the order of their slots, which start at one.
    records: Vec<Arc<CommitRecord>>,
    begin_frontier: Frontier,
    begin_slot: u64,
}

impl World {
    fn random(random: &mut fastrand::Rng) -> Self {
        let count = random.usize(1..8);
        let mut versions: Vec<u64> = (1..=count as u64).collect();
        random.shuffle(&mut versions);
        let records = versions.iter().zip(1..).map(|(version, slot)| {
            let mut keys: Vec<usize> = (0..KEYS).filter(|_| random.bool()).collect();
            if keys.is_empty() {
                keys.push(random.usize(..KEYS));
            }
            record(*version, slot, &keys)
        });
        let records = records.collect();
        let begin_slot = random.u64(0..=count as u64);
        Self {
            records,
            begin_frontier: applied(begin_slot),
            begin_slot,
        }
    }

    /// The versions of a key among the first `slots` commits, oldest first.
    fn versions(&self, key: &Key, slots: u64) -> Vec<Arc<CommitRecord>> {
        let known = self
            .records
            .iter()
            .filter(|record| record.position.slot <= slots);
        let mut versions: Vec<_> = known
            .filter(|record| record.write_of(key).is_some())
            .cloned()
            .collect();
        versions.sort_by_key(|record| record.version);
        versions
    }

    fn is_atomic(&self, reads: &BTreeMap<Key, Choice>) -> bool {
        let records = reads.values().filter_map(|choice| match choice {
            Choice::Version(record) => Some(record),
            Choice::Absent => None,
        });
        let fractures = |record: &CommitRecord, read: &Choice| match read {
            Choice::Version(other) => other.version < record.version,
            Choice::Absent => record.position.slot > self.begin_slot,
        };
        records.into_iter().all(|record| {
            let beside = record
                .writes
                .iter()
                .filter_map(|write| reads.get(&write.key));
            !beside.into_iter().any(|read| fractures(record, read))
        })
    }

    /// The newest version of `key` in an atomic set of versions of the read keys and `key`, among
    /// the sets that extend `reads`. It enumerates all sets, whether they extend it or not.
    fn oracle(
        &self,
        reads: &BTreeMap<Key, Choice>,
        key: &Key,
        known: &[Arc<CommitRecord>],
    ) -> Option<Version> {
        let mut candidates = known.to_vec();
        candidates.extend(reads.values().filter_map(|choice| match choice {
            Choice::Version(record) if record.write_of(key).is_some() => Some(Arc::clone(record)),
            _ => None,
        }));
        let mut sets: Vec<BTreeMap<Key, Choice>> = candidates
            .into_iter()
            .map(|record| [(key.clone(), Choice::Version(record))].into())
            .collect();
        for read in reads.keys() {
            let every = self
                .versions(read, u64::MAX)
                .into_iter()
                .map(Choice::Version);
            let choices: Vec<Choice> = every.chain([Choice::Absent]).collect();
            let extended = sets.iter().flat_map(|set| {
                choices.iter().map(|choice| {
                    let mut set = set.clone();
                    set.insert(read.clone(), choice.clone());
                    set
                })
            });
            sets = extended.collect();
        }
        let extends =
            |set: &&BTreeMap<Key, Choice>| reads.iter().all(|(key, choice)| set[key] == *choice);
        let atomic = sets
            .iter()
            .filter(extends)
            .filter(|set| self.is_atomic(set));
        let versions = atomic.filter_map(|set| match &set[key] {
            Choice::Version(record) => Some(record.version),
            Choice::Absent => None,
        });
        versions.max()
    }
}

/// Runs one reader in one world. Returns its violation, if any.
fn read_all(random: &mut fastrand::Rng, broken: Option<Broken>) -> Result<(), String> {
    let world = World::random(random);
    let mut set = ReadSet::default();
    let mut reads: BTreeMap<Key, Choice> = BTreeMap::new();
    let mut known_slots = world.begin_slot;
    let mut order: Vec<usize> = (0..KEYS).collect();
    random.shuffle(&mut order);
    for index in order {
        let key = key(index);
        // Each key's versions are loaded at a separate moment after the begin.
        known_slots = random.u64(known_slots.saturating_sub(2).max(world.begin_slot)..=8);
        let known = world.versions(&key, known_slots);
        let expected = world.oracle(&reads, &key, &known);
        let chosen = set.choose(&key, &known, &seen(&world.begin_frontier), broken.into());
        let before = known
            .iter()
            .any(|record| record.position.slot <= world.begin_slot);
        match (&chosen, expected) {
            (Ok(Choice::Version(record)), Some(version)) if record.version == version => {}
            (Ok(Choice::Absent), None) if known.is_empty() => {}
            // Lemma 2: only a key that had no version when the reader began.
            (Err(NoValidVersion), None) if !known.is_empty() && !before => continue,
            _ => {
                return Err(format!(
                    "{key:?}: {chosen:?}, not {expected:?}, of {known:?} beside {reads:?}"
                ));
            }
        }
        let choice = chosen.expect("matched above");
        set.record(key.clone(), choice.clone(), DurabilityPoint::DURABLE);
        reads.insert(key, choice);
        if !world.is_atomic(&reads) {
            return Err(format!("fractured: {reads:?}"));
        }
    }
    Ok(())
}

fn seeds(count: u64, broken: Option<Broken>) -> Result<(), String> {
    (0..count).try_for_each(|seed| {
        read_all(&mut fastrand::Rng::with_seed(seed), broken)
            .map_err(|fault| format!("seed {seed}: {fault}"))
    })
}

/// T2.
#[test]
fn the_choice_is_the_newest_that_extends_the_read_set() {
    assert_eq!(seeds(4_000, None), Ok(()));
}

/// T2: the test above would notice.
#[test]
fn the_oracle_catches_what_skips_a_case() {
    for broken in [Broken::SkipsLowerBound, Broken::SkipsCowrittenOfCandidate] {
        assert!(seeds(400, Some(broken)).is_err(), "{broken:?}");
    }
}

/// T2, the paper's example: T1 wrote l, T2 wrote k and l. A reader of T1's l must not read T2's k.
#[test]
fn what_was_cowritten_with_something_newer_than_what_was_read_is_passed_over() {
    let (k, l) = (0, 1);
    let (first, both) = (record(1, 1, &[l]), record(2, 2, &[k, l]));
    let mut set = ReadSet::default();
    set.record(key(l), Choice::Version(first), DurabilityPoint::DURABLE);
    let chosen = set.choose(
        &key(k),
        std::slice::from_ref(&both),
        &seen(&applied(1)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Err(NoValidVersion));
    let before = record(0, 0, &[k]);
    let chosen = set.choose(
        &key(k),
        &[before.clone(), both],
        &seen(&applied(1)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Version(before)));
}

/// T2: a key that the index has evicted is still read correctly.
#[test]
fn a_version_that_a_record_of_the_set_wrote_is_always_there() {
    let both = record(2, 2, &[0, 1]);
    let mut set = ReadSet::default();
    set.record(
        key(0),
        Choice::Version(both.clone()),
        DurabilityPoint::DURABLE,
    );
    assert_eq!(
        set.choose(&key(1), &[], &seen(&applied(0)), Mutant::NONE),
        Ok(Choice::Version(both))
    );
}

/// T2, T6: a key that existed before the begin and is gone without a successor was deleted.
#[test]
fn a_version_that_was_collected_with_its_deletion_is_absent() {
    let both = record(2, 2, &[0, 1]);
    let mut set = ReadSet::default();
    set.record(
        key(0),
        Choice::Version(both.clone()),
        DurabilityPoint::DURABLE,
    );
    assert_eq!(
        set.choose(&key(1), &[], &seen(&applied(2)), Mutant::NONE),
        Ok(Choice::Absent)
    );
    // Within its window a deletion would still be there.
    let within = Seen {
        begin_frontier: &applied(2),
        dropped: &applied(1),
    };
    assert_eq!(
        set.choose(&key(1), &[], &within, Mutant::NONE),
        Ok(Choice::Version(both))
    );
    let newer = record(5, 5, &[1]);
    let chosen = set.choose(
        &key(1),
        std::slice::from_ref(&newer),
        &seen(&applied(2)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Version(newer)));
}

/// T2, T6: a version from after the begin that does not fit the set does not restore a deleted
/// value.
#[test]
fn a_version_that_was_collected_with_its_deletion_is_absent_beside_a_later_one() {
    let (first, deletion) = (record(2, 2, &[0, 1]), record(4, 4, &[0, 2]));
    let later = record(5, 5, &[0, 1]);
    let mut set = ReadSet::default();
    set.record(
        key(1),
        Choice::Version(first.clone()),
        DurabilityPoint::DURABLE,
    );
    let chosen = set.choose(
        &key(0),
        std::slice::from_ref(&later),
        &seen(&applied(4)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Absent));
    set.record(key(0), Choice::Absent, DurabilityPoint::DURABLE);
    // The write beside the deletion is still the newest of its key, and fits the set.
    let chosen = set.choose(
        &key(2),
        std::slice::from_ref(&deletion),
        &seen(&applied(4)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Version(deletion.clone())));
    // While any version from before the begin exists, nothing was dropped.
    let mut set = ReadSet::default();
    set.record(
        key(1),
        Choice::Version(first.clone()),
        DurabilityPoint::DURABLE,
    );
    let chosen = set.choose(
        &key(0),
        &[first.clone(), later],
        &seen(&applied(4)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Version(first)));
}

/// T2, 8.3: absent is judged by position.
#[test]
fn a_record_from_before_the_begin_goes_with_an_absent_key_it_wrote() {
    let both = record(2, 2, &[0, 1]);
    let mut set = ReadSet::default();
    set.record(key(0), Choice::Absent, DurabilityPoint::DURABLE);
    let versions = std::slice::from_ref(&both);
    assert_eq!(
        set.choose(&key(1), versions, &seen(&applied(1)), Mutant::NONE),
        Err(NoValidVersion)
    );
    assert_eq!(
        set.choose(&key(1), versions, &seen(&applied(2)), Mutant::NONE),
        Ok(Choice::Version(both.clone()))
    );
}

#[test]
fn a_read_taken_back_leaves_nothing() {
    let (first, both) = (record(1, 1, &[1]), record(2, 2, &[0, 1]));
    let mut set = ReadSet::default();
    set.record(key(0), Choice::Version(both), DurabilityPoint::DURABLE);
    set.take_back(&key(0));
    assert_eq!((set.len(), set.newest_timed()), (0, Timestamp::default()));
    let chosen = set.choose(
        &key(1),
        std::slice::from_ref(&first),
        &seen(&applied(0)),
        Mutant::NONE,
    );
    assert_eq!(chosen, Ok(Choice::Version(first)));
}
