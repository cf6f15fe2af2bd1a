//! Journal segments whose removal could not be synced.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use embedded::{Config, Embedded, Health, storage::DiskStorage};
use ports::{ErrorKind, KeyValue, Update, key_value::Action};

use crate::{
    intercepted::{Intercepted, Operation},
    many_starts::small,
    world::{block_on, directory, done, durably, eventually, key, put, value},
};

/// Storage on the real disk whose syncs fail on request.
#[derive(Debug, Default)]
struct Failing {
    /// The next sync of a journal segment fails.
    segment: AtomicBool,
    /// The next sync of a directory after the removal of a journal segment fails.
    removal: AtomicBool,
    is_removed: AtomicBool,
}

impl Failing {
    fn storage(self: &Arc<Self>) -> Arc<Intercepted<DiskStorage>> {
        let failing = Arc::clone(self);
        Arc::new(Intercepted::new(DiskStorage, move |operation, path| {
            let is_segment = path.extension().is_some_and(|extension| extension == "log");
            let is_in_journal = path
                .parent()
                .is_some_and(|parent| parent.ends_with("journal"));
            let fails = match operation {
                Operation::Remove | Operation::Rename if is_segment => {
                    failing.is_removed.store(true, Ordering::SeqCst);
                    false
                }
                Operation::SyncDirectory if failing.is_removed.swap(false, Ordering::SeqCst) => {
                    failing.removal.swap(false, Ordering::SeqCst)
                }
                Operation::SyncData if is_in_journal => {
                    failing.segment.swap(false, Ordering::SeqCst)
                }
                _ => false,
            };
            if fails {
                Err(io::Error::from_raw_os_error(libc::EIO))
            } else {
                Ok(())
            }
        }))
    }
}

async fn fill(kv: &Arc<dyn KeyValue>, blob_bytes: usize) {
    let blob = Action::set("blob", Bytes::from(vec![7; blob_bytes]));
    durably(kv, Update::modify(key("filling"), vec![blob])).await;
}

/// After the failed sync of a removal, later removals go on: the file is gone, and the next sync
/// makes that durable.
#[test]
fn a_removal_that_could_not_be_synced_does_not_stop_later_removals() {
    let directory = directory();
    let failing = Arc::new(Failing::default());
    failing.removal.store(true, Ordering::SeqCst);
    let config = Config {
        storage: failing.storage(),
        checkpoint_bytes: 20 << 10,
        ..small(directory.path())
    };
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        for count in 0.. {
            assert!(count < 1_000, "no segment was removed");
            if !failing.removal.load(Ordering::SeqCst) {
                break;
            }
            fill(&kv, 1_000).await;
        }
        for _ in 0..20 {
            // Each write goes to another segment.
            fill(&kv, 30_000).await;
        }
        eventually("the segments go", || store.status().segments < 10).await;
    });
}

/// D1, P6: a repeated return to the durable state needs the segment that was written last, even if
/// a checkpoint covers all of it.
#[test]
fn a_return_to_the_durable_state_survives_a_removal_that_could_not_be_synced() {
    let directory = directory();
    let failing = Arc::new(Failing::default());
    let config = Config {
        storage: failing.storage(),
        checkpoint_bytes: 1,
        ..small(directory.path())
    };
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        durably(&kv, put("kept", 1)).await;
        eventually("a checkpoint holds it", || {
            let status = store.status();
            status.checkpoints > 0 && status.overlay_records == 0
        })
        .await;
        failing.removal.store(true, Ordering::SeqCst);
        failing.segment.store(true, Ordering::SeqCst);
        let lost = done(&kv, put("lost", 2)).await;
        eventually("the store is back at its durable state", || {
            let status = store.status();
            status.incarnation > lost.point.incarnation && status.health == Health::Serving
        })
        .await;
        assert_eq!(
            kv.externalize(lost.point)
                .await
                .expect_err("its sync fails")
                .kind(),
            ErrorKind::Lost
        );
        assert!(
            !failing.removal.load(Ordering::SeqCst),
            "a segment was removed"
        );
        assert_eq!(
            (value(&kv, "kept").await, value(&kv, "lost").await),
            (Some(1), None)
        );
        durably(&kv, put("later", 3)).await;
        drop((store, kv));
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        assert_eq!(
            (value(&kv, "kept").await, value(&kv, "later").await),
            (Some(1), Some(3))
        );
    });
}
