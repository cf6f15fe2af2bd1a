//! A segment that was written before: its earlier records lie behind the new ones.

use std::{
    fs,
    path::{Path, PathBuf},
};

use embedded::{Config, Embedded, OpenError};
use ports::{Update, key_value::Action};

use crate::world::{block_on, config, directory, durably, key, put, value};

/// The header's field that says where the earlier records end.
const REUSED_AT: usize = 56;

/// Where a disk page of the journal ends.
const PAGE: usize = 4096;

fn small(directory: &Path) -> Config {
    Config {
        journal_segment_bytes: 32 << 10,
        checkpoint_bytes: 40 << 10,
        ..config(directory)
    }
}

fn last_segment(directory: &Path) -> PathBuf {
    let names = fs::read_dir(directory.join("journal")).expect("the journal lists");
    names
        .map(|name| name.expect("a name reads").path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .max()
        .expect("it has a segment")
}

fn is_reused(segment: &[u8]) -> bool {
    segment[REUSED_AT..REUSED_AT + 8] != [0; 8]
}

fn filler(bytes: usize) -> Update {
    Update::modify(
        key("filler"),
        vec![Action::set("filler", vec![0x5a; bytes])],
    )
}

/// Where two images of a segment first differ.
fn first_difference(before: &[u8], after: &[u8]) -> usize {
    let mut pairs = before.iter().zip(after);
    pairs
        .position(|(left, right)| left != right)
        .expect("they differ")
}

/// The last segment, which was written before, at three times.
struct Reused {
    segment: PathBuf,
    before: Vec<u8>,
    with_kept: Vec<u8>,
    with_last: Vec<u8>,
}

impl Reused {
    /// Where the record of `kept` starts.
    fn kept_at(&self) -> usize {
        first_difference(&self.before, &self.with_kept)
    }

    /// Where the last record starts.
    fn last_at(&self) -> usize {
        first_difference(&self.with_kept, &self.with_last)
    }
}

/// Writes until the journal is in a reused segment. Then writes `kept`, and a last record that is
/// longer than a page, and ends as a kill would.
async fn reused(path: &Path) -> Reused {
    let store = Embedded::open(small(path)).await.expect("the store opens");
    let kv = store.key_value();
    let mut written = 0;
    while !is_reused(&fs::read(last_segment(path)).expect("it reads")) {
        durably(&kv, filler(2000)).await;
        written += 1;
        assert!(written < 10_000, "no segment is ever reused");
    }
    let segment = last_segment(path);
    let read = || fs::read(&segment).expect("it reads");
    let before = read();
    durably(&kv, put("kept", 1)).await;
    let with_kept = read();
    durably(&kv, filler(PAGE + 1000)).await;
    let with_last = read();
    assert_eq!(last_segment(path), segment, "all fit one segment");
    drop((kv, store));
    Reused {
        segment,
        before,
        with_kept,
        with_last,
    }
}

async fn length_of_filler(store: &Embedded) -> usize {
    let item = store.key_value().get(&key("filler")).await;
    let item = item.expect("it answers").value.expect("it is there");
    item.bytes("filler").expect("it has bytes").len()
}

/// D1, D2: the earlier records are neither taken for new ones nor reported as a cut, and the next
/// start appends to the same segment.
#[test]
fn a_reused_segment_recovers_its_own_records_alone() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let reused = reused(path).await;
        for start in 0..3 {
            let store = Embedded::open(small(path)).await.expect("the store opens");
            let kv = store.key_value();
            assert_eq!(store.status().recovery.cut, None, "start {start}");
            assert_eq!(value(&kv, "kept").await, Some(1));
            assert_eq!(length_of_filler(&store).await, PAGE + 1000);
            assert_eq!(last_segment(path), reused.segment, "start {start}");
        }
    });
}

/// D1: some sectors of the last record are on the disk, and the others still have the earlier
/// records.
#[test]
fn a_torn_record_over_earlier_ones_is_cut() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let reused = reused(path).await;
        let at = reused.last_at();
        let page_end = at.next_multiple_of(PAGE);
        let end = at + PAGE + 1000;
        for (lost, is_reported) in [
            (page_end..end, true),
            (at..page_end, false),
            (at..end, false),
        ] {
            let mut torn = reused.with_last.clone();
            torn[lost.clone()].copy_from_slice(&reused.with_kept[lost.clone()]);
            fs::write(&reused.segment, &torn).expect("it is written");
            let store = Embedded::open(small(path)).await.expect("the store opens");
            let cut = store.status().recovery.cut.is_some();
            assert_eq!(cut, is_reported, "lost {lost:?}");
            assert_eq!(value(&store.key_value(), "kept").await, Some(1));
            assert_eq!(length_of_filler(&store).await, 2000, "lost {lost:?}");
            durably(&store.key_value(), put("later", 3)).await;
            drop(store);
            let store = Embedded::open(small(path)).await.expect("it opens again");
            assert_eq!(value(&store.key_value(), "later").await, Some(3));
            drop(store);
            remove_later_segments(&reused.segment);
        }
    });
}

/// A reported cut continues in another segment, which the next round must not find.
fn remove_later_segments(segment: &Path) {
    let directory = segment.parent().and_then(Path::parent).expect("it has one");
    while last_segment(directory) != segment {
        fs::remove_file(last_segment(directory)).expect("a segment goes");
    }
}

/// D1.
#[test]
fn a_flipped_bit_before_the_last_record_of_a_reused_segment_is_refused() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let reused = reused(path).await;
        let (start, end) = (reused.kept_at(), reused.last_at());
        for at in (start..start + 40).chain([end - 9]) {
            let mut damaged = reused.with_last.clone();
            damaged[at] ^= 0x20;
            fs::write(&reused.segment, &damaged).expect("it is written");
            match Embedded::open(small(path)).await {
                Err(OpenError::Damaged { file, offset }) => {
                    let damage = (reused.segment.clone(), start as u64);
                    assert_eq!((file, offset), damage, "flipped at {at}");
                }
                other => panic!("flipped at {at}: {other:?}"),
            }
        }
    });
}
