//! A store gets out of a full disk with its own reserves alone, because other programs fill the
//! rest (rule P6).

use std::{collections::BTreeSet, fs, io::Write as _, path::Path};

use embedded::Embedded;
use ports::{Update, key_value::Transacted};

use crate::{
    room::{SmallDisk, delete_half_and_go_on, fill, fill_to_the_end, holds, tried},
    world::{block_on, config, directory, durably, found, key, put, settle, value},
};

/// Deletions of this many items take several segments.
const MANY: usize = 4_000;

/// Fills the disk to its last byte.
fn take_the_rest(disk: &Path) {
    let path = disk.join("of-others");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("it opens");
    for piece in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
}

/// P6: on a disk without a free byte, deletions succeed and make room for other changes, repeatedly
/// and across starts.
#[test]
fn a_store_gets_out_of_a_disk_filled_by_others_by_deleting() {
    let directory = directory();
    let test = "ballast::a_store_gets_out_of_a_disk_filled_by_others_by_deleting";
    let Some(_disk) = SmallDisk::mount(directory.path(), test) else {
        return;
    };
    let data = directory.path().join("data");
    block_on(async {
        let mut store = Embedded::open(config(&data))
            .await
            .expect("the store opens");
        let (mut there, mut next) = (BTreeSet::new(), 0);
        for is_stopped_in_order in [true, false, true] {
            next = fill_to_the_end(&store, next, &mut there).await;
            if is_stopped_in_order {
                store.close().await;
            }
            drop(store);
            // The store must not run: the filler might take the ballast that it released for a
            // checkpoint.
            take_the_rest(directory.path());
            store = Embedded::open(config(&data))
                .await
                .expect("a full store opens");
            let kv = store.key_value();
            holds(&kv, &there, next).await;
            next = delete_half_and_go_on(&kv, next, &mut there).await;
        }
    });
}

/// P6: a store starts although its journal has no room for the first record, and the disk none for
/// another segment.
#[test]
fn a_store_starts_on_a_disk_without_room_for_its_first_record() {
    let directory = directory();
    let test = "ballast::a_store_starts_on_a_disk_without_room_for_its_first_record";
    let Some(_disk) = SmallDisk::mount(directory.path(), test) else {
        return;
    };
    let data = directory.path().join("data");
    block_on(async {
        let store = Embedded::open(config(&data))
            .await
            .expect("the store opens");
        take_the_rest(directory.path());
        let reserved = store.key_value_with_reserve();
        let written = fill(&reserved).await;
        assert!(written > 0);
        let mut last = 0;
        while tried(&reserved, put("last", last + 1)).await {
            last += 1;
        }
        drop((store, reserved));
        take_the_rest(directory.path());
        let spares = fs::read_dir(data.join("journal")).expect("it lists");
        let is_spare =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("spare");
        assert_eq!(
            spares.flatten().filter(is_spare).count(),
            0,
            "the spare was used up"
        );
        let store = Embedded::open(config(&data))
            .await
            .expect("a full store opens");
        assert_eq!(value(&store.key_value(), "last").await, Some(last));
        durably(&store.key_value(), Update::delete(key("last"))).await;
    });
}

/// P6: deletions that need more journal than there is room for all succeed, some of them only after
/// a checkpoint.
#[test]
fn deletions_on_a_full_disk_may_exceed_the_room_of_the_journal() {
    let directory = directory();
    let test = "ballast::deletions_on_a_full_disk_may_exceed_the_room_of_the_journal";
    let Some(_disk) = SmallDisk::mount(directory.path(), test) else {
        return;
    };
    let data = directory.path().join("data");
    let name = |number: usize| format!("small-{number:05}-{}", "long".repeat(25));
    block_on(async {
        let store = Embedded::open(config(&data))
            .await
            .expect("the store opens");
        for first in (0..MANY).step_by(100) {
            let updates = (first..first + 100)
                .map(|number| put(&name(number), 1))
                .collect();
            let outcome = store
                .key_value()
                .transact(updates)
                .await
                .expect("transact answers");
            assert!(matches!(outcome, Transacted::Done { .. }));
            settle(&store.key_value()).await;
        }
        store.close().await;
        drop(store);
        take_the_rest(directory.path());
        let store = Embedded::open(config(&data))
            .await
            .expect("a full store opens");
        let kv = store.key_value();
        for number in 0..MANY {
            let deletion = async || {
                tried(&kv, Update::delete(key(&name(number))))
                    .await
                    .then_some(())
            };
            found("a deletion is taken", deletion).await;
        }
        found("growth is taken", async || {
            tried(&kv, put("last", 1)).await.then_some(())
        })
        .await;
    });
}
