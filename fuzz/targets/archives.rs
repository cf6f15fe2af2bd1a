//! An archive of code, raw and as a tar file that is compressed here: it creates nothing outside of
//! its folder, and no link out of it.
#![no_main]

use std::{fs, io::Write as _, path::Path};

use flate2::{Compression, write::GzEncoder};
use libfuzzer_sys::fuzz_target;

fn check(content: &[u8]) {
    let home = tempfile::tempdir().expect("a directory");
    let inside = home.path().join("inside");
    fs::create_dir(&inside).expect("made");
    let _ = sandbox::fuzzing::unpack(content, &inside);
    assert_eq!(fs::read_dir(home.path()).expect("listed").count(), 1);
    stays(&inside, &inside.canonicalize().expect("there"));
}

fn stays(folder: &Path, root: &Path) {
    for entry in fs::read_dir(folder).expect("listed") {
        let path = entry.expect("an entry").path();
        if let Ok(leads) = path.canonicalize() {
            assert!(leads.starts_with(root), "{path:?} leads to {leads:?}");
        }
        if fs::symlink_metadata(&path).expect("there").is_dir() {
            stays(&path, root);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(bytes).expect("written");
    check(&encoder.finish().expect("finished"));
    check(bytes);
});
