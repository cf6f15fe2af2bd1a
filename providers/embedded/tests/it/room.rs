//! A full disk: writes are refused, reads go on, and it ends by itself (rule P6).

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use embedded::{Config, Embedded, Room};
use ports::{
    ErrorKind, KeyValue, Update,
    key_value::{self, Action, Condition, Test, Transacted},
    objects::{self, ObjectPath, ObjectStoreExt as _},
};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        SEGMENT_BYTES, block_on, config, directory, done, durably, found, key, message, patient, put, settle,
        value,
    },
};

fn filler(number: usize) -> Update {
    let data = Bytes::from(vec![number as u8; 20_000]);
    Update::modify(key(&format!("filler-{number:04}")), vec![Action::set("data", data)])
}

/// Writes fillers until one is refused; answers how many were done.
async fn fill(kv: &Arc<dyn KeyValue>) -> usize {
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

/// A refusal changed nothing, and everything that was done is there.
async fn reads_go_on(kv: &Arc<dyn KeyValue>, done: usize) {
    for number in 0..done {
        let item = kv.get(&key(&format!("filler-{number:04}"))).await.expect("reads go on").value;
        assert!(item.is_some(), "filler {number} is gone");
    }
    let refused = kv.get(&key(&format!("filler-{done:04}"))).await.expect("reads go on").value;
    assert_eq!(refused, None, "a refused write was seen");
}

/// Waits until the store notices that there is room for filler `number`, which is durable then.
async fn space_returns(kv: &Arc<dyn KeyValue>, number: usize) {
    let written = async || match kv.update(filler(number)).await {
        Ok(updated) => Some(updated.receipt),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
            None
        }
    };
    let receipt = found("space returned and the store notices", written).await;
    kv.externalize(receipt.point).await.expect("it becomes durable");
}

fn faulty(path: &Path) -> (Arc<Faults>, Config) {
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    (faults, Config { storage, ..config(path) })
}

/// P6.
#[test]
fn a_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config.clone()).await.expect("the store opens");
        let kv = store.key_value();
        let queue = store.queue();
        queue.create("work", patient()).await.expect("create answers");
        settle(&kv).await;
        faults.capacity.store(faults.used() + (600 << 10), Ordering::SeqCst);
        let written = fill(&kv).await;
        assert!(written > 10, "{written} were written before the disk was full");
        assert_eq!(store.status().room, Room::Refusing);
        reads_go_on(&kv, written).await;
        let pair = kv.transact(vec![filler(9000), filler(9001)]).await.expect_err("no room for two either");
        assert_eq!(pair.kind(), ErrorKind::NoRoom);
        let sent =
            queue.send("work", vec![message("group", vec![1; 30_000])]).await.expect_err("nor for a message");
        assert_eq!(sent.kind(), ErrorKind::NoRoom);
        assert!(queue.receive("work", 1).await.expect("receive answers").is_empty());

        faults.capacity.store(0, Ordering::SeqCst);
        space_returns(&kv, written).await;
        drop((store, kv, queue));
        let store = Embedded::open(config).await.expect("the store opens");
        reads_go_on(&store.key_value(), written + 1).await;
    });
}

/// P6.
#[test]
fn who_may_use_the_reserve_goes_on_when_others_are_refused_until_it_is_used_up() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let (kv, reserved) = (store.key_value(), store.key_value_with_reserve());
        assert_eq!(reserved.room(), key_value::Room::Free);
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        let written = fill(&kv).await;
        assert_eq!(reserved.room(), key_value::Room::Scarce);
        for session in 0..5 {
            durably(&reserved, put(&format!("session-{session}"), 1)).await;
        }
        let both = vec![put("session-5", 1), put("session-6", 1)];
        let transacted = reserved.transact(both).await.expect("the reserve takes transactions");
        assert!(matches!(transacted, Transacted::Done { .. }));
        let refused = kv.update(filler(written)).await.expect_err("others are still refused");
        assert_eq!(refused.kind(), ErrorKind::NoRoom);

        let used_up = fill(&reserved).await;
        assert_eq!(reserved.room(), key_value::Room::Exhausted);
        assert_eq!(value(&kv, "session-6").await, Some(1));
        faults.capacity.store(0, Ordering::SeqCst);
        found("the store asks the disk again", async || {
            (reserved.room() == key_value::Room::Free).then_some(())
        })
        .await;
        assert_ne!(store.status().room, Room::Refusing);
        space_returns(&kv, used_up).await;
    });
}

/// P6.
#[test]
fn a_transient_update_takes_no_room_and_is_seen_by_everybody() {
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
        kv.externalize(receipt.point).await.expect("it becomes durable");
    });
}

/// P6.
#[test]
fn a_disk_without_room_for_a_whole_segment_gives_the_journal_pieces_and_leaves_some_to_checkpoints() {
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
        assert!(journaled > 2 * SEGMENT_BYTES, "{journaled} bytes are no more than were allocated at first");
        reads_go_on(&kv, written).await;

        Faults::set(&faults.no_room_for_checkpoints, false);
        faults.capacity.store(room + 2 * written as u64 * 20_000, Ordering::SeqCst);
        space_returns(&kv, written).await;
        found("a checkpoint gives segments back", async || {
            // Until then there may be no room again: whatever came back is small.
            let _ = kv.update(put("nudge", 1)).await;
            (store.status().checkpoints > 0).then_some(())
        })
        .await;
    });
}

/// P6.
#[test]
fn a_checkpoint_that_meets_a_full_disk_keeps_everything_and_is_tried_again() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    let config = Config { checkpoint_bytes: 200 << 10, ..config };
    block_on(async {
        let store = Embedded::open(config.clone()).await.expect("the store opens");
        let kv = store.key_value();
        Faults::set(&faults.no_room_for_checkpoints, true);
        let mut written = 0;
        while store.status().checkpoint_error.is_none() {
            durably(&kv, filler(written)).await;
            written += 1;
            assert!(written < 1000, "no checkpoint met the full disk");
        }
        for _ in 0..10 {
            durably(&kv, filler(written)).await;
            written += 1;
        }
        let made = store.status().checkpoints;
        reads_go_on(&kv, written).await;
        Faults::set(&faults.no_room_for_checkpoints, false);
        found("the checkpoint is tried again by a later commit", async || {
            // Until then there may be no room again: whatever came back is small.
            let _ = kv.update(put("nudge", 1)).await;
            (store.status().checkpoints > made).then_some(())
        })
        .await;
        assert_eq!(store.status().checkpoint_error, None);
        reads_go_on(&kv, written).await;
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        reads_go_on(&store.key_value(), written).await;
    });
}

/// P6: a transaction of more than a segment gets one of its own size.
#[test]
fn a_transaction_larger_than_a_segment_is_all_there_after_a_crash() {
    let directory = directory();
    block_on(async {
        let store = Embedded::open(config(directory.path())).await.expect("the store opens");
        let kv = store.key_value();
        let updates = (0..100).map(filler).collect();
        let outcome = kv.transact(updates).await.expect("transact answers");
        assert!(matches!(outcome, Transacted::Done { .. }));
        settle(&kv).await;
        drop((store, kv));
        let store = Embedded::open(config(directory.path())).await.expect("the store opens");
        reads_go_on(&store.key_value(), 100).await;
    });
}

/// A small file system in memory, as long as it lives.
struct SmallDisk<'directory>(&'directory Path);

impl<'directory> SmallDisk<'directory> {
    fn mount(directory: &'directory Path) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(directory).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(directory))
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
    let Some(_disk) = SmallDisk::mount(directory.path()) else {
        eprintln!(
            "skipped: room::a_really_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns: this machine \
             does not let the test mount a tmpfs"
        );
        return;
    };
    block_on(async {
        let store = Embedded::open(config(&directory.path().join("data"))).await.expect("the store opens");
        let kv = store.key_value();
        done(&kv, put("early", 1)).await;
        settle(&kv).await;
        let ballast = directory.path().join("ballast");
        let mut taken = 0;
        while fs::write(directory.path().join("piece"), vec![1; 4096]).is_ok() {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&ballast).expect("it opens");
            if std::io::Write::write_all(&mut file, &[1; 4096]).is_err() {
                break;
            }
            taken += 4096;
        }
        assert!(taken > 0);
        assert_ne!(store.status().room, Room::Refusing, "the journal has room of its own");
        let large = || Bytes::from(vec![1; 1 << 20]);
        let refused = store.objects().put(&ObjectPath::from("large"), large().into()).await;
        let refused = objects::failed("put".to_owned(), refused.expect_err("files have no room"));
        assert_eq!(refused.kind(), ErrorKind::NoRoom);
        assert_eq!(store.status().room, Room::Refusing);
        let written = fill(&kv).await;
        reads_go_on(&kv, written).await;
        assert_eq!(value(&kv, "early").await, Some(1));
        fs::remove_file(&ballast).expect("the ballast goes");
        space_returns(&kv, written).await;
        assert_ne!(store.status().room, Room::Refusing, "what an object needed is there again");
        store.objects().put(&ObjectPath::from("large"), large().into()).await.expect("it is written");
        reads_go_on(&kv, written + 1).await;
        store.close().await;
        drop(store);
    });
}
