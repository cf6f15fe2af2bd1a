//! The spare and the ballast share a disk.

use super::*;
use crate::{directory::layout, storage::DiskStorage};

/// P6: the journal does not take the space of a released ballast.
#[test]
fn the_journal_allocates_nothing_while_the_ballast_is_released() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let storage: Arc<dyn Storage> = Arc::new(DiskStorage);
    let path = directory.path().join(layout::BALLAST);
    let ballast = Arc::new(Ballast::new(Arc::clone(&storage), path, 1 << 16));
    let shared = (Arc::default(), Arc::clone(&ballast));
    let spare = Spare::new(storage, directory.path().to_owned(), 1 << 16, shared);
    ballast.acquire();
    ballast.release().expect("it goes");
    assert_eq!((spare.grow(100), spare.grow_to_go_on(100)), (0, 0));
    ballast.acquire();
    assert_eq!(spare.grow(100), spare.whole_room());
}
