//! The spare, the ballast and the files kept for reuse share a disk.

use super::*;
use crate::{directory::layout, storage::DiskStorage};

const SEGMENT: u64 = 1 << 16;

/// A spare in a directory of its own, with its ballast.
fn spare() -> (tempfile::TempDir, Arc<Ballast>, Spare) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let storage: Arc<dyn Storage> = Arc::new(DiskStorage);
    let path = directory.path().join(layout::BALLAST);
    let ballast = Arc::new(Ballast::new(Arc::clone(&storage), path, SEGMENT));
    let shared = (Arc::default(), Arc::clone(&ballast));
    let spare = Spare::new(storage, directory.path().to_owned(), SEGMENT, shared);
    ballast.acquire();
    (directory, ballast, spare)
}

/// P6: the journal does not take the space of a released ballast.
#[test]
fn the_journal_allocates_nothing_while_the_ballast_is_released() {
    let (_directory, ballast, spare) = spare();
    ballast.release().expect("it goes");
    assert_eq!((spare.grow(100), spare.grow_to_go_on(100)), (0, 0));
    ballast.acquire();
    assert_eq!(spare.grow(100), spare.whole_room());
}

/// A segment of `bytes` that a checkpoint covers.
fn covered(spare: &Spare, number: u64, bytes: u64) -> ClosedSegment {
    let path = spare.directory().join(layout::segment_file(number));
    let file = spare.storage.open(&path).expect("it opens");
    file.set_len(bytes).expect("it has a length");
    ClosedSegment {
        number,
        last_sequence: number,
        bytes: 100,
        reusable: Some(164),
    }
}

fn files(spare: &Spare) -> usize {
    spare
        .storage
        .list(spare.directory())
        .expect("it lists")
        .len()
}

/// A covered segment becomes the next spare. At most [`KEPT_MAX`] are kept, each of a whole
/// segment's length, that this start wrote to without a failure.
#[test]
fn covered_segments_become_spares() {
    let (_directory, _ballast, spare) = spare();
    let unusable = [
        covered(&spare, 1, SEGMENT / 2),
        ClosedSegment {
            reusable: None,
            ..covered(&spare, 2, SEGMENT)
        },
        ClosedSegment {
            bytes: 0,
            ..covered(&spare, 3, SEGMENT)
        },
    ];
    for segment in unusable {
        spare.retire(segment).expect("it goes");
        // A repeated call finds nothing to do.
        spare.retire(segment).expect("it went");
    }
    assert_eq!(files(&spare), 1, "the ballast alone");
    for number in 4..4 + KEPT_MAX as u64 + 2 {
        let segment = covered(&spare, number, SEGMENT);
        spare.retire(segment).expect("it goes");
    }
    assert_eq!(files(&spare), 1 + KEPT_MAX);
    assert_eq!(spare.grow(0), spare.whole_room());
    let taken = spare.take().expect("it is allocated");
    assert_eq!(taken.reused, 164);
    assert_eq!(files(&spare), 1 + KEPT_MAX, "nothing was allocated");
    spare.release_kept();
    assert_eq!(files(&spare), 2, "the ballast and the taken one");
}
