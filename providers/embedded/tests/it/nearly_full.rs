//! A nearly full disk: how much of it the journal gets beside checkpoints, and which callers see
//! that there is no room (rule P6).
//!
//! Segments are larger than the ballast here, as they are unless they are configured small. A
//! checkpoint of a whole segment may then need more space than the ballast has.

use std::{fs, path::Path, sync::atomic::Ordering};

use bytes::Bytes;
use embedded::{Config, Embedded};
use ports::{Update, key_value::Action};

use crate::{
    faulty::Faults,
    room::faulty,
    world::{block_on, directory, durably, eventually, key},
};

const SEGMENT_BYTES: u64 = 4 << 20;

/// The size of a segment, and of the ballast beside it.
const MEBIBYTE: u64 = 1 << 20;

/// The journal bytes that make an early checkpoint due.
const EARLY_BYTES: usize = SEGMENT_BYTES as usize / 8;

/// The bytes that one update adds to the journal.
const DATA_BYTES: usize = 50_000;

/// Overwrites one of a few items, so that the store stays small.
fn overwrite(number: usize) -> Update {
    let data = Bytes::from(vec![number as u8; DATA_BYTES]);
    Update::modify(
        key(&format!("item-{}", number % 5)),
        vec![Action::set("data", data)],
    )
}

/// The size of the spare segment in `data`.
fn spare_bytes(data: &Path) -> Option<u64> {
    let entries = fs::read_dir(data.join("journal"))
        .expect("it lists")
        .flatten();
    let mut spares =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("spare"));
    spares
        .next()
        .map(|entry| entry.metadata().expect("it is there").len())
}

/// Opens a store with an empty whole segment on a disk with `free` bytes beside that and the
/// ballast.
async fn open_with(free: u64, config: Config, faults: &Faults) -> Embedded {
    let config = Config {
        journal_segment_bytes: SEGMENT_BYTES,
        ..config
    };
    drop(
        Embedded::open(config.clone())
            .await
            .expect("the store opens"),
    );
    // The next start removes the spare and allocates another one.
    faults
        .capacity
        .store(faults.used() - SEGMENT_BYTES + free, Ordering::SeqCst);
    Embedded::open(config).await.expect("the store opens")
}

/// P6: the journal leaves room for a checkpoint as if the current segment were full already.
#[test]
fn a_spare_leaves_room_for_a_checkpoint_of_the_segment_before_it() {
    let directory = directory();
    let (faults, config) = faulty(directory.path());
    block_on(async {
        // Including the ballast there are 16 MiB. A checkpoint of 4 MiB and of the spare's bytes may
        // need twice as much.
        let store = open_with(15 * MEBIBYTE, config, &faults).await;
        assert_eq!(spare_bytes(directory.path()), Some(2 * MEBIBYTE));

        Faults::set(&faults.fail_checkpoints, true);
        let kv = store.key_value();
        let mut number = 0;
        while store.status().segments == 1 {
            durably(&kv, overwrite(number)).await;
            number += 1;
        }
        // Of 14 MiB the journal may now take 6 MiB, even after the space that the failed checkpoint used.
        eventually("there is another spare", || {
            spare_bytes(directory.path()).is_some_and(|bytes| bytes > 0)
        })
        .await;
        assert_eq!(spare_bytes(directory.path()), Some(MEBIBYTE / 2));
    });
}

/// P6: an early checkpoint covers the journal while there is room for it, and no writer sees that
/// there is no room.
#[test]
fn no_writer_is_refused_on_a_nearly_full_disk_while_checkpoints_have_room() {
    for free in [4, 6] {
        let directory = directory();
        let (faults, config) = faulty(directory.path());
        block_on(async {
            let store = open_with(free * MEBIBYTE, config, &faults).await;
            assert_eq!(
                spare_bytes(directory.path()),
                None,
                "no segment fits beside this one"
            );
            let kv = store.key_value();
            let (mut made, mut since) = (0, 0);
            for number in 0..4 * SEGMENT_BYTES as usize / DATA_BYTES {
                durably(&kv, overwrite(number)).await;
                since += DATA_BYTES;
                // Until half of the first segment is written, no early checkpoint is due.
                if since
                    > if made == 0 {
                        SEGMENT_BYTES as usize / 2
                    } else {
                        EARLY_BYTES
                    }
                {
                    eventually("a checkpoint is made", || store.status().checkpoints > made).await;
                }
                // The next segment is small until this one is removed.
                eventually("a segment that was left goes", || {
                    store.status().segments == 1
                })
                .await;
                let checkpoints = store.status().checkpoints;
                if checkpoints > made {
                    (made, since) = (checkpoints, 0);
                }
            }
        });
    }
}

/// With room for whole segments no checkpoint is made early, even if an update takes a large part
/// of a segment.
#[test]
fn no_checkpoint_is_made_early_on_a_disk_with_room() {
    let directory = directory();
    let (_, config) = faulty(directory.path());
    block_on(async {
        let config = Config {
            journal_segment_bytes: DATA_BYTES as u64 * 3 / 2,
            ..config
        };
        let store = Embedded::open(config).await.expect("the store opens");
        for number in 0..20 {
            durably(&store.key_value(), overwrite(number)).await;
        }
        assert_eq!(
            (store.status().segments, store.status().checkpoints),
            (20, 0)
        );
    });
}
