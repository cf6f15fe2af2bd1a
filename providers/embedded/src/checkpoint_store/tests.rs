//! Memories of deleted items go with a checkpoint, once their time is over.

use ports::key_value::{Version, evaluate::Stored};

use super::*;
use crate::{
    records::{
        StoredItem,
        overlay::{Generation, replay},
    },
    storage::DiskStorage,
};

/// What a deleted item leaves behind.
fn memory(expires_ms: u64) -> Record {
    let stored = Stored {
        item: None,
        version: Version(3),
        memory: None,
    };
    Record::Item(Arc::new(StoredItem { stored, expires_ms }))
}

fn key(name: &'static str) -> RecordKey {
    RecordKey::new(Table::Item, Bytes::from_static(name.as_bytes()))
}

/// A checkpoint of these changes.
fn write(
    checkpoint_store: &CheckpointStore,
    changes: &[(&'static str, Option<Record>)],
    now_ms: u64,
) {
    let mut generation = Generation::new();
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

/// How many records there are, and how many times at which one expires.
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

/// K8: the memory of a deletion is kept for its time and no longer, also where the store restarts in between.
#[test]
fn the_memory_of_a_deletion_goes_when_its_time_is_over() {
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

/// K8: a memory that is over by the time of its first checkpoint never gets there.
#[test]
fn a_memory_that_is_over_is_not_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoint_store = open(directory.path());
    write(&checkpoint_store, &[("late", Some(memory(1_000)))], 2_000);
    assert_eq!(counts(&checkpoint_store), (0, 0));
}

/// K8, K9: an item that was deleted again is remembered from then on.
#[test]
fn a_later_memory_outlives_the_time_of_the_one_before() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let checkpoint_store = open(directory.path());
    write(&checkpoint_store, &[("twice", Some(memory(1_000)))], 500);
    write(&checkpoint_store, &[("twice", Some(memory(5_000)))], 700);
    write(&checkpoint_store, &[], 2_000);
    assert_eq!(counts(&checkpoint_store), (1, 1), "the later one is there");
    write(&checkpoint_store, &[], 6_000);
    assert_eq!(counts(&checkpoint_store), (0, 0));
}
