//! Segments covered by a checkpoint leave the journal oldest first: their files are removed, or get
//! the name of a spare.

use std::sync::{Arc, Mutex};

use embedded::{Config, Embedded, storage::DiskStorage};

use crate::{
    intercepted::{Intercepted, Operation},
    room::filler,
    world::{block_on, config, directory, durably},
};

/// The operations in the journal's directory: the number of a segment that loses its name, or zero
/// for a sync.
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
            Operation::Remove | Operation::Rename if is_segment => {
                name.parse().expect("a segment's name is its number")
            }
            Operation::SyncDirectory if name == "journal" => SYNCED,
            _ => return Ok(()),
        };
        done.lock().expect("no holder panics").push(what);
        Ok(())
    })
}

/// D1: the order holds across a power loss, which may keep an older name and take a newer one. A
/// gap would look like damage.
#[test]
fn no_segment_is_removed_before_the_older_one_is_durably_gone() {
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
    let done = done.lock().expect("no holder panics");
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
            "{} went before {} was durably gone",
            pair[1],
            pair[0]
        );
    }
}
