use super::*;
use crate::serializable::{
    apply::Piece,
    contract::{Oracle, id, key, some_key, some_write},
    model::{Patch, VALUE_BYTES_MAX},
};

fn commit(number: u64, changes: Changes) -> SlotCommit {
    SlotCommit {
        id: id(number, number),
        changes,
        appended_at: vec![number, u64::MAX],
    }
}

fn slot(commits: Vec<SlotCommit>) -> VolumeSlot {
    VolumeSlot {
        written_ms: 1 << 40,
        by: NodeId(3),
        commits,
        closed: Vec::new(),
    }
}

fn random_slot(random: &mut fastrand::Rng) -> VolumeSlot {
    let commits = (0..random.u64(0..4)).map(|number| {
        let writes: Vec<Write> = (0..6).map(|_| some_write(random)).collect();
        let changes = if random.bool() {
            let resolved = resolve(&writes, |_| Base::Short(None)).expect("in range");
            Changes::inline(resolved.changes)
        } else {
            Changes::Staged {
                stage: StageId([random.u8(..); 16]),
                parts: random.u32(..),
                bytes: random.u64(..),
                crc: random.u32(..),
                numbers: vec![
                    (key("i", "n"), Base::Long),
                    (key("i", "s"), Base::Short(None)),
                ],
            }
        };
        commit(number, changes)
    });
    let commits = commits.collect();
    let conflict = Verdict::Conflict {
        key: some_key(random),
    };
    VolumeSlot {
        closed: vec![
            (id(9, 0), conflict),
            (id(9, 1), Verdict::Refused(Refusal::Superseded)),
        ],
        ..slot(commits)
    }
}

#[test]
fn a_slot_is_read_back_as_it_was_written() {
    let random = &mut fastrand::Rng::with_seed(2);
    for _ in 0..500 {
        let slot = random_slot(random);
        let bytes = slot.encode();
        let bound: usize = slot
            .commits
            .iter()
            .map(|commit| commit.changes.bytes_len())
            .sum();
        assert!(bytes.len() <= bound + 512, "{} of {bound}", bytes.len());
        assert_eq!(VolumeSlot::decode(&bytes), Ok(slot));
    }
}

/// A damaged slot is an error or another slot, never a panic.
#[test]
fn hostile_bytes_are_refused_without_a_panic() {
    let random = &mut fastrand::Rng::with_seed(3);
    for _ in 0..3_000 {
        let mut bytes = random_slot(random).encode().to_vec();
        let place = random.usize(..bytes.len());
        if random.bool() {
            bytes.truncate(place);
        } else {
            bytes[place] ^= random.u8(1..);
        }
        if let Ok(slot) = VolumeSlot::decode(&bytes) {
            assert_eq!(VolumeSlot::decode(&slot.encode()), Ok(slot));
        }
    }
}

#[test]
fn what_no_writer_makes_does_not_decode() {
    let refused = |slot: &VolumeSlot| {
        let decoded = VolumeSlot::decode(&slot.encode());
        assert!(matches!(decoded, Err(Error::Corrupt(_))), "{decoded:?}");
    };
    let (a, b) = (key("d", "a"), key("d", "b"));
    let inline = |changes| slot(vec![commit(1, Changes::Inline(changes))]);
    refused(&inline(vec![
        (b, Change::Delete),
        (a.clone(), Change::Delete),
    ]));
    refused(&inline(vec![
        (a.clone(), Change::Delete),
        (a.clone(), Change::Delete),
    ]));
    let long = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    refused(&inline(vec![(a.clone(), Change::Put(long))]));
    let piece = Piece {
        offset: u32::MAX,
        data: Patch::Zeros(u32::MAX),
    };
    refused(&inline(vec![(a, Change::Patch(vec![piece]))]));
    let committed = Verdict::Committed {
        slot: Slot(1),
        appended_at: Vec::new(),
    };
    refused(&VolumeSlot {
        closed: vec![(id(1, 0), committed)],
        ..slot(Vec::new())
    });
}

/// V2: a snapshot sees all commits of a slot, in their order, staged or not.
#[test]
fn a_slot_folds_its_commits_in_order() {
    for seed in 0..500 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut oracle, mut staged) = (Oracle::default(), BTreeMap::new());
        let mut commits = Vec::new();
        for number in 0..4 {
            let writes: Vec<Write> = (0..4).map(|_| some_write(random)).collect();
            let base = |key: &Key| {
                let value = oracle.0.get(key).cloned().map(Bytes::from);
                Base::of(value.as_ref())
            };
            let changes = if random.bool() {
                Changes::inline(resolve(&writes, base).expect("in range").changes)
            } else {
                let stage = StageId([number as u8; 16]);
                let numbers = ["n", "s"].map(|name| (key("i", name), base(&key("i", name))));
                staged.insert(stage, writes.clone());
                Changes::Staged {
                    stage,
                    parts: 1,
                    bytes: 1,
                    crc: 1,
                    numbers: numbers.to_vec(),
                }
            };
            commits.push(commit(number, changes));
            for write in &writes {
                oracle.write(write);
            }
        }
        let slot = slot(commits);
        assert_eq!(slot.stages(), staged.keys().copied().collect());
        for (key, change) in slot.folded(&staged).expect("all stages") {
            let expected = oracle.0.remove(&key).map(Bytes::from);
            assert_eq!(change.apply(None), expected, "seed {seed}: {key:?}");
        }
        assert!(oracle.0.is_empty(), "seed {seed}: {oracle:?}");
        if !staged.is_empty() {
            assert!(slot.folded(&BTreeMap::new()).is_err());
        }
    }
}
