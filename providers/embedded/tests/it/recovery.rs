//! Recovery of a journal that a crash or a bad disk has changed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use embedded::{Config, Embedded, OpenError};

use ports::Update;

use crate::world::{
    block_on, config, directory, done, durably, key, open, put, put_pair, settle, value,
};

/// Every file of a data directory.
type Image = BTreeMap<PathBuf, Vec<u8>>;

fn image(directory: &Path) -> Image {
    let mut image = Image::new();
    for folder in ["", "journal"] {
        for entry in fs::read_dir(directory.join(folder)).expect("the directory lists") {
            let path = entry.expect("an entry reads").path();
            if path.is_file() {
                image.insert(path.clone(), fs::read(path).expect("a file reads"));
            }
        }
    }
    image
}

fn restore(directory: &Path, image: &Image) {
    for entry in fs::read_dir(directory.join("journal")).expect("the directory lists") {
        fs::remove_file(entry.expect("an entry reads").path()).expect("a file goes");
    }
    for (path, bytes) in image {
        fs::write(path, bytes).expect("a file is written");
    }
}

fn small(directory: &Path) -> Config {
    Config {
        journal_segment_bytes: 16 << 10,
        ..config(directory)
    }
}

fn segment(directory: &Path, number: u64) -> PathBuf {
    directory.join("journal").join(format!("{number:08}.log"))
}

/// Where the bytes of two segments of one length first differ, and the offset after their last
/// difference.
fn difference(before: &[u8], after: &[u8]) -> (usize, usize) {
    let first = before
        .iter()
        .zip(after)
        .position(|(left, right)| left != right)
        .expect("they differ");
    let last = before
        .iter()
        .zip(after)
        .rposition(|(left, right)| left != right)
        .expect("they differ");
    (first, last + 1)
}

/// Builds a store whose journal ends in a pair written together. Returns the files, and the start
/// and end of that last record.
fn with_last_record(path: &Path) -> (Image, usize, usize) {
    block_on(async {
        let store = Embedded::open(small(path)).await.expect("the store opens");
        durably(&store.key_value(), put("kept", 1)).await;
        let before = fs::read(segment(path, 1)).expect("the segment reads");
        put_pair(&store.key_value(), "left", "right", 2).await;
        settle(&store.key_value()).await;
        drop(store);
        let after = fs::read(segment(path, 1)).expect("the segment reads");
        let (start, _) = difference(&before, &after);
        // The record may end in zeros, so its own length says where it ends: 40 bytes of header,
        // then the payload.
        let length = after[start + 4..start + 8].try_into().expect("four bytes");
        let end = start + 40 + u32::from_le_bytes(length) as usize;
        (image(path), start, end)
    })
}

/// Opens the directory. Returns the values of kept, left and right, and whether a tail was cut.
async fn reopened(path: &Path) -> (Option<i64>, Option<i64>, Option<i64>, bool) {
    let store = Embedded::open(small(path)).await.expect("the store opens");
    let kv = store.key_value();
    let cut = store.status().recovery.cut.is_some();
    (
        value(&kv, "kept").await,
        value(&kv, "left").await,
        value(&kv, "right").await,
        cut,
    )
}

/// D1, D2: a shortened file is reported even if it ends with a whole record, because no other sign
/// tells of the records after it.
#[test]
fn a_journal_cut_at_any_byte_of_its_last_record_recovers_all_before_it_and_reports_the_cut() {
    let directory = directory();
    let path = directory.path();
    let (image, start, end) = with_last_record(path);
    block_on(async {
        for cut in start..end {
            restore(path, &image);
            let bytes = &image[&segment(path, 1)][..cut];
            fs::write(segment(path, 1), bytes).expect("the segment is cut");
            assert_eq!(
                reopened(path).await,
                (Some(1), None, None, true),
                "cut at {cut}"
            );
            assert!(!reopened(path).await.3, "it is reported once");
        }
        let whole = image[&segment(path, 1)].len();
        for cut in (end..end + 16)
            .chain((end..whole).step_by(641))
            .chain([whole - 1])
        {
            restore(path, &image);
            fs::write(segment(path, 1), &image[&segment(path, 1)][..cut])
                .expect("the segment is cut");
            assert_eq!(
                reopened(path).await,
                (Some(1), Some(2), Some(2), true),
                "cut at {cut}"
            );
        }
        restore(path, &image);
        assert_eq!(reopened(path).await, (Some(1), Some(2), Some(2), false));
    });
}

/// D1, D2.
#[test]
fn a_bit_flipped_anywhere_in_the_last_record_is_cut_with_it_and_reported() {
    let directory = directory();
    let path = directory.path();
    let (image, start, end) = with_last_record(path);
    block_on(async {
        for at in start..end {
            restore(path, &image);
            let mut bytes = image[&segment(path, 1)].clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(segment(path, 1), bytes).expect("the segment is written");
            assert_eq!(
                reopened(path).await,
                (Some(1), None, None, true),
                "flipped at {at}"
            );
        }
    });
}

/// D1, D3: a record without entries counts like one with entries.
#[test]
fn a_record_without_entries_counts_like_any_other() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = Embedded::open(small(path)).await.expect("the store opens");
        let kv = store.key_value();
        durably(&kv, put("kept", 1)).await;
        let before = fs::read(segment(path, 1)).expect("the segment reads");
        done(&kv, put("undone", 1)).await;
        let undone = done(&kv, Update::delete(key("undone"))).await;
        kv.externalize(undone.point)
            .await
            .expect("it becomes durable");
        let (start, end) = difference(
            &before,
            &fs::read(segment(path, 1)).expect("the segment reads"),
        );
        assert!(end - start <= 40, "{} bytes of a header alone", end - start);
        drop((store, kv));
        let alone = image(path);
        for cut in start..end {
            restore(path, &alone);
            fs::write(segment(path, 1), &alone[&segment(path, 1)][..cut])
                .expect("the segment is cut");
            assert_eq!(
                reopened(path).await,
                (Some(1), None, None, true),
                "cut at {cut}"
            );
        }
        restore(path, &alone);
        let store = open(path).await;
        store
            .key_value()
            .externalize(undone.point)
            .await
            .expect("a record says so");
        durably(&store.key_value(), put("left", 2)).await;
        drop(store);
        let mut followed = image(path);
        for at in start..end {
            followed.get_mut(&segment(path, 1)).expect("it is there")[at] ^= 1;
            restore(path, &followed);
            let error = Embedded::open(small(path))
                .await
                .expect_err("it had been durable");
            assert!(
                matches!(error, OpenError::Damaged { .. }),
                "flipped at {at}: {error}"
            );
            followed.get_mut(&segment(path, 1)).expect("it is there")[at] ^= 1;
        }
        restore(path, &followed);
        assert_eq!(reopened(path).await, (Some(1), Some(2), None, false));
    });
}

/// D1: bytes after the cut must not return with later records.
#[test]
fn a_store_continues_after_a_cut_tail() {
    let directory = directory();
    let path = directory.path();
    let (mut image, start, end) = with_last_record(path);
    image.get_mut(&segment(path, 1)).expect("it is there")[start + (end - start) / 2] ^= 0x10;
    restore(path, &image);
    block_on(async {
        let store = Embedded::open(small(path)).await.expect("the store opens");
        durably(&store.key_value(), put("later", 3)).await;
        drop(store);
        let store = Embedded::open(small(path)).await.expect("the store opens");
        let kv = store.key_value();
        assert_eq!(
            store.status().recovery.cut,
            None,
            "the cut is reported once"
        );
        assert_eq!(
            (value(&kv, "left").await, value(&kv, "later").await),
            (None, Some(3))
        );
    });
}

/// D1.
#[test]
fn a_flipped_bit_before_another_record_is_refused_with_file_and_offset() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = Embedded::open(small(path)).await.expect("the store opens");
        let kv = store.key_value();
        durably(&kv, put("first", 1)).await;
        let before = fs::read(segment(path, 1)).expect("the segment reads");
        durably(&kv, put("middle", 2)).await;
        let after = fs::read(segment(path, 1)).expect("the segment reads");
        durably(&kv, put("last", 3)).await;
        drop((store, kv));
        let (start, end) = difference(&before, &after);
        let image = image(path);
        for at in (start..end).step_by(3) {
            restore(path, &image);
            let mut bytes = image[&segment(path, 1)].clone();
            bytes[at] ^= 0x20;
            fs::write(segment(path, 1), &bytes).expect("the segment is written");
            match Embedded::open(small(path)).await {
                Err(OpenError::Damaged { file, offset }) => {
                    assert_eq!(
                        (file, offset),
                        (segment(path, 1), start as u64),
                        "flipped at {at}"
                    );
                }
                other => panic!("flipped at {at}: {other:?}"),
            }
            assert_eq!(
                fs::read(segment(path, 1)).expect("it reads"),
                bytes,
                "nothing was changed"
            );
        }
    });
}

/// Fills several segments.
async fn fill_segments(path: &Path) {
    let store = Embedded::open(small(path)).await.expect("the store opens");
    for number in 0..40 {
        let name = format!("item-{number}");
        let update = ports::Update::modify(
            crate::world::key(&name),
            vec![ports::key_value::Action::set("filler", vec![7; 2000])],
        );
        durably(&store.key_value(), update).await;
    }
    assert!(store.status().segments > 3);
}

/// D1.
#[test]
fn damage_in_an_earlier_segment_or_a_missing_one_refuses_to_start() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        fill_segments(path).await;
        let image = image(path);
        let mut bytes = image[&segment(path, 2)].clone();
        bytes[5000] ^= 1;
        fs::write(segment(path, 2), bytes).expect("the segment is written");
        let refused = Embedded::open(small(path)).await;
        assert!(
            matches!(&refused, Err(OpenError::Damaged { file, .. }) if *file == segment(path, 2)),
            "{refused:?}"
        );
        for missing in [1, 2] {
            restore(path, &image);
            fs::remove_file(segment(path, missing)).expect("the segment goes");
            let refused = Embedded::open(small(path)).await;
            assert!(
                matches!(&refused, Err(OpenError::Missing { file }) if *file == segment(path, missing)),
                "{refused:?}"
            );
        }
        restore(path, &image);
        fs::write(segment(path, 3), &image[&segment(path, 3)][..3000]).expect("the segment is cut");
        let refused = Embedded::open(small(path)).await;
        assert!(
            matches!(refused, Err(OpenError::Damaged { .. })),
            "{refused:?}"
        );
    });
}

/// D1: a segment gets its header before its name, so no crash leaves one without a header.
#[test]
fn a_segment_without_its_header_refuses_to_start() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = open(path).await;
        durably(&store.key_value(), put("kept", 1)).await;
        drop(store);
        for leftover in [vec![], vec![0; 4096], vec![0x5a; 4096]] {
            fs::write(segment(path, 2), &leftover).expect("the segment is written");
            let refused = Embedded::open(config(path)).await;
            assert!(
                matches!(&refused, Err(OpenError::Damaged { file, offset: 0 }) if *file == segment(path, 2)),
                "{refused:?}"
            );
            assert_eq!(
                fs::read(segment(path, 2)).expect("it reads"),
                leftover,
                "nothing was changed"
            );
        }
    });
}

/// D1: a journal that ends before its checkpoint has lost durable data. If the store continued
/// there, new records would get old numbers, and the next recovery would skip them.
#[test]
fn a_journal_that_ends_before_its_checkpoint_refuses_to_start() {
    const HEADER: usize = 64;
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = open(path).await;
        durably(&store.key_value(), put("kept", 1)).await;
        store.close().await;
        drop(store);
        let whole = fs::read(segment(path, 1)).expect("the segment reads");
        let end = whole
            .iter()
            .rposition(|byte| *byte != 0)
            .expect("it holds records");
        for cut in [HEADER, HEADER + 1, usize::midpoint(HEADER, end), end] {
            fs::write(segment(path, 1), &whole[..cut]).expect("the segment is cut");
            let refused = Embedded::open(config(path)).await;
            assert!(
                matches!(&refused, Err(OpenError::Damaged { file, .. }) if *file == segment(path, 1)),
                "cut at {cut}: {refused:?}"
            );
        }
    });
}

/// D1.
#[test]
fn a_checkpoint_without_its_journal_refuses_to_start() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = open(path).await;
        durably(&store.key_value(), put("kept", 1)).await;
        store.close().await;
        fs::remove_file(segment(path, 1)).expect("the segment goes");
        let refused = Embedded::open(config(path)).await;
        assert!(
            matches!(refused, Err(OpenError::Damaged { .. })),
            "{refused:?}"
        );
    });
}

/// The checkpoint store was removed, and so were segments that it covered.
#[test]
fn a_journal_without_its_checkpoint_refuses_to_start() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        fill_segments(path).await;
        let store = Embedded::open(small(path)).await.expect("the store opens");
        store.close().await;
        fs::remove_file(path.join("state.redb")).expect("the checkpoint store goes");
        let refused = Embedded::open(small(path)).await;
        assert!(
            matches!(refused, Err(OpenError::Missing { .. })),
            "{refused:?}"
        );
    });
}

/// D1: the checkpoint store and the rest of the journal make one state.
#[test]
fn a_store_closed_in_order_opens_with_everything_and_no_journal_to_read() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        let store = open(path).await;
        put_pair(&store.key_value(), "left", "right", 5).await;
        store.close().await;
        let store = open(path).await;
        let kv = store.key_value();
        assert_eq!(
            (value(&kv, "left").await, value(&kv, "right").await),
            (Some(5), Some(5))
        );
        assert_eq!(
            store.status().overlay_records,
            1,
            "the incarnations' record alone"
        );
    });
}

/// D1: the error names the damaged file, and says that restoring it alone does not suffice.
#[test]
fn a_garbage_checkpoint_store_is_refused_by_name() {
    let directory = directory();
    let path = directory.path();
    block_on(async {
        fill_segments(path).await;
        let store = path.join("state.redb");
        let whole = fs::read(&store).expect("the store reads");
        for garbage in [
            vec![0x5a; 4096],
            vec![0; whole.len()],
            whole[..whole.len() / 2].to_vec(),
        ] {
            fs::write(&store, &garbage).expect("the store is written");
            let refused = Embedded::open(small(path))
                .await
                .expect_err("it is unreadable")
                .to_string();
            assert!(refused.contains(&*store.to_string_lossy()), "{refused}");
            assert!(
                refused.contains("restore the whole data directory from a copy"),
                "{refused}"
            );
        }
    });
}
