//! Directories that may be opened: the `format` record, the fixtures of released formats, and the
//! lock.

use std::{
    fs,
    path::{Path, PathBuf},
};

use embedded::{Config, Embedded, OpenError};
use ports::{Key, key_value::Scan};

use crate::world::{block_on, directory, durably, key, message, open, patient, put, settle, value};

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn small(path: &Path) -> Config {
    Config {
        journal_segment_bytes: 16 << 10,
        ..Config::new(path)
    }
}

/// The format that this release writes and reads.
const NEWEST: u32 = 3;

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

/// A directory written earlier opens with its whole content. `UPDATE=1` writes the fixture anew.
#[test]
fn a_directory_of_this_format_opens_with_its_whole_content() {
    block_on(async {
        if std::env::var_os("UPDATE").is_some() {
            write_fixture(directory().path()).await;
        }
        let directory = directory();
        unpack_fixture(NEWEST, directory.path());
        assert_eq!(
            embedded::format_of(directory.path()).expect("it is known"),
            Some(NEWEST)
        );
        let store = Embedded::open(small(directory.path()))
            .await
            .expect("the format opens");
        holds_the_fixture(&store).await;
    });
}

/// A newer format is refused, and the error names the release that reads it. A record that is not
/// whole is damaged, whatever number it has.
#[test]
fn a_newer_format_is_refused_and_says_which_version_can_read_it() {
    let directory = directory();
    block_on(async {
        drop(open(directory.path()).await);
        let path = directory.path().join("format");
        let text = fs::read_to_string(&path).expect("the record reads");
        let refused = async |record: &str| {
            fs::write(&path, record).expect("the record is written");
            Embedded::open(Config::new(directory.path()))
                .await
                .expect_err("it is not of this release")
        };
        let (said, _) = text.split_once("check ").expect("it has a checksum");
        let newer = said
            .replace("format 3", "format 4")
            .replace("readable by 0.1.0", "readable by 7.8.9");
        let newer = format!("{newer}check {:08x}\n", crc32fast::hash(newer.as_bytes()));
        let older = "landfast embedded\nformat 1\nreadable by 0.0.1\nsalt 00000000\n";
        for (record, expected, release) in [(newer.as_str(), 4, "7.8.9"), (older, 1, "0.0.1")] {
            let refused = refused(record).await;
            assert!(
                matches!(
                    refused,
                    OpenError::OtherFormat { found, supported: 3, .. } if found == expected
                ),
                "{refused:?}"
            );
            assert!(refused.to_string().contains(release), "{refused}");
        }
        let flipped = text.replace("format 3", "format 7");
        let cut = newer.replace("check ", "chec ");
        for record in ["something else\n", &flipped, &cut] {
            let refused = refused(record).await;
            assert!(
                matches!(refused, OpenError::Damaged { .. }),
                "{record}: {refused:?}"
            );
        }
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
