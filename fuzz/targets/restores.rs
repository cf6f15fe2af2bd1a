//! A restore of a whole backup with any content: it makes its directories or leaves nothing, it writes nothing outside
//! of them, and a store opens on them or says why not.
#![no_main]

use std::fs;

use embedded::{
    Config, Embedded,
    backup::{BackupError, Target, restore, verify},
};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The first line, of the formats that this release reads. Its checksum follows.
const LINE: &str = "landfast backup 1 store 3 by fuzzing check ";
/// Places that a backup has: objects, those of a user's directory, single files.
const PLACES: [&str; 3] = ["objects", "--objects", "."];

fn frame(file: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let mut frame = vec![kind];
    frame.extend((content.len() as u32).to_le_bytes());
    frame.extend((content.len() as u32).to_le_bytes());
    frame.extend(crc32fast::hash(&[&frame, content].concat()).to_le_bytes());
    file.extend(frame);
    file.extend(content);
}

fn value(file: &mut Vec<u8>, kind: u8, value: &impl Serialize) {
    frame(file, kind, &postcard::to_stdvec(value).expect("it encodes"));
}

/// A whole backup of records, each a key and a value, and of objects, each a place, a name and its bytes.
fn backup(records: &[(&[u8], &[u8])], objects: &[(String, String, &[u8])]) -> Vec<u8> {
    let mut file = format!("{LINE}{:08x}\n", crc32fast::hash(LINE.as_bytes())).into_bytes();
    value(&mut file, 1, &(7_u64, 3_u64, 9_u64, None::<String>));
    value(&mut file, 2, &records);
    let mut bytes = 0;
    for (place, name, content) in objects {
        value(&mut file, 3, &(place, name, content.len() as u64));
        if !content.is_empty() {
            frame(&mut file, 4, content);
        }
        bytes += content.len() as u64;
    }
    let sha256: [u8; 32] = Sha256::digest(&file).into();
    value(&mut file, 6, &(records.len() as u64, objects.len() as u64, bytes, 0_u64, sha256));
    file
}

fuzz_target!(|bytes: &[u8]| {
    let (mut records, mut objects, mut rest) = (Vec::new(), Vec::new(), bytes);
    while let Some((&[kind, name, content], after)) = rest.split_first_chunk() {
        let (name, after) = after.split_at(after.len().min(name.into()));
        let (content, after) = after.split_at(after.len().min(content.into()));
        rest = after;
        let text = String::from_utf8_lossy(name);
        match (PLACES.get(usize::from(kind % 8)), text.split_once('\n')) {
            (Some(place), _) => objects.push(((*place).to_owned(), text.into_owned(), content)),
            (None, Some((place, name))) => objects.push((place.to_owned(), name.to_owned(), content)),
            (None, None) => records.push((name, content)),
        }
    }
    let file = backup(&records, &objects);
    let home = tempfile::tempdir().expect("a directory");
    let [data_dir, named] = ["data", "named"].map(|name| home.path().join(name));
    let target = Target { data_dir: data_dir.clone(), named: Some(named) };
    let (restored, verified) = (restore(&*file, &target), verify(&*file));
    let made = fs::read_dir(home.path()).expect("listed").count();
    match restored {
        Ok(contents) => {
            assert_eq!((made, Some(contents)), (2, verified.ok()));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Little is reserved, because that takes most of the time.
            let config = Config { journal_segment_bytes: 1 << 20, ..Config::new(data_dir) };
            let _ = runtime.expect("a runtime").block_on(Embedded::open(config));
        }
        Err(error) => assert!(made == 0 && !matches!(error, BackupError::OtherFormat { .. }), "{error}"),
    }
});
