//! The anomalies of weaker isolation, each looked for between two clients of one volume.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;
use crate::{
    Errno, Ino, Listing, Outcome, Transaction,
    model::{Privileges, RenameMode},
};

const ROOT: Ino = Ino::ROOT;
const KEEP: Privileges = Privileges::Keep;

/// Two clients, and a file of two blocks that begin with `0`.
async fn two() -> (FileSystem, FileSystem, Ino) {
    let volume = volume();
    let one = client(&volume, 1, Mutant::NONE).await;
    let two = client(&volume, 2, Mutant::NONE).await;
    let f = one.create(ROOT, ACCESS, &name("f")).await.expect("made");
    for offset in [0, BLOCK] {
        one.write(f, offset, KEEP, &name("0"))
            .await
            .expect("written");
    }
    (one, two, f)
}

async fn is_committed(transaction: Transaction) -> bool {
    let ended = transaction.commit(None, || true).await;
    matches!(ended.expect("a verdict"), Outcome::Committed { .. })
}

async fn value(transaction: &mut Transaction, f: Ino, offset: u64) -> Bytes {
    transaction.read(f, offset, 1).await.expect("read")
}

async fn put(transaction: &mut Transaction, f: Ino, offset: u64, text: &str) {
    let written = transaction.write(f, offset, KEEP, &name(text)).await;
    written.expect("written");
}

#[test]
fn of_two_updates_of_one_value_one_runs_again() {
    simulated::run(async {
        let (one, two, f) = two().await;
        let (mut first, mut second) = (one.begin(), two.begin());
        for transaction in [&mut first, &mut second] {
            assert_eq!(value(transaction, f, 0).await, "0");
            put(transaction, f, 0, "1").await;
        }
        assert!(is_committed(first).await);
        assert!(!is_committed(second).await);
        let mut again = two.begin();
        assert_eq!(value(&mut again, f, 0).await, "1");
        put(&mut again, f, 0, "2").await;
        assert!(is_committed(again).await);
    });
}

/// Each reads what the other writes: blocks of one file, and names.
#[test]
fn write_skew_is_refused_between_blocks_and_between_names() {
    simulated::run(async {
        let (one, two, f) = two().await;
        let (mut first, mut second) = (one.begin(), two.begin());
        for (transaction, own) in [(&mut first, 0), (&mut second, BLOCK)] {
            assert_eq!(value(transaction, f, 0).await, "0");
            assert_eq!(value(transaction, f, BLOCK).await, "0");
            put(transaction, f, own, "1").await;
        }
        assert!(is_committed(second).await);
        assert!(!is_committed(first).await);
        let (mut first, mut second) = (one.begin(), two.begin());
        for (transaction, own, other) in [(&mut first, "a", "b"), (&mut second, "b", "a")] {
            let found = transaction.lookup(ROOT, other.as_bytes()).await;
            assert_eq!(found, Err(Errno::ENOENT));
            let made = transaction.create(ROOT, ACCESS, own.as_bytes()).await;
            made.expect("made");
        }
        assert!(is_committed(first).await);
        assert!(!is_committed(second).await);
    });
}

/// A reader sees all of a transaction or nothing, and always commits.
#[test]
fn reads_are_not_fractured() {
    simulated::run(async {
        let (one, two, f) = two().await;
        let names = ["x0", "y0"];
        for text in names {
            one.create(ROOT, ACCESS, &name(text)).await.expect("made");
        }
        let mut readers = Vec::new();
        for turn in 1..9_u32 {
            let mut reader = two.begin();
            let (was, is) = (turn - 1, turn);
            // The first half is read before the other client's commit, and the rest after it.
            assert_eq!(value(&mut reader, f, 0).await, was.to_string());
            let x = reader.lookup(ROOT, format!("x{was}").as_bytes()).await;
            assert!(x.is_ok());
            let mut writer = one.begin();
            for offset in [0, BLOCK] {
                put(&mut writer, f, offset, &is.to_string()).await;
            }
            for letter in ["x", "y"] {
                let (from, to) = (format!("{letter}{was}"), format!("{letter}{is}"));
                let replace = RenameMode::Replace;
                let renamed = writer.rename(ROOT, ROOT, replace, from.as_bytes(), to.as_bytes());
                renamed.await.expect("renamed");
            }
            assert!(is_committed(writer).await);
            assert_eq!(value(&mut reader, f, BLOCK).await, was.to_string());
            let mut listing = Listing::new(ROOT);
            let listed = reader.list(&mut listing, 2, 9).await.expect("listed");
            let listed: Vec<Bytes> = listed.into_iter().map(|entry| entry.name).collect();
            let expected = ["f".to_owned(), format!("x{was}"), format!("y{was}")];
            assert_eq!(listed, expected.map(Bytes::from));
            readers.push(reader);
        }
        for reader in readers {
            assert!(is_committed(reader).await, "a reader never conflicts");
        }
    });
}

/// Records that are appended at the same time are all there, each whole.
#[test]
fn appends_of_two_clients_are_whole() {
    simulated::run(async {
        let (one, two, _) = two().await;
        let log = one.create(ROOT, ACCESS, &name("log")).await.expect("made");
        let mut expected = BTreeSet::new();
        for turn in 0..50 {
            let (mut first, mut second) = (one.begin(), two.begin());
            for (transaction, letter) in [(&mut first, 'a'), (&mut second, 'b')] {
                let record = format!("{letter}{turn:0149}\n");
                let appended = transaction.append(log, KEEP, &name(&record)).await;
                appended.expect("appended");
                expected.insert(record);
            }
            assert!(is_committed(second).await && is_committed(first).await);
        }
        let data = two.read(log, 0, 1 << 20).await.expect("read");
        let text = String::from_utf8(data.to_vec()).expect("text");
        let found: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        assert_eq!(found.len(), 100);
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    });
}

/// A name that is replaced is always there. Of two renames onto it, the later one wins; of two that
/// move one name, one conflicts.
#[test]
fn renames_replace_at_once() {
    simulated::run(async {
        let (one, two, _) = two().await;
        for text in ["config", "a", "b"] {
            one.create(ROOT, ACCESS, &name(text)).await.expect("made");
        }
        let ino = async |text: &str| {
            let found = one.lookup(ROOT, &name(text)).await;
            found.expect("it is always there").ino
        };
        let (a, b) = (ino("a").await, ino("b").await);
        let replace = RenameMode::Replace;
        let rename = async |files: &FileSystem, from: &'static [u8]| {
            let mut transaction = files.begin();
            let renamed = transaction
                .rename(ROOT, ROOT, replace, from, b"config")
                .await;
            renamed.expect("renamed");
            transaction
        };
        let (first, second) = (rename(&one, b"a").await, rename(&two, b"b").await);
        assert!(is_committed(first).await);
        assert_eq!(ino("config").await, a);
        // A rename reads whether there is something to replace, whose last name then goes.
        assert!(!is_committed(second).await);
        let second = rename(&two, b"b").await;
        let third = rename(&one, b"b").await;
        assert!(is_committed(second).await);
        assert_eq!(ino("config").await, b);
        assert!(!is_committed(third).await);
    });
}

/// A change that another client made and undid meanwhile is still a conflict: the volume compares
/// versions, not values.
#[test]
fn a_value_that_came_back_is_a_conflict() {
    simulated::run(async {
        let (one, two, f) = two().await;
        let mut transaction = one.begin();
        assert_eq!(value(&mut transaction, f, 0).await, "0");
        put(&mut transaction, f, BLOCK, "x").await;
        for text in ["1", "0"] {
            two.write(f, 0, KEEP, &name(text)).await.expect("written");
        }
        assert!(!is_committed(transaction).await);
    });
}

/// A commit that has returned is seen by every transaction that begins after it.
#[test]
fn a_message_outside_does_not_overtake_a_commit() {
    simulated::run(async {
        let (one, two, f) = two().await;
        let clients = [&one, &two];
        for turn in 1..20_usize {
            let mut writer = clients[turn % 2].begin();
            put(&mut writer, f, 0, &(turn % 10).to_string()).await;
            assert!(is_committed(writer).await);
            let mut reader = clients[(turn + 1) % 2].begin();
            assert_eq!(value(&mut reader, f, 0).await, (turn % 10).to_string());
        }
    });
}

/// The operations of a transaction, by the place of a list: it appended its number, or read the
/// list.
#[derive(Debug, Default)]
struct Done {
    appended: BTreeSet<usize>,
    read: BTreeMap<usize, Vec<u32>>,
}

/// Whether the transactions could have happened one after the other, given the lists at the end.
fn is_serializable(done: &BTreeMap<u32, Done>, lists: &[Vec<u32>]) -> bool {
    let mut after: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut edge = |from: u32, to: u32| {
        if from != to {
            after.entry(from).or_default().insert(to);
        }
    };
    for list in lists {
        for pair in list.windows(2) {
            edge(pair[0], pair[1]);
        }
    }
    for (number, done) in done {
        for (place, seen) in &done.read {
            let list = &lists[*place];
            if !list.starts_with(seen) {
                return false;
            }
            if let Some(last) = seen.last() {
                edge(*last, *number);
            }
            if let Some(next) = list.get(seen.len()) {
                edge(*number, *next);
            }
        }
    }
    // Transactions that no other precedes go first. If some are left, they form a circle.
    let mut left: BTreeSet<u32> = done.keys().copied().collect();
    loop {
        let preceded: BTreeSet<u32> = left
            .iter()
            .filter_map(|number| after.get(number))
            .flatten()
            .copied()
            .collect();
        let before = left.len();
        left.retain(|number| preceded.contains(number));
        if left.len() == before {
            return left.is_empty();
        }
    }
}

async fn list(transaction: &mut Transaction, ino: Ino) -> Vec<u32> {
    let data = transaction.read(ino, 0, 1 << 20).await.expect("read");
    let numbers = data.chunks(4).map(|bytes| {
        let bytes = bytes.try_into().expect("appends are whole");
        u32::from_be_bytes(bytes)
    });
    numbers.collect()
}

async fn histories(seed: u64) -> usize {
    const LISTS: usize = 3;
    let random = &mut Rng::with_seed(seed);
    let (one, two, _) = two().await;
    let clients = [&one, &two];
    let mut inodes = Vec::new();
    for place in 0..LISTS {
        let made = one.create(ROOT, ACCESS, &name(&place.to_string())).await;
        inodes.push(made.expect("made"));
    }
    let mut done = BTreeMap::new();
    let mut next = 0;
    for _ in 0..30 {
        let begin = |client: &&FileSystem| (client.begin(), Done::default());
        let mut open: Vec<(Transaction, Done, u32)> = clients
            .iter()
            .cycle()
            .take(3)
            .map(begin)
            .map(|(transaction, done)| {
                next += 1;
                (transaction, done, next)
            })
            .collect();
        for _ in 0..random.usize(3..12) {
            let which = random.usize(..open.len());
            let (transaction, done, number) = &mut open[which];
            let place = random.usize(..LISTS);
            let is_own = done.appended.contains(&place);
            if random.bool() && !is_own {
                let data = Bytes::copy_from_slice(&number.to_be_bytes());
                let appended = transaction.append(inodes[place], KEEP, &data).await;
                appended.expect("appended");
                done.appended.insert(place);
            } else if !is_own {
                let seen = list(transaction, inodes[place]).await;
                let before = done.read.insert(place, seen.clone());
                assert!(before.is_none_or(|before| before == seen), "seed {seed}");
            }
        }
        random.shuffle(&mut open);
        for (transaction, of, number) in open {
            if is_committed(transaction).await {
                done.insert(number, of);
            }
        }
    }
    let mut last = one.begin();
    let mut lists = Vec::new();
    for ino in inodes {
        lists.push(list(&mut last, ino).await);
    }
    let appended: usize = done.values().map(|done: &Done| done.appended.len()).sum();
    assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), appended);
    assert!(
        is_serializable(&done, &lists),
        "seed {seed}: {done:?} {lists:?}"
    );
    done.len()
}

/// Random transactions on lists: their reads and appends form no circle.
#[test]
fn random_histories_have_no_circle() {
    let committed = simulated::seeds(100).map(|seed| simulated::run(histories(seed)));
    assert!(committed.sum::<usize>() > 0);
    // The check itself: each of two transactions missed what the other appended.
    let skewed = |own, other| Done {
        appended: BTreeSet::from([own]),
        read: BTreeMap::from([(other, Vec::new())]),
    };
    let done = BTreeMap::from([(1, skewed(0, 1)), (2, skewed(1, 0))]);
    assert!(!is_serializable(&done, &[vec![1], vec![2]]));
    assert!(is_serializable(&done, &[vec![], vec![2]]));
}
