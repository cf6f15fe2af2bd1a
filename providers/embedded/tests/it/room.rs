//! A full disk: writes are refused, reads go on, and the store recovers by itself (rule P6).

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use embedded::{Config, Embedded};
use ports::{
    ErrorKind, KeyValue, Update,
    key_value::{Action, Condition, Test, Transacted},
    objects::{self, ObjectPath, ObjectStoreExt as _},
};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        SEGMENT_BYTES, block_on, config, directory, done, durably, eventually, found, key, message,
        patient, put, settle, value,
    },
};

pub(crate) fn filler(number: usize) -> Update {
    let data = Bytes::from(vec![number as u8; 20_000]);
    Update::modify(
        key(&format!("filler-{number:04}")),
        vec![Action::set("data", data)],
    )
}

/// Writes fillers until one is refused. Returns how many were written.
pub(crate) async fn fill(kv: &Arc<dyn KeyValue>) -> usize {
    for number in 0..10_000 {
        match kv.update(filler(number)).await {
            Ok(_) => settle(kv).await,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                return number;
            }
        }
    }
    panic!("the disk never filled");
}

/// Asserts that the refusal changed nothing, and that all written items exist.
async fn reads_go_on(kv: &Arc<dyn KeyValue>, done: usize) {
    for number in 0..done {
        let item = kv
            .get(&key(&format!("filler-{number:04}")))
            .await
            .expect("reads go on")
            .value;
        assert!(item.is_some(), "filler {number} is gone");
    }
    let refused = kv
        .get(&key(&format!("filler-{done:04}")))
        .await
        .expect("reads go on")
        .value;
    assert_eq!(refused, None, "a refused write was seen");
}

/// Waits until the store notices that there is room for filler `number`, and until that one is
/// durable.
pub(crate) async fn space_returns(kv: &Arc<dyn KeyValue>, number: usize) {
    let written = async || match kv.update(filler(number)).await {
        Ok(updated) => Some(updated.receipt),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
            None
        }
    };
    let receipt = found("space returned and the store notices", written).await;
    kv.externalize(receipt.point)
        .await
        .expect("it becomes durable");
}

pub(crate) fn faulty(path: &Path) -> (Arc<Faults>, Config) {
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    (
        faults,
        Config {
            storage,
            ..config(path)
        },
    )
}

/// P6.
#[test]
fn a_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        let queue = store.queue();
        queue
            .create("work", patient())
            .await
            .expect("create answers");
        settle(&kv).await;
        faults
            .capacity
            .store(faults.used() + (600 << 10), Ordering::SeqCst);
        let written = fill(&kv).await;
        assert!(
            written > 10,
            "{written} were written before the disk was full"
        );
        assert!(store.status().is_full);
        reads_go_on(&kv, written).await;
        let pair = kv
            .transact(vec![filler(9000), filler(9001)])
            .await
            .expect_err("no room for two either");
        assert_eq!(pair.kind(), ErrorKind::NoRoom);
        let sent = queue
            .send("work", vec![message("group", vec![1; 30_000])])
            .await
            .expect_err("nor for a message");
        assert_eq!(sent.kind(), ErrorKind::NoRoom);
        assert!(
            queue
                .receive("work", 1)
                .await
                .expect("receive answers")
                .is_empty()
        );

        faults.capacity.store(0, Ordering::SeqCst);
        space_returns(&kv, written).await;
        drop((store, kv, queue));
        let store = Embedded::open(config).await.expect("the store opens");
        reads_go_on(&store.key_value(), written + 1).await;
    });
}

/// P6.
#[test]
fn a_transient_update_takes_no_room_and_is_visible_to_all() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, reserved) = (store.key_value(), store.key_value_with_reserve());
        durably(&kv, put("lease", 0)).await;
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        fill(&reserved).await;
        let synced = store.status().fsyncs;
        for renewal in 1..10_000 {
            let renewed = Condition::attribute("value", Test::is_integer(renewal - 1));
            durably(&kv, put("lease", renewal).when(renewed).transient()).await;
        }
        assert_eq!(store.status().fsyncs, synced, "nothing was journaled");
        assert_eq!(value(&kv, "lease").await, Some(9_999));
        faults.capacity.store(0, Ordering::SeqCst);
        let later = async || kv.update(put("lease", 10_000)).await.ok();
        let receipt = found("space returns", later).await.receipt;
        kv.externalize(receipt.point)
            .await
            .expect("it becomes durable");
    });
}

/// P6.
#[test]
fn the_journal_on_a_nearly_full_disk_leaves_room_for_a_checkpoint() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        let room = faults.used() + SEGMENT_BYTES * 3 / 4;
        faults.capacity.store(room, Ordering::SeqCst);
        Faults::set(&faults.no_room_for_checkpoints, true);
        let written = fill(&kv).await;
        let journaled = store.status().journal_bytes;
        assert!(
            journaled > SEGMENT_BYTES,
            "{journaled} bytes are less than were allocated at first"
        );
        // A checkpoint may take twice the journal's bytes from the space that the journal does not
        // use.
        let left = room - faults.used_in(&directory.path().join("journal"));
        assert!(
            2 * journaled <= left,
            "{journaled} bytes are more than a checkpoint has room for: {left}"
        );
        reads_go_on(&kv, written).await;

        Faults::set(&faults.no_room_for_checkpoints, false);
        faults
            .capacity
            .store(room + 2 * written as u64 * 20_000, Ordering::SeqCst);
        space_returns(&kv, written).await;
        found("a checkpoint gives segments back", async || {
            // Until then there may be no room again, because the returned space is small.
            let _ = kv.update(put("nudge", 1)).await;
            (store.status().checkpoints > 0).then_some(())
        })
        .await;
    });
}

/// P6.
#[test]
fn a_checkpoint_that_meets_a_full_disk_loses_nothing_and_is_retried() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    let config = Config {
        checkpoint_bytes: 200 << 10,
        ..config
    };
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        Faults::set(&faults.no_room_for_checkpoints, true);
        let mut written = 0;
        while store.status().checkpoint_error.is_none() && tried(&kv, filler(written)).await {
            written += 1;
            assert!(written < 1000, "no checkpoint met the full disk");
        }
        eventually("a checkpoint fails", || {
            store.status().checkpoint_error.is_some()
        })
        .await;
        assert!(
            !tried(&kv, filler(written)).await,
            "no checkpoint would have room for it"
        );
        durably(&kv, Update::delete(key("filler-0000"))).await;
        assert!(
            kv.get(&key("filler-0000"))
                .await
                .expect("reads go on")
                .value
                .is_none()
        );
        let filler_again = async || tried(&kv, filler(0)).await.then_some(());
        let made = store.status().checkpoints;
        Faults::set(&faults.no_room_for_checkpoints, false);
        found(
            "the checkpoint is tried again by a later commit",
            async || {
                // Until then there may be no room again, because the returned space is small.
                let _ = kv.update(put("nudge", 1)).await;
                (store.status().checkpoints > made).then_some(())
            },
        )
        .await;
        assert_eq!(store.status().checkpoint_error, None);
        found("growth is taken again", filler_again).await;
        reads_go_on(&kv, written).await;
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        reads_go_on(&store.key_value(), written).await;
    });
}

/// P6: if checkpoints fail on a disk with room, neither the disk nor memory fills with journal.
#[test]
fn while_checkpoints_fail_the_journal_grows_to_four_times_its_usual_length_at_most() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    let usual = 200 << 10;
    let config = Config {
        checkpoint_bytes: usual,
        ..config
    };
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        Faults::set(&faults.fail_checkpoints, true);
        let mut written = 0;
        while tried(&kv, filler(written)).await {
            written += 1;
            assert!(
                written < 1000,
                "the journal grew to {} bytes",
                store.status().journal_bytes
            );
        }
        let journaled = store.status().journal_bytes;
        assert!(
            journaled >= 4 * usual,
            "growth was refused at {journaled} bytes"
        );
        // One more interval of the usual length, and the writes during its failing checkpoint.
        assert!(
            journaled <= 8 * usual,
            "the journal grew to {journaled} bytes"
        );
        durably(&kv, Update::delete(key("filler-0000"))).await;
        Faults::set(&faults.fail_checkpoints, false);
        let taken = async || {
            durably(
                &kv,
                Update::delete(key(&format!("filler-{:04}", written - 1))),
            )
            .await;
            tried(&kv, filler(0)).await.then_some(())
        };
        found("growth is taken again", taken).await;
        reads_go_on(&kv, written - 1).await;
        assert!(store.status().journal_bytes < 4 * usual);
    });
}

/// P6: a transaction larger than a segment gets a segment of its own size.
#[test]
fn a_transaction_larger_than_a_segment_survives_a_crash_as_a_whole() {
    let directory = directory();
    block_on(async {
        let store = Embedded::open(config(directory.path()))
            .await
            .expect("the store opens");
        let kv = store.key_value();
        let updates = (0..100).map(filler).collect();
        let outcome = kv.transact(updates).await.expect("transact answers");
        assert!(matches!(outcome, Transacted::Done { .. }));
        settle(&kv).await;
        drop((store, kv));
        let store = Embedded::open(config(directory.path()))
            .await
            .expect("the store opens");
        reads_go_on(&store.key_value(), 100).await;
    });
}

/// A small file system in memory, which is unmounted when this is dropped.
pub(crate) struct SmallDisk<'directory>(&'directory Path);

impl<'directory> SmallDisk<'directory> {
    /// Mounts it for `test`, which is skipped if this user may not mount.
    pub(crate) fn mount(directory: &'directory Path, test: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(directory)
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: {test}: this machine does not let the test mount a tmpfs");
            return None;
        }
        Some(Self(directory))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// P6, on a real file system.
#[test]
fn a_really_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns() {
    let directory = directory();
    let test =
        "room::a_really_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns";
    let Some(_disk) = SmallDisk::mount(directory.path(), test) else {
        return;
    };
    block_on(async {
        let store = Embedded::open(config(&directory.path().join("data")))
            .await
            .expect("the store opens");
        let kv = store.key_value();
        done(&kv, put("early", 1)).await;
        settle(&kv).await;
        let ballast = directory.path().join("ballast");
        let mut taken = 0;
        while fs::write(directory.path().join("piece"), vec![1; 4096]).is_ok() {
            let mut file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&ballast)
                .expect("it opens");
            if std::io::Write::write_all(&mut file, &[1; 4096]).is_err() {
                break;
            }
            taken += 4096;
        }
        assert!(taken > 0);
        assert!(!store.status().is_full, "the journal has room of its own");
        let large = || Bytes::from(vec![1; 1 << 20]);
        let refused = store
            .objects()
            .put(&ObjectPath::from("large"), large().into())
            .await;
        let refused = objects::failed("put".to_owned(), refused.expect_err("files have no room"));
        assert_eq!(refused.kind(), ErrorKind::NoRoom);
        assert!(store.status().is_full);
        let written = fill(&kv).await;
        reads_go_on(&kv, written).await;
        assert_eq!(value(&kv, "early").await, Some(1));
        fs::remove_file(&ballast).expect("the ballast goes");
        space_returns(&kv, written).await;
        let has_room = async || (!store.status().is_full).then_some(());
        found("the disk has room for an object again", has_room).await;
        store
            .objects()
            .put(&ObjectPath::from("large"), large().into())
            .await
            .expect("it is written");
        reads_go_on(&kv, written + 1).await;
        store.close().await;
        drop(store);
    });
}

/// Sets item `number`. Some take many blocks, and most share one.
pub(crate) fn varied(number: usize) -> Update {
    let length = [150, 900, 3_000, 20_000][number % 4];
    Update::modify(
        key(&format!("varied-{number:05}")),
        vec![Action::set("data", Bytes::from(vec![number as u8; length]))],
    )
}

/// Writes durably, if there is room. Returns whether there was.
pub(crate) async fn tried(kv: &Arc<dyn KeyValue>, update: Update) -> bool {
    match kv.update(update).await {
        Ok(updated) => {
            kv.externalize(updated.receipt.point)
                .await
                .expect("an accepted write becomes durable");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
            false
        }
    }
}

/// Writes new items from `next` on, until one is refused even after a checkpoint was tried. Returns
/// the next number.
pub(crate) async fn fill_to_the_end(
    store: &Embedded,
    mut next: usize,
    there: &mut BTreeSet<usize>,
) -> usize {
    let kv = store.key_value();
    let mut refused = 0;
    while refused < 3 {
        if tried(&kv, varied(next)).await {
            there.insert(next);
            next += 1;
            refused = 0;
            continue;
        }
        refused += 1;
        let made = store.status().checkpoints;
        eventually("a checkpoint is tried", || {
            let status = store.status();
            status.checkpoints > made || status.checkpoint_error.is_some() || !status.is_full
        })
        .await;
    }
    next
}

/// Asserts that exactly the items in `there` exist, each complete.
pub(crate) async fn holds(kv: &Arc<dyn KeyValue>, there: &BTreeSet<usize>, next: usize) {
    for number in 0..next {
        let item = kv
            .get(&key(&format!("varied-{number:05}")))
            .await
            .expect("reads go on")
            .value;
        let length = item.map(|item| item.bytes("data").map(|data| (data[0], data.len())));
        let expected = [150, 900, 3_000, 20_000][number % 4];
        let expected = there
            .contains(&number)
            .then_some(Some((number as u8, expected)));
        assert_eq!(length, expected, "item {number}");
    }
}

/// Deletes every second item, so that deleted and remaining items share pages, and writes the next
/// one as soon as there is room. Returns the number after it.
pub(crate) async fn delete_half_and_go_on(
    kv: &Arc<dyn KeyValue>,
    next: usize,
    there: &mut BTreeSet<usize>,
) -> usize {
    let going: Vec<usize> = there.iter().copied().step_by(2).collect();
    for number in going {
        let gone = kv
            .update(Update::delete(key(&format!("varied-{number:05}"))))
            .await;
        let gone = gone.unwrap_or_else(|error| panic!("deleting is refused: {error}"));
        kv.externalize(gone.receipt.point)
            .await
            .expect("it is durable");
        there.remove(&number);
    }
    found("the deletions make room", async || {
        tried(kv, varied(next)).await.then_some(())
    })
    .await;
    there.insert(next);
    holds(kv, there, next + 1).await;
    next + 1
}

/// The event between the moment when the disk is full and the first deletion.
#[derive(Debug, Clone, Copy)]
enum Between {
    Nothing,
    AStopInOrder,
    ADeath,
}

/// P6: a store that its own data has filled recovers by deletions alone, repeatedly, without other
/// space and across starts.
#[test]
fn a_store_gets_out_of_a_disk_full_of_its_own_data_by_deleting() {
    let directory = directory();
    let test = "room::a_store_gets_out_of_a_disk_full_of_its_own_data_by_deleting";
    let Some(_disk) = SmallDisk::mount(directory.path(), test) else {
        return;
    };
    let data = directory.path().join("data");
    block_on(async {
        let mut store = Embedded::open(config(&data))
            .await
            .expect("the store opens");
        let (mut there, mut next) = (BTreeSet::new(), 0);
        for between in [
            Between::Nothing,
            Between::AStopInOrder,
            Between::ADeath,
            Between::Nothing,
        ] {
            next = fill_to_the_end(&store, next, &mut there).await;
            assert!(store.status().is_full, "{between:?}");
            let held: usize = there
                .iter()
                .map(|number| [150, 900, 3_000, 20_000][number % 4])
                .sum();
            assert!(
                held > 1 << 20,
                "{between:?}: full of {held} bytes in {} items",
                there.len()
            );
            if matches!(between, Between::AStopInOrder) {
                store.close().await;
            }
            if !matches!(between, Between::Nothing) {
                drop(store);
                store = Embedded::open(config(&data))
                    .await
                    .expect("a full store opens");
            }
            let kv = store.key_value();
            holds(&kv, &there, next).await;
            next = delete_half_and_go_on(&kv, next, &mut there).await;
        }
        store.close().await;
        drop(store);
        let store = Embedded::open(config(&data))
            .await
            .expect("the store opens");
        holds(&store.key_value(), &there, next).await;
        store.close().await;
        drop(store);
        assert!(embedded::verify(&data).expect("it is whole").is_some());
    });
}
