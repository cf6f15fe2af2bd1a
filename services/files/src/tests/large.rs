//! Files of more blocks than one transaction deletes.

use std::sync::atomic::Ordering;

use super::{lossy::Counted, *};
use crate::{
    Errno, Ino,
    model::{Allocation, Privileges, Seek, SetAttributes},
    reaper::reap,
};

const ROOT: Ino = Ino::ROOT;
const BLOCKS: u64 = 66_000;
/// The most bytes of writes that one step may have: they fit one proposal without a stage.
const STEP_BYTES_MAX: u64 = 64 << 10;

/// A file of [`BLOCKS`] blocks of one byte each, and another block far behind.
async fn large(files: &FileSystem, text: &str) -> Ino {
    let f = files.create(ROOT, ACCESS, &name(text)).await.expect("made");
    let data = name("x");
    let mut transaction = files.begin();
    for number in (0..BLOCKS).chain([1 << 40]) {
        let written = transaction.write(f, number * BLOCK, Privileges::Keep, &data);
        written.await.expect("written");
    }
    transaction.commit(None, || true).await.expect("committed");
    f
}

async fn opened() -> (Arc<Counted>, FileSystem) {
    Counted::open(&World::new(1)).await
}

/// The length of the longest proposal of `work`.
async fn longest(volume: &Counted, work: impl Future<Output = ()>) -> u64 {
    volume.written_max.store(0, Ordering::Relaxed);
    work.await;
    volume.written_max.load(Ordering::Relaxed)
}

#[test]
fn a_large_file_is_cut_in_steps() {
    simulated::run(async {
        let (volume, files) = opened().await;
        let f = large(&files, "f").await;
        let mut whole = files.begin();
        refused(whole.truncate(f, 9).await, Errno::EFBIG);
        let cut = async { files.truncate(f, BLOCK + 1).await.expect("cut") };
        let bytes = longest(&volume, cut).await;
        assert!(bytes <= STEP_BYTES_MAX, "{bytes}");
        files.truncate(f, 3 * BLOCK).await.expect("longer");
        let mut expected = vec![0; 3 * BLOCK as usize];
        expected[0] = b'x';
        expected[BLOCK as usize] = b'x';
        assert_eq!(files.read(f, 0, 9 * BLOCK).await, Ok(expected.into()));
    });
}

#[test]
fn a_large_file_is_emptied_by_its_attributes_and_by_a_hole() {
    simulated::run(async {
        let (volume, files) = opened().await;
        let f = large(&files, "f").await;
        let punch = Allocation::PunchHole;
        let punched = async {
            let (from, count) = (1, (1 << 41) * BLOCK);
            let punched = files.fallocate(f, punch, from, count).await;
            punched.expect("punched");
        };
        let bytes = longest(&volume, punched).await;
        assert!(bytes <= STEP_BYTES_MAX, "{bytes}");
        assert_eq!(files.read(f, 0, 2).await, Ok(name("x\0")));
        refused(files.seek(f, Seek::Data, BLOCK).await, Errno::ENXIO);
        let g = large(&files, "g").await;
        let set = SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        };
        let set = async { files.setattr(g, set).await.expect("set") };
        let bytes = longest(&volume, set).await;
        assert!(bytes <= STEP_BYTES_MAX, "{bytes}");
        assert_eq!(files.getattr(g).await.expect("there").size, 0);
    });
}

/// An inode that can not be deleted does not keep the others.
#[test]
fn the_reaper_deletes_large_files_in_steps_and_goes_on_after_an_error() {
    simulated::run(async {
        let (volume, files) = opened().await;
        let broken = files.create(ROOT, ACCESS, &name("a")).await.expect("made");
        let f = large(&files, "f").await;
        let mut damage = files.begin();
        let links = crate::inode::field(broken, crate::inode::Field::Links);
        for text in ["a", "f"] {
            files.unlink(ROOT, &name(text)).await.expect("unlinked");
        }
        damage.overlay.put(links, name("no number"));
        damage.commit(None, || true).await.expect("damaged");
        let reaped = async { assert_eq!(reap(&files).await, Err(Errno::EIO)) };
        let bytes = longest(&volume, reaped).await;
        assert!(bytes <= STEP_BYTES_MAX, "{bytes}");
        refused(files.getattr(f).await, Errno::ENOENT);
        let range = crate::inode::block_range(f, 0, None);
        let left = files.begin().overlay.scan(&range, 1).await.expect("a page");
        assert_eq!(left, (Vec::new(), None));
    });
}
