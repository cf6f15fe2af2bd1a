use super::*;
use crate::serializable::model::Wait;

const BYTES: u64 = 12;

fn key(number: u8) -> Key {
    Key::new(vec![b'i'], vec![number]).expect("short")
}

fn owner(number: u64) -> Owner {
    Owner {
        session: SessionId(number / 2),
        id: number % 2,
    }
}

fn asked(key: Key, first: u64, last: u64, mode: LockMode) -> Lock {
    Lock {
        key,
        family: LockFamily::Posix,
        bytes: LockBytes { first, last },
        mode,
        pid: 7,
        wait: Wait::Never,
    }
}

/// F-1: the table grants exactly the locks that a map of single bytes would grant.
#[test]
fn locks_are_granted_byte_by_byte() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..300 {
        let mut table = LockTable::default();
        let mut bytes: BTreeMap<(u64, u64), LockMode> = BTreeMap::new();
        for _ in 0..60 {
            let by = random.u64(0..4);
            let (first, last) = (random.u64(0..BYTES), random.u64(0..BYTES));
            let mode = [LockMode::Shared, LockMode::Exclusive, LockMode::Unlocked];
            let lock = asked(key(0), first, last, mode[random.usize(..3)]);
            let is_in_the_way = |((byte, other), held): (&(u64, u64), &LockMode)| {
                let is_inside = (first..=last).contains(byte) && *other != by;
                let are_shared = lock.mode == LockMode::Shared && *held == LockMode::Shared;
                is_inside && !are_shared
            };
            let is_free = lock.mode == LockMode::Unlocked || !bytes.iter().any(is_in_the_way);
            let granted = table.take(owner(by), &lock, Slot(0));
            assert_eq!(granted == Granted::Yes, is_free, "{lock:?} by {by}");
            if is_free {
                bytes.retain(|(byte, other), _| *other != by || !(first..=last).contains(byte));
                let taken = (first..=last).map(|byte| ((byte, by), lock.mode));
                bytes.extend(taken.filter(|_| lock.mode != LockMode::Unlocked));
            }
        }
        for session in 0..2 {
            table.end_session(SessionId(session), Slot(0));
        }
        assert!(table.is_free_since(&key(0), Slot(0)));
    }
}

#[test]
fn the_families_of_locks_are_independent() {
    let mut table = LockTable::default();
    let posix = asked(key(0), 0, u64::MAX, LockMode::Exclusive);
    let flock = Lock {
        family: LockFamily::Flock,
        ..posix.clone()
    };
    assert_eq!(table.take(owner(0), &posix, Slot(0)), Granted::Yes);
    assert_eq!(table.take(owner(2), &flock, Slot(0)), Granted::Yes);
    let refused = Granted::No {
        bytes: LockBytes::ALL,
        mode: LockMode::Exclusive,
        pid: 7,
    };
    assert_eq!(table.take(owner(2), &posix, Slot(0)), refused);
}

/// F-1: a lock that was held after the snapshot is not elided, also once it is free.
#[test]
fn a_key_is_locked_up_to_the_slot_of_its_release() {
    let mut table = LockTable::starting_at(Slot(3));
    assert!(!table.is_free_since(&key(0), Slot(2)), "not known");
    assert!(table.is_free_since(&key(0), Slot(3)));
    table.take(owner(0), &asked(key(0), 0, 0, LockMode::Shared), Slot(4));
    assert!(!table.is_free_since(&key(0), Slot(9)), "it is locked");
    table.take(owner(0), &asked(key(0), 0, 9, LockMode::Unlocked), Slot(6));
    assert!(!table.is_free_since(&key(0), Slot(5)));
    assert!(table.is_free_since(&key(0), Slot(6)));
    table.take(owner(0), &asked(key(0), 0, 0, LockMode::Shared), Slot(7));
    table.end_session(SessionId(0), Slot(8));
    assert!(!table.is_free_since(&key(0), Slot(7)));
    assert!(table.is_free_since(&key(0), Slot(8)));
}

/// F-1: forgetting makes elision fail, never pass.
#[test]
fn a_forgotten_key_counts_as_locked_until_then() {
    let mut table = LockTable::default();
    let numbered =
        |number: usize| Key::new(vec![b'i'], number.to_be_bytes().to_vec()).expect("short");
    for number in 0..=KEYS_MAX {
        for mode in [LockMode::Exclusive, LockMode::Unlocked] {
            table.take(owner(0), &asked(numbered(number), 0, 0, mode), Slot(5));
        }
    }
    assert!(table.keys.len() <= KEYS_MAX);
    assert!(!table.is_free_since(&numbered(0), Slot(4)), "it was locked");
    assert!(!table.is_free_since(&key(9), Slot(4)), "as unknown");
    assert!(table.is_free_since(&key(9), Slot(5)));
}

/// Many locked keys make no operation on others slow, and the keys freed first are forgotten first.
#[test]
fn a_full_table_forgets_what_was_freed_first() {
    let mut table = LockTable::default();
    let numbered =
        |number: usize| Key::new(vec![b'i'], number.to_be_bytes().to_vec()).expect("short");
    for number in 0..KEYS_MAX {
        let lock = asked(numbered(number), 0, 0, LockMode::Exclusive);
        table.take(owner(0), &lock, Slot(1));
    }
    // A search for a key without locks would look at all of the others, 10,000 times.
    for turn in 0..5_000 {
        let key = numbered(usize::MAX - turn);
        for mode in [LockMode::Exclusive, LockMode::Unlocked] {
            table.take(owner(1), &asked(key.clone(), 0, 0, mode), Slot(2));
        }
    }
    assert_eq!(table.keys.len(), KEYS_MAX);
    assert!(table.is_free_since(&key(9), Slot(2)), "unknown up to 2");
    table.end_session(SessionId(0), Slot(3));
    assert_eq!(table.free.len(), KEYS_MAX);
    let (first, last) = (numbered(0), numbered(KEYS_MAX - 1));
    for mode in [LockMode::Exclusive, LockMode::Unlocked] {
        table.take(owner(1), &asked(first.clone(), 0, 0, mode), Slot(9));
    }
    let another = asked(numbered(KEYS_MAX), 0, 0, LockMode::Exclusive);
    table.take(owner(1), &another, Slot(9));
    assert!(table.keys.contains_key(&first), "it was freed last");
    assert!(table.keys.contains_key(&last));
    assert!(table.is_free_since(&key(9), Slot(3)), "not up to 9");
}
