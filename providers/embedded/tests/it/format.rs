//! Directories that may be opened: the `format` record, the fixtures of released formats, and the
//! lock.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use embedded::{Config, Embedded, OpenError};
use ports::{Key, key_value::Scan};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{block_on, directory, durably, key, message, open, patient, put, settle, value},
};

/// All formats so far.
const FORMATS: [u32; 2] = [1, 2];

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn small(path: &Path) -> Config {
    Config {
        journal_segment_bytes: 16 << 10,
        ..Config::new(path)
    }
}

/// The format that this release writes.
const NEWEST: u32 = FORMATS[FORMATS.len() - 1];

/// The files of a fixture. A packed file holds only the blocks that are not all zeros, because the
/// rest is allocated ahead.
const FILES: [&str; 3] = ["format", "journal/00000001.log", "state.redb"];
const BLOCK: usize = 4096;

fn packed(format: u32, file: &str) -> PathBuf {
    fixture(format).join(file.replace('/', "-") + ".blocks")
}

/// `length u64`, then for each block `place u64` and its bytes.
fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = (bytes.len() as u64).to_le_bytes().to_vec();
    for (place, block) in bytes
        .chunks(BLOCK)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
    {
        packed.extend_from_slice(&(place as u64).to_le_bytes());
        packed.extend_from_slice(block);
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let number =
        |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let length = number(packed);
    let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
    for block in packed[8..].chunks(BLOCK + 8) {
        bytes[number(block) * BLOCK..][..block.len() - 8].copy_from_slice(&block[8..]);
    }
    bytes.truncate(length);
    bytes
}

fn unpack_fixture(format: u32, to: &Path) {
    fs::create_dir_all(to.join("journal")).expect("the directory is made");
    for file in FILES {
        let bytes = fs::read(packed(format, file)).expect("the fixture reads");
        fs::write(to.join(file), unpack(&bytes)).expect("the file is written");
    }
}

/// Writes the content of the fixture: a part to a checkpoint, and a part to the journal after it.
async fn write_fixture(path: &Path) {
    let store = Embedded::open(small(path)).await.expect("the store opens");
    durably(&store.key_value(), put("checkpointed", 1)).await;
    let queue = store.queue();
    queue
        .create("work", patient())
        .await
        .expect("create answers");
    queue
        .send("work", vec![message("group", "first")])
        .await
        .expect("send answers");
    store.close().await;
    drop((store, queue));
    let store = Embedded::open(small(path)).await.expect("the store opens");
    store
        .queue()
        .send("work", vec![message("group", "second")])
        .await
        .expect("send answers");
    durably(&store.key_value(), put("journaled", 2)).await;
    drop(store);
    fs::create_dir_all(fixture(NEWEST)).expect("the directory is made");
    for file in FILES {
        let bytes = fs::read(path.join(file)).expect("the file reads");
        fs::write(packed(NEWEST, file), pack(&bytes)).expect("the fixture is written");
    }
}

/// Asserts that the store holds exactly the content of the fixture.
async fn holds_the_fixture(store: &Embedded) {
    let kv = store.key_value();
    assert_eq!(
        (
            value(&kv, "checkpointed").await,
            value(&kv, "journaled").await
        ),
        (Some(1), Some(2))
    );
    let taken = store
        .queue()
        .receive("work", 10)
        .await
        .expect("receive answers");
    let bodies: Vec<_> = taken.iter().map(|delivery| &delivery.body[..]).collect();
    assert_eq!(bodies, [&b"first"[..], b"second"]);
    let page = kv
        .scan(&Scan::partition("test", 10))
        .await
        .expect("scan answers")
        .value;
    assert_eq!(page.items.len(), 2);
}

/// Directories of all formats open with their whole content, and have the newest format from then
/// on. `UPDATE=1` writes the newest fixture anew.
#[test]
fn directories_of_every_format_open_with_their_whole_content() {
    block_on(async {
        if std::env::var_os("UPDATE").is_some() {
            write_fixture(directory().path()).await;
        }
        for format in FORMATS {
            let directory = directory();
            unpack_fixture(format, directory.path());
            assert_eq!(
                embedded::format_of(directory.path()).expect("it is known"),
                Some(format)
            );
            let store = Embedded::open(small(directory.path()))
                .await
                .expect("the format opens");
            holds_the_fixture(&store).await;
            assert_eq!(
                embedded::format_of(directory.path()).expect("it is known"),
                Some(NEWEST)
            );
            drop(store);
            let store = Embedded::open(small(directory.path()))
                .await
                .expect("it opens as the newest");
            holds_the_fixture(&store).await;
        }
    });
}

/// A process may die in any of its changes to the disk during a conversion, and the next start
/// continues.
#[test]
fn the_next_start_completes_a_conversion_that_dies_anywhere() {
    block_on(async {
        for dies_in in 1.. {
            let directory = directory();
            unpack_fixture(1, directory.path());
            let faults = Arc::new(Faults::default());
            faults.dies_in.store(dies_in, Ordering::SeqCst);
            let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
            let opened = Embedded::open(Config {
                storage,
                ..small(directory.path())
            })
            .await;
            let is_over = opened.is_ok();
            drop(opened);
            let store = Embedded::open(small(directory.path())).await;
            let store =
                store.unwrap_or_else(|error| panic!("after a death in change {dies_in}: {error}"));
            holds_the_fixture(&store).await;
            assert_eq!(
                embedded::format_of(directory.path()).expect("it is known"),
                Some(NEWEST)
            );
            if is_over {
                assert!(dies_in > 10, "only {dies_in} changes were made");
                return;
            }
        }
    });
}

/// Without room for both stores a conversion is refused. The directory stays as it was, and no
/// additional space is taken.
#[test]
fn a_conversion_without_room_changes_nothing_and_succeeds_once_there_is_room() {
    block_on(async {
        let bytes: u64 = FILES
            .iter()
            .map(|file| unpack(&fs::read(packed(1, file)).expect("it reads")).len() as u64)
            .sum();
        let mut refused = 0;
        for room in (0..).step_by(64 << 10) {
            let directory = directory();
            unpack_fixture(1, directory.path());
            let earlier = contents(directory.path());
            let faults = Arc::new(Faults::default());
            faults.capacity.store(bytes + room, Ordering::SeqCst);
            let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
            let opened = Embedded::open(Config {
                storage,
                ..small(directory.path())
            })
            .await;
            if embedded::format_of(directory.path()).expect("it is known") == Some(NEWEST) {
                break;
            }
            let error = opened.expect_err("a store of format 1 is not served");
            assert!(
                error.to_string().contains("state.redb"),
                "with {room} bytes: {error}"
            );
            refused += 1;
            let later = contents(directory.path());
            assert!(
                later.keys().eq(earlier.keys()),
                "with {room} bytes: {:?}",
                later.keys()
            );
            for (file, bytes) in later {
                // redb notes in its file that it is open, as it did in the release that wrote it.
                let is_noted_in =
                    file.ends_with("state.redb") && bytes.len() == earlier[&file].len();
                assert!(
                    is_noted_in || bytes == earlier[&file],
                    "with {room} bytes {} was changed",
                    file.display()
                );
            }
            let store = Embedded::open(small(directory.path()))
                .await
                .expect("there is room");
            holds_the_fixture(&store).await;
        }
        assert!(refused > 0, "no room was too little");
    });
}

/// The files of a directory with their content, except the lock.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("it lists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else if !path.ends_with("LOCK") {
            let bytes = fs::read(&path).expect("it reads");
            files.insert(path, bytes);
        }
    }
    files
}

/// A flipped bit in a checkpoint store of format 1 is detected before a new checksum could hide it.
#[test]
fn a_damaged_store_of_format_1_is_refused_or_converted_as_it_was() {
    block_on(async {
        let random = &mut fastrand::Rng::with_seed(11);
        let (mut refused, mut right) = (0, 0);
        for _ in 0..60 {
            let directory = directory();
            unpack_fixture(1, directory.path());
            let path = directory.path().join("state.redb");
            let mut bytes = fs::read(&path).expect("it reads");
            let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            let at = used[random.usize(..used.len())];
            bytes[at] ^= 1 << random.u32(..8);
            fs::write(&path, bytes).expect("it is written");
            match Embedded::open(small(directory.path())).await {
                Ok(store) => {
                    holds_the_fixture(&store).await;
                    right += 1;
                }
                Err(error) => {
                    assert!(
                        error
                            .to_string()
                            .contains(directory.path().to_str().expect("a path")),
                        "byte {at}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(
            refused > 0 && right > 0,
            "{refused} were refused, {right} were right"
        );
    });
}

/// A newer format is refused, and the error names the release that reads it.
#[test]
fn a_newer_format_is_refused_and_says_which_version_can_read_it() {
    let directory = directory();
    block_on(async {
        drop(open(directory.path()).await);
        let path = directory.path().join("format");
        let text = fs::read_to_string(&path).expect("the record reads");
        let newer = text
            .replace("format 2", "format 3")
            .replace("readable by 0.1.0", "readable by 7.8.9");
        fs::write(&path, newer).expect("the record is written");
        let refused = Embedded::open(Config::new(directory.path()))
            .await
            .expect_err("it is newer");
        assert!(
            matches!(
                refused,
                OpenError::NewerFormat {
                    found: 3,
                    supported: 2,
                    ..
                }
            ),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("7.8.9"), "{refused}");
        fs::write(&path, "something else\n").expect("the record is written");
        let refused = Embedded::open(Config::new(directory.path()))
            .await
            .expect_err("it is no record");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
    });
}

/// A directory with content but without its record is not new. Its content stays as it is.
#[test]
fn a_missing_format_record_beside_data_is_refused_by_name_until_it_is_put_back() {
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        durably(&store.key_value(), put("item", 1)).await;
        drop(store);
        let path = directory.path().join("format");
        let aside = directory.path().join("elsewhere");
        fs::rename(&path, &aside).expect("the record is moved");
        for absent in [None, Some("state.redb"), Some("journal")] {
            let hidden = directory.path().join("hidden");
            let absent = absent.map(|name| directory.path().join(name));
            if let Some(absent) = &absent {
                fs::rename(absent, &hidden).expect("it is moved");
            }
            for refused in [
                Embedded::open(Config::new(directory.path()))
                    .await
                    .map(|_| ()),
                embedded::format_of(directory.path()).map(|_| ()),
            ] {
                let refused = refused.expect_err("the record is missing");
                assert!(
                    matches!(&refused, OpenError::Missing { file } if *file == path),
                    "{absent:?}: {refused:?}"
                );
                assert!(
                    refused.to_string().contains("put it back, or restore"),
                    "{refused}"
                );
            }
            assert!(!path.exists(), "nothing was made in its place");
            if let Some(absent) = absent {
                let _ = fs::remove_dir(&absent);
                fs::rename(&hidden, &absent).expect("it is moved back");
            }
        }
        fs::rename(&aside, &path).expect("the record is put back");
        assert_eq!(
            embedded::format_of(directory.path()).expect("it is there"),
            Some(NEWEST)
        );
        assert_eq!(
            value(&open(directory.path()).await.key_value(), "item").await,
            Some(1)
        );
    });
}

/// A file that is not a checkpoint store is refused and left unchanged for an inspection.
#[test]
fn a_checkpoint_store_of_other_bytes_is_refused_by_name_and_not_touched() {
    block_on(async {
        for bytes in [
            Vec::new(),
            b"garbage".to_vec(),
            vec![0xa5; 1 << 16],
            vec![0; 1 << 20],
        ] {
            let directory = directory();
            let store = open(directory.path()).await;
            durably(&store.key_value(), put("item", 1)).await;
            store.close().await;
            drop(store);
            let path = directory.path().join("state.redb");
            fs::write(&path, &bytes).expect("it is written over");
            let refused = Embedded::open(Config::new(directory.path()))
                .await
                .expect_err("it is no store");
            let said = refused.to_string();
            assert!(
                said.contains(&path.display().to_string()),
                "{} bytes: {said}",
                bytes.len()
            );
            assert!(
                said.contains("restore the whole data directory"),
                "{} bytes: {said}",
                bytes.len()
            );
            assert!(
                fs::read(&path).expect("it reads") == bytes,
                "{} bytes were changed",
                bytes.len()
            );
        }
    });
}

/// P3: the recorded end of each earlier start decides about its points.
#[test]
fn the_end_of_each_earlier_start_decides_about_its_points() {
    let directory = directory();
    block_on(async {
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for start in 0..5 {
            let store = open(directory.path()).await;
            let kv = store.key_value();
            kept.push(durably(&kv, put("item", start)).await.point);
            let beyond = kept[kept.len() - 1].position.0 + 1000;
            lost.push(ports::DurabilityPoint {
                position: ports::Position(beyond),
                ..kept[kept.len() - 1]
            });
            settle(&kv).await;
            if start % 2 == 0 {
                store.close().await;
            }
        }
        let store = open(directory.path()).await;
        let kv = store.key_value();
        for number in 0..2000 {
            kv.update(put("later", number))
                .await
                .expect("the update answers");
        }
        settle(&kv).await;
        for (kept, lost) in kept.into_iter().zip(lost) {
            kv.externalize(kept)
                .await
                .expect("the earlier value is durable");
            let reported = kv
                .externalize(lost)
                .await
                .expect_err("what was not is lost");
            assert_eq!(reported.kind(), ports::ErrorKind::Lost);
        }
        assert_eq!(
            kv.get(&key("item"))
                .await
                .expect("get answers")
                .value
                .and_then(|item| item.integer("value")),
            Some(4)
        );
        assert_eq!(
            kv.get(&Key::new("other", "item"))
                .await
                .expect("get answers")
                .value,
            None
        );
    });
}
