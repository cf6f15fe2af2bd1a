//! Segments that a checkpoint holds go oldest first.

use std::sync::{Arc, Mutex};

use embedded::{
    Config, Embedded,
    storage::{DiskStorage, Intercepted, Operation},
};

use crate::{
    room::filler,
    world::{block_on, config, directory, durably},
};

/// What was done to the journal's directory: the numbers of segments that were removed, and zero for a sync.
type Done = Arc<Mutex<Vec<u64>>>;

const SYNCED: u64 = 0;

fn noting(done: &Done) -> Intercepted<DiskStorage> {
    let done = Arc::clone(done);
    Intercepted::new(DiskStorage, move |operation, path| {
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_segment = path.extension().is_some_and(|extension| extension == "log");
        let what = match operation {
            Operation::Remove if is_segment => {
                name.parse().expect("a segment's name is its number")
            }
            Operation::SyncDirectory if name == "journal" => SYNCED,
            _ => return Ok(()),
        };
        done.lock().expect("nobody panics holding it").push(what);
        Ok(())
    })
}

/// D1: also after a loss of power, which may leave one name and take another that was removed before it: a gap in the middle would
/// read as damage.
#[test]
fn no_segment_is_removed_before_the_one_that_is_older_is_gone_for_good() {
    let directory = directory();
    let done = Done::default();
    let storage = Arc::new(noting(&done));
    let config = Config {
        storage,
        journal_segment_bytes: 32 << 10,
        ..config(directory.path())
    };
    block_on(async {
        let store = Embedded::open(config).await.expect("the store opens");
        for number in 0..8 {
            durably(&store.key_value(), filler(number)).await;
        }
        assert!(
            store.status().segments > 4,
            "{} segments",
            store.status().segments
        );
        store.close().await;
    });
    let done = done.lock().expect("nobody panics holding it");
    let removed: Vec<u64> = done
        .iter()
        .copied()
        .filter(|what| *what != SYNCED)
        .collect();
    assert!(removed.len() > 3, "{removed:?} are few");
    assert!(removed.is_sorted(), "{removed:?}");
    for pair in done.windows(2) {
        assert!(
            pair.contains(&SYNCED),
            "{} went before {} was gone for good",
            pair[1],
            pair[0]
        );
    }
}
