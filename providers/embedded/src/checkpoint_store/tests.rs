//! A checkpoint removes the memories of deleted items once they have expired.

use ports::key_value::{Version, evaluate::Stored};

use super::*;
use crate::{
    directory::format,
    records::{
        StoredItem,
        overlay::{Generation, replay},
    },
    storage::DiskStorage,
};

/// The memory that a deleted item leaves.
fn memory(expires_ms: u64) -> Record {
    let stored = Stored {
        item: None,
        version: Version(3),
        memory: None,
    };
    Record::Item(StoredItem { stored, expires_ms })
}

fn key(name: &'static str) -> RecordKey {
    RecordKey::new(Table::Item, Bytes::from_static(name.as_bytes()))
}

/// Makes a checkpoint of these changes.
fn write(
    checkpoint_store: &CheckpointStore,
    changes: &[(&'static str, Option<Record>)],
    now_ms: u64,
) {
    let mut generation = Generation::default();
    for (name, record) in changes {
        replay(&mut generation, key(name), record.clone(), true);
    }
    checkpoint_store
        .write(
            generation.in_order(),
            CheckpointEnd::default(),
            Expiring::by(now_ms),
        )
        .expect("it is written");
}

/// The number of records, and the number of expiry entries.
fn counts(checkpoint_store: &CheckpointStore) -> (u64, u64) {
    use redb::ReadableTableMetadata as _;
    let guard = checkpoint_store.database.lock();
    let read = guard
        .as_ref()
        .expect("it is open")
        .begin_read()
        .expect("it is read");
    let records = read
        .open_table(RECORDS)
        .expect("it is there")
        .len()
        .expect("it is counted");
    (
        records,
        read.open_table(EXPIRIES)
            .expect("it is there")
            .len()
            .expect("it is counted"),
    )
}

fn open(directory: &Path) -> CheckpointStore {
    let config = Config {
        cache_bytes: 1 << 20,
        ..Config::new(directory)
    };
    let format = format::open(&DiskStorage, directory).expect("it is new, or of today");
    CheckpointStore::open(&config, format).expect("it opens")
}

/// K8: the memory of a deletion is kept for its retention time and no longer, even across a
/// restart.
#[test]
fn the_memory_of_a_deletion_is_removed_once_it_has_expired() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoint_store = open(directory.path());
    write(
        &checkpoint_store,
        &[
            ("short", Some(memory(1_000))),
            ("long", Some(memory(5_000))),
        ],
        500,
    );
    assert_eq!(counts(&checkpoint_store), (2, 2));
    write(&checkpoint_store, &[], 900);
    assert_eq!(counts(&checkpoint_store), (2, 2), "neither is over");
    checkpoint_store.close();
    let checkpoint_store = open(directory.path());
    write(&checkpoint_store, &[], 2_000);
    assert_eq!(counts(&checkpoint_store), (1, 1), "one is over");
    write(&checkpoint_store, &[], 6_000);
    assert_eq!(counts(&checkpoint_store), (0, 0));
}

/// K8: a memory that expires before its first checkpoint is never written.
#[test]
fn an_expired_memory_is_not_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoint_store = open(directory.path());
    write(&checkpoint_store, &[("late", Some(memory(1_000)))], 2_000);
    assert_eq!(counts(&checkpoint_store), (0, 0));
}

/// K8, K9: a second deletion starts the retention time anew.
#[test]
fn a_later_memory_outlives_the_earlier_expiry() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoint_store = open(directory.path());
    write(&checkpoint_store, &[("twice", Some(memory(1_000)))], 500);
    write(&checkpoint_store, &[("twice", Some(memory(5_000)))], 700);
    write(&checkpoint_store, &[], 2_000);
    assert_eq!(counts(&checkpoint_store), (1, 1), "the later one is there");
    write(&checkpoint_store, &[], 6_000);
    assert_eq!(counts(&checkpoint_store), (0, 0));
}
