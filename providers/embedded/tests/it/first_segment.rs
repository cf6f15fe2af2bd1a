//! The first segment of a journal: a directory may lack it before it was durable, and never after.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use embedded::{Config, Embedded, OpenError};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{block_on, config, directory, durably, open, put, value},
};

fn first_segment(path: &Path) -> PathBuf {
    path.join("journal/00000001.log")
}

/// Leaves a store without a checkpoint, as a crash would.
async fn leave_without_a_checkpoint(path: &Path) {
    let store = open(path).await;
    durably(&store.key_value(), put("kept", 1)).await;
}

/// D1.
#[test]
fn a_directory_whose_first_segment_is_gone_refuses_to_start_and_names_it() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        leave_without_a_checkpoint(path).await;
        let bytes = fs::read(first_segment(path)).expect("the segment reads");
        for gone in [first_segment(path), path.join("journal")] {
            if gone.is_dir() {
                fs::remove_dir_all(&gone).expect("the directory goes");
            } else {
                fs::remove_file(&gone).expect("the segment goes");
            }
            let refused = Embedded::open(config(path))
                .await
                .expect_err("what it held is gone");
            assert!(
                matches!(&refused, OpenError::Missing { file } if *file == first_segment(path)),
                "{refused:?}"
            );
            assert!(refused.to_string().contains("put it back"), "{refused}");
        }
        fs::write(first_segment(path), bytes).expect("the segment is put back");
        assert_eq!(value(&open(path).await.key_value(), "kept").await, Some(1));
    });
}

/// D1.
#[test]
fn a_directory_whose_first_segment_lost_its_records_refuses_to_start_and_names_it() {
    const HEADER: usize = 64;
    let directory = directory();
    let path = directory.path();
    block_on(async {
        leave_without_a_checkpoint(path).await;
        let whole = fs::read(first_segment(path)).expect("the segment reads");
        let mut header_and_zeros = vec![0; whole.len()];
        header_and_zeros[..HEADER].copy_from_slice(&whole[..HEADER]);
        for left in [
            &[],
            &whole[..1],
            &whole[..HEADER - 1],
            &whole[..HEADER],
            &header_and_zeros,
        ] {
            fs::write(first_segment(path), left).expect("the segment is written");
            let refused = Embedded::open(config(path))
                .await
                .expect_err("what it held is gone");
            assert!(
                matches!(&refused, OpenError::Damaged { file, .. } if *file == first_segment(path)),
                "{} bytes left: {refused:?}",
                left.len()
            );
            assert_eq!(
                fs::read(first_segment(path)).expect("it reads"),
                left,
                "nothing was changed"
            );
        }
    });
}

/// D1: all checksums start from the salt in `format`, so without the record no segment is readable.
/// The error names the missing record.
#[test]
fn a_directory_that_lost_its_format_record_refuses_to_start() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        leave_without_a_checkpoint(path).await;
        fs::remove_file(path.join("format")).expect("the record goes");
        let refused = Embedded::open(config(path)).await;
        assert!(
            matches!(&refused, Err(OpenError::Missing { file }) if *file == path.join("format")),
            "{refused:?}"
        );
    });
}

/// Opens the store on a disk on which the process dies in change number `dies_in`.
async fn open_and_die(path: &Path, dies_in: u64) -> Result<Embedded, OpenError> {
    let faults = Arc::new(Faults::default());
    faults.dies_in.store(dies_in, Ordering::SeqCst);
    Embedded::open(Config {
        storage: Arc::new(FaultyStorage(faults)),
        ..config(path)
    })
    .await
}

/// D1: nothing was served before, so nothing can be missing.
#[test]
fn a_first_start_that_dies_in_any_change_to_the_disk_leaves_a_directory_that_opens() {
    /// The least number of changes that a first start makes.
    const CHANGES_MIN: u64 = 20;
    let mut random = fastrand::Rng::with_seed(11);
    block_on(async {
        for dies_in in 1.. {
            let directory = directory();
            let path = directory.path();
            let Err(error) = open_and_die(path, dies_in).await else {
                assert!(
                    dies_in > CHANGES_MIN,
                    "the start was over after {dies_in} changes"
                );
                return;
            };
            assert!(
                matches!(error, OpenError::Io { .. } | OpenError::Checkpoint { .. }),
                "{error}"
            );
            // The next start may die as well.
            drop(open_and_die(path, random.u64(1..=dies_in)).await);
            let reopened = Embedded::open(config(path)).await;
            let store =
                reopened.unwrap_or_else(|error| panic!("died in change {dies_in}: {error}"));
            durably(&store.key_value(), put("kept", 1)).await;
            drop(store);
            let store = open(path).await;
            assert_eq!(
                value(&store.key_value(), "kept").await,
                Some(1),
                "died in change {dies_in}"
            );
            drop(store);
            // If the crash tore the first record, the next start continued in another segment.
            fs::remove_dir_all(path.join("journal")).expect("the journal goes");
            let refused = Embedded::open(config(path)).await.err();
            assert!(
                matches!(refused, Some(OpenError::Missing { .. })),
                "died in change {dies_in}: {refused:?}"
            );
        }
    });
}
