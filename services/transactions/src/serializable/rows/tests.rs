use super::*;
use crate::serializable::{
    apply::Piece,
    contract::{blind, id, key},
    model::{Patch, VALUE_BYTES_MAX},
};

const KEYSPACE: KeyspaceId = KeyspaceId(5);

fn bytes(random: &mut fastrand::Rng, count_max: usize) -> Vec<u8> {
    let alphabet = [0, 1, 2, b'a', 0xfe, 0xff];
    let count = random.usize(0..=count_max);
    std::iter::repeat_with(|| alphabet[random.usize(..6)])
        .take(count)
        .collect()
}

fn random_key(random: &mut fastrand::Rng) -> Key {
    let group = [vec![b'g'], bytes(random, 1)].concat();
    Key::new(group, bytes(random, 4)).expect("short")
}

fn holds(scan: &Scan, item: &ItemKey) -> bool {
    let sort = item.sort();
    let is_before = scan.until.as_ref().is_none_or(|until| sort < *until);
    *item.partition() == scan.partition[..] && sort >= scan.from && is_before
}

#[test]
fn versions_lie_in_the_order_of_names_and_newest_first() {
    let random = &mut fastrand::Rng::with_seed(4);
    for _ in 0..20_000 {
        let (one, other) = (random_key(random), random_key(random));
        let (old, new) = (Slot(random.u64(..)), Slot(random.u64(..)));
        let (first, second) = (version(KEYSPACE, &one, old), version(KEYSPACE, &other, new));
        assert_eq!(version_of(&first.sort()), Some((one.clone(), old)));
        if one.group() == other.group() {
            let order = one.cmp(&other).then(new.cmp(&old));
            assert_eq!(first.sort().cmp(&second.sort()), order, "{one:?} {other:?}");
            assert_eq!(first.partition(), second.partition());
        }
        let read = versions(KEYSPACE, &one, new, 9);
        assert!(!holds(&read, &second) || one == other);
        assert_eq!(holds(&read, &first), old <= new, "{one:?}");
    }
}

#[test]
fn a_range_holds_the_versions_of_its_keys_alone() {
    let random = &mut fastrand::Rng::with_seed(5);
    let mut counts = [0; 2];
    for _ in 0..20_000 {
        let group = [vec![b'g'], bytes(random, 1)].concat();
        let until = random.bool().then(|| bytes(random, 3).into());
        let range = KeyRange::new(group, bytes(random, 3), until).expect("short");
        let key = random_key(random);
        let scan = versions_in(KEYSPACE, &range, 9);
        let item = version(KEYSPACE, &key, Slot(random.u64(..)));
        assert_eq!(
            holds(&scan, &item),
            range.contains(&key),
            "{range:?} {key:?}"
        );
        counts[usize::from(range.contains(&key))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 1_000), "{counts:?}");
}

#[test]
fn every_key_fits_a_sort_key() {
    let longest = Key::new(vec![0; GROUP_BYTES_MAX], vec![0; NAME_BYTES_MAX]).expect("in bounds");
    let item = version(KEYSPACE, &longest, Slot(1));
    assert_eq!(item.sort().len(), SORT_BYTES_MAX);
    assert_eq!(version_of(&item.sort()), Some((longest, Slot(1))));
}

#[test]
fn what_is_no_version_is_not_taken_for_one() {
    for sort in [
        &b""[..],
        b"g",
        b"g\0\x01",
        b"g\0\x01n\0\x01",
        b"g\0\x01n\0\x0112345678901",
        b"g\0\x03n\0\x0112345678",
        b"\0\x01n\0\x0112345678",
    ] {
        assert_eq!(version_of(sort), None, "{sort:?}");
    }
    assert_eq!(change_slot(b"1234567"), None);
    assert_eq!(
        change_slot(&change(KEYSPACE, Slot(7), 0).sort()),
        Some(Slot(7))
    );
}

#[test]
fn rows_of_two_kinds_or_volumes_lie_apart() {
    let name = PinName::new("state").expect("short");
    let (key, id) = (key("d", "a"), Bytes::from("state"));
    let rows = |keyspace| {
        [
            version(keyspace, &key, Slot(1)),
            stage_part(keyspace, StageId([0; 16]), 0),
            change(keyspace, Slot(1), 0),
            installed(keyspace),
            pin(keyspace, &name),
            outcome(keyspace, &id),
        ]
    };
    let rows = [rows(KeyspaceId(1)), rows(KeyspaceId(2))].concat();
    let partitions: std::collections::BTreeSet<_> =
        rows.iter().map(|row| row.partition().to_vec()).collect();
    assert_eq!(partitions.len(), rows.len());
    assert_ne!(numbers(KeyspaceId(1)), numbers(KeyspaceId(2)));
}

#[test]
fn a_version_is_read_back_and_damage_is_found() {
    let pieces = vec![Piece {
        offset: 9,
        data: Patch::Bytes("part".into()),
    }];
    for change in [
        Change::Delete,
        Change::Put("value".into()),
        Change::Patch(pieces),
    ] {
        let row = VersionRow::encode(&change);
        assert_eq!(VersionRow::decode(&row), Ok(Version::Here(change)));
        for place in 0..row.len() {
            let mut damaged = row.to_vec();
            damaged[place] ^= 4;
            let decoded = VersionRow::decode(&damaged);
            assert!(matches!(decoded, Err(Error::Corrupt(_))), "{decoded:?}");
        }
    }
    let long = Change::Put(vec![0; VALUE_BYTES_MAX + 1].into());
    assert!(VersionRow::decode(&VersionRow::encode(&long)).is_err());
}

/// V1, V3: an old proposal is checked against the rows of the slots after its snapshot.
#[test]
fn a_change_row_judges_old_proposals() {
    let row = ChangeRow {
        written_ms: 1,
        keys: vec![key("d", "b"), key("i", "n")],
        decided: vec![(id(1, 3), Verdict::SnapshotTooOld)],
    };
    assert_eq!(ChangeRow::decode(&row.encode()), Ok(row.clone()));
    let judge = |proposal: &Proposal| {
        let mut check = LateCheck::new(proposal);
        check.add(&row);
        check.verdict()
    };
    let judged = |reads: &[Key], range: Option<&KeyRange>| {
        judge(&Proposal {
            reads: reads.to_vec(),
            predicates: range
                .cloned()
                .map(Predicate::Untouched)
                .into_iter()
                .collect(),
            ..blind(Slot(0), 9, Vec::new())
        })
    };
    let conflict = |key| Some(Verdict::Conflict { key });
    assert_eq!(judged(&[key("d", "a")], None), None);
    assert_eq!(
        judged(&[key("d", "a"), key("i", "n")], None),
        conflict(key("i", "n"))
    );
    let range = |until| KeyRange::new("d", "a", Some(Bytes::from(until))).expect("short");
    assert_eq!(judged(&[], Some(&range("b"))), None);
    assert_eq!(judged(&[], Some(&range("c"))), conflict(key("d", "b")));
    let unsorted = ChangeRow {
        keys: vec![key("i", "n"), key("d", "b")],
        ..row
    };
    assert!(ChangeRow::decode(&unsorted.encode()).is_err());
}

/// V3: of all attempts of a transaction the last word counts.
#[test]
fn change_rows_know_the_attempts_of_a_transaction() {
    let row = |attempt, verdict| ChangeRow {
        written_ms: 1,
        keys: Vec::new(),
        decided: vec![(id(1, attempt), verdict)],
    };
    let asked = |attempt, rows: &[ChangeRow]| {
        let proposal = Proposal {
            id: id(1, attempt),
            ..blind(Slot(0), 1, Vec::new())
        };
        let mut check = LateCheck::new(&proposal);
        for row in rows {
            check.add(row);
        }
        check.verdict()
    };
    let closed = row(3, Verdict::SnapshotTooOld);
    let superseded = Some(Verdict::Refused(Refusal::Superseded));
    assert_eq!(asked(2, std::slice::from_ref(&closed)), superseded);
    assert_eq!(
        asked(3, std::slice::from_ref(&closed)),
        Some(Verdict::SnapshotTooOld)
    );
    assert_eq!(asked(4, std::slice::from_ref(&closed)), None);
    let committed = Verdict::Committed {
        slot: Slot(2),
        appended_at: Vec::new(),
    };
    let later = row(4, committed.clone());
    assert_eq!(asked(3, &[closed, later]), Some(committed));
}
