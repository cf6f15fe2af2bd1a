//! Flipped bits in the checkpoint store: reads that need them are refused by name, and the bits are
//! never served.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use embedded::{Config, Embedded, OpenError};
use ports::{
    Error, ErrorKind, KeyValue, Update,
    key_value::{Action, Scan},
};

use crate::world::{
    block_on, config, directory, durably, eventually, key, message, patient, put, settle, value,
};

/// How many offsets are tried.
const PLACES: usize = 60;

const ITEMS: usize = 300;
const MESSAGES: usize = 20;

fn name(number: usize) -> String {
    format!("item-{number:04}")
}

/// The data of item `number`. All differ, and some are larger than a block.
fn data(number: usize) -> Bytes {
    let length = if number.is_multiple_of(50) {
        60_000
    } else {
        100 + 37 * (number % 90)
    };
    Bytes::from(format!("<{number}>").repeat(length)[..length].to_owned())
}

fn write(number: usize) -> Update {
    Update::modify(key(&name(number)), vec![Action::set("data", data(number))])
}

/// Builds a store whose items and messages are all in a checkpoint store that was rewritten several
/// times.
async fn build(directory: &Path) {
    let store = Embedded::open(config(directory))
        .await
        .expect("the store opens");
    let kv = store.key_value();
    for number in (0..ITEMS).chain((0..ITEMS).step_by(3)) {
        kv.update(write(number)).await.expect("there is room");
    }
    store
        .queue()
        .create("work", patient())
        .await
        .expect("create answers");
    for number in 0..MESSAGES {
        let sent = store
            .queue()
            .send(
                "work",
                vec![message(&format!("group-{number}"), data(number))],
            )
            .await;
        sent.expect("there is room");
    }
    settle(&kv).await;
    store.close().await;
}

fn file(directory: &Path) -> PathBuf {
    directory.join("state.redb")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("journal")).expect("it is made");
    for folder in ["", "journal"] {
        for entry in fs::read_dir(from.join(folder)).expect("it lists") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                fs::copy(
                    &path,
                    to.join(folder).join(path.file_name().expect("a name")),
                )
                .expect("it is copied");
            }
        }
    }
}

fn flip(path: &Path, at: usize, bit: u32) {
    let mut bytes = fs::read(path).expect("it reads");
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).expect("it is written");
}

fn names_the_file(said: &str, directory: &Path) {
    assert!(
        said.contains(&file(directory).display().to_string()),
        "{said}"
    );
}

/// Asserts that the damage alone caused the error.
fn is_refusal(error: &Error, directory: &Path) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    names_the_file(&error.to_string(), directory);
    assert!(error.to_string().contains("damaged at byte"), "{error}");
}

/// Reads every item singly and in a walk. Each read must be right or refused. Returns the number of
/// refused reads.
async fn read_all(kv: &Arc<dyn KeyValue>, directory: &Path) -> usize {
    let mut refused = 0;
    for number in 0..ITEMS {
        match kv.get(&key(&name(number))).await {
            Ok(read) => {
                let item = read
                    .value
                    .unwrap_or_else(|| panic!("item {number} is not there"));
                assert_eq!(item.bytes("data"), Some(&data(number)), "item {number}");
            }
            Err(error) => {
                is_refusal(&error, directory);
                refused += 1;
            }
        }
    }
    let mut scan = Scan::partition("test", ITEMS);
    let mut seen = BTreeMap::new();
    loop {
        match kv.scan(&scan).await {
            Ok(page) => {
                seen.extend(page.value.items);
                let Some(next) = page.value.next else { break };
                scan.from = next;
            }
            Err(error) => {
                is_refusal(&error, directory);
                return refused + 1;
            }
        }
    }
    assert_eq!(seen.len(), ITEMS);
    for (number, item) in seen.values().enumerate() {
        assert_eq!(
            item.bytes("data"),
            Some(&data(number)),
            "item {number} in a walk"
        );
    }
    refused
}

/// Receives every message, which must be right or refused.
async fn receive_all(store: &Embedded, directory: &Path) -> usize {
    let mut refused = 0;
    for _ in 0..MESSAGES {
        match store.queue().receive("work", 1).await {
            Ok(taken) => {
                let group = std::str::from_utf8(&taken[0].handle.group)
                    .expect("a name")
                    .to_owned();
                let number = group["group-".len()..].parse().expect("a number");
                assert_eq!(taken[0].body, data(number), "{group}");
            }
            Err(error) => {
                is_refusal(&error, directory);
                refused += 1;
            }
        }
    }
    refused
}

/// Where the effect of one flipped bit was first met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    AtOpen,
    InReads,
    InTheCheckpoint,
    Never,
}

async fn meet(directory: &Path) -> Met {
    let config = Config {
        checkpoint_bytes: 64 << 10,
        ..config(directory)
    };
    let store = match Embedded::open(config).await {
        Ok(store) => store,
        Err(error) => {
            names_the_file(&error.to_string(), directory);
            assert!(
                error
                    .to_string()
                    .contains("restore the whole data directory"),
                "{error}"
            );
            return Met::AtOpen;
        }
    };
    let kv = store.key_value();
    let refused = read_all(&kv, directory).await + receive_all(&store, directory).await;
    assert_eq!(
        refused > 0,
        store.status().damage.is_some(),
        "{refused} reads were refused"
    );
    let written = write_beside(&kv, directory).await;
    settle(&kv).await;
    eventually("a checkpoint is tried", || {
        let status = store.status();
        status.checkpoints > 0 || status.checkpoint_error.is_some()
    })
    .await;
    let status = store.status();
    if let Some(error) = &status.checkpoint_error {
        names_the_file(error, directory);
        names_the_file(
            status.damage.as_ref().expect("the status reports it"),
            directory,
        );
    }
    for beside in written {
        match kv.get(&key(&beside)).await {
            Ok(read) => assert_eq!(read.value.and_then(|item| item.integer("value")), Some(1)),
            Err(error) => is_refusal(&error, directory),
        }
    }
    match (refused, status.damage) {
        (0, None) => Met::Never,
        (0, Some(_)) => Met::InTheCheckpoint,
        _ => Met::InReads,
    }
}

/// Writes a key beside every item, so that a checkpoint is made or reports why it failed. Returns
/// the written keys.
async fn write_beside(kv: &Arc<dyn KeyValue>, directory: &Path) -> Vec<String> {
    let mut written = Vec::new();
    for number in 0..ITEMS {
        let beside = format!("{}-beside", name(number));
        match kv.update(put(&beside, 1)).await {
            Ok(_) => written.push(beside),
            Err(error) => is_refusal(&error, directory),
        }
    }
    for number in 0..4 {
        let large = vec![Action::set("data", data(number * 50))];
        if let Err(error) = kv
            .update(Update::modify(key(&format!("zz-{number}")), large))
            .await
        {
            is_refusal(&error, directory);
        }
    }
    written
}

/// After a bit flips anywhere, every read is right or refused by name: at open, while serving and
/// in checkpoints. A verification of the whole file detects the bit too.
#[test]
fn a_flipped_bit_anywhere_in_the_checkpoint_store_is_never_served() {
    let built = directory();
    block_on(async {
        build(built.path()).await;
        assert!(
            embedded::verify(built.path())
                .expect("it is whole")
                .is_some_and(|records| records > 300)
        );
        let length = fs::read(file(built.path())).expect("it reads").len();
        let random = &mut fastrand::Rng::with_seed(5);
        let mut met = BTreeMap::new();
        for place in 0..PLACES {
            let directory = directory();
            copy(built.path(), directory.path());
            // Every tenth offset is near the start, where the heads are.
            let at = random.usize(..if place % 10 == 0 { 9000 } else { length });
            flip(&file(directory.path()), at, random.u32(..8));
            let verified = embedded::verify(directory.path());
            if let Err(error) = &verified {
                names_the_file(&error.to_string(), directory.path());
            }
            let is_met = meet(directory.path()).await;
            if matches!(is_met, Met::AtOpen | Met::InReads) {
                assert!(
                    verified.is_err(),
                    "byte {at} was met {is_met:?}, but not by the verification"
                );
            }
            *met.entry(is_met).or_insert(0) += 1;
        }
        assert!(
            met.get(&Met::InReads).is_some_and(|count| *count > 5),
            "{met:?}"
        );
        assert!(met.contains_key(&Met::Never), "{met:?}");
    });
}

/// Builds a store and flips a byte of the value of item `number` in its file.
async fn with_a_flipped_value(directory: &Path, number: usize) {
    build(directory).await;
    let bytes = fs::read(file(directory)).expect("it reads");
    let value = data(number);
    // The tree was rewritten, so the file holds earlier copies of the same bytes beside the one in
    // use.
    let places: Vec<usize> = (0..bytes.len() - value.len())
        .filter(|at| bytes[*at..].starts_with(&value))
        .collect();
    assert!(!places.is_empty());
    let mut bytes = bytes;
    for place in places {
        bytes[place + 17] ^= 1;
    }
    fs::write(file(directory), bytes).expect("it is written");
}

/// The damaged item is refused each time it is read. Other items are served meanwhile, and writes
/// go on.
#[test]
fn undamaged_items_are_served_however_often_damage_is_read() {
    let directory = directory();
    block_on(async {
        with_a_flipped_value(directory.path(), 77).await;
        let store = Embedded::open(config(directory.path()))
            .await
            .expect("the store opens");
        let kv = store.key_value();
        for round in 0..50 {
            let refused = kv.get(&key(&name(77))).await.expect_err("it is damaged");
            is_refusal(&refused, directory.path());
            let far = kv
                .get(&key(&name(250)))
                .await
                .expect("it lies elsewhere")
                .value
                .expect("it is there");
            assert_eq!(far.bytes("data"), Some(&data(250)));
            durably(&kv, put("written", round)).await;
        }
        let changed = kv
            .update(write(77))
            .await
            .expect_err("its present state is unknown");
        is_refusal(&changed, directory.path());
        assert!(store.status().damage.is_some());
    });
}

/// The broken variant: without the comparison the flipped bit is served, so the tests above can
/// detect it.
#[test]
fn a_store_that_does_not_compare_checksums_serves_flipped_bits() {
    let directory = directory();
    block_on(async {
        with_a_flipped_value(directory.path(), 77).await;
        let config = Config {
            skip_block_checksums: true,
            ..config(directory.path())
        };
        let store = Embedded::open(config).await.expect("the store opens");
        let item = store
            .key_value()
            .get(&key(&name(77)))
            .await
            .expect("it is served")
            .value;
        assert_ne!(item.expect("it is there").bytes("data"), Some(&data(77)));
    });
}

/// Either head alone suffices. Without both the store is refused.
#[test]
fn one_of_two_heads_is_enough_and_is_written_again() {
    let built = directory();
    block_on(async {
        build(built.path()).await;
        for damaged in [vec![100], vec![8192 + 100], vec![100, 8192 + 100]] {
            let directory = directory();
            copy(built.path(), directory.path());
            for at in &damaged {
                flip(&file(directory.path()), *at, 3);
            }
            let opened = Embedded::open(config(directory.path())).await;
            if damaged.len() == 2 {
                let refused = opened.expect_err("no head is whole");
                names_the_file(&refused.to_string(), directory.path());
                continue;
            }
            let store = opened.expect("the other one counts");
            assert_eq!(read_all(&store.key_value(), directory.path()).await, 0);
            store.close().await;
            // The copy that was whole may be damaged now.
            flip(
                &file(directory.path()),
                if damaged[0] < 8192 { 8192 + 100 } else { 100 },
                3,
            );
            let store = Embedded::open(config(directory.path()))
                .await
                .expect("it was written again");
            assert_eq!(read_all(&store.key_value(), directory.path()).await, 0);
        }
    });
}

/// An inspection changes nothing, even after the process was killed. An open store is not
/// inspected.
#[test]
fn verification_writes_nothing_and_accepts_a_store_that_was_not_closed() {
    let (built, killed) = (directory(), directory());
    block_on(async {
        build(built.path()).await;
        let config = Config {
            checkpoint_bytes: 64 << 10,
            ..config(built.path())
        };
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        let mut number = 0;
        while store.status().checkpoints == 0 {
            durably(&kv, put(&format!("later-{number}"), 1)).await;
            number += 1;
        }
        let refused = embedded::verify(built.path()).expect_err("it is open");
        assert!(matches!(refused, OpenError::Locked { .. }), "{refused:?}");
        copy(built.path(), killed.path());
        let before = fs::read(file(killed.path())).expect("it reads");
        assert!(
            embedded::verify(killed.path())
                .expect("it is whole")
                .is_some_and(|records| records > 300)
        );
        assert!(
            fs::read(file(killed.path())).expect("it reads") == before,
            "looking has changed it"
        );
    });
}

/// D1: only the checkpoint store held the records of removed segments, so a start must not create
/// another store in its place.
#[test]
fn a_directory_whose_checkpoint_store_is_gone_refuses_to_start_and_names_it() {
    let directory = directory();
    let path = directory.path();
    let config = Config {
        checkpoint_bytes: 20 << 10,
        journal_segment_bytes: 16 << 10,
        ..config(path)
    };
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        let mut number = 0;
        while path.join("journal/00000001.log").exists() {
            assert!(number < 5_000, "no segment was removed");
            number += 1;
            durably(&kv, put("kept", number)).await;
        }
        store.close().await;
        drop((store, kv));
        let file = path.join("state.redb");
        let kept = fs::read(&file).expect("it reads");
        fs::remove_file(&file).expect("it goes");
        let refused = Embedded::open(config.clone())
            .await
            .expect_err("what it held is gone");
        assert!(
            matches!(&refused, OpenError::Missing { file: missing } if *missing == file),
            "{refused:?}"
        );
        assert!(!file.exists(), "nothing was made in its place");
        fs::write(&file, kept).expect("it is put back");
        let store = Embedded::open(config).await.expect("the store opens");
        assert_eq!(value(&store.key_value(), "kept").await, Some(number));
    });
}
