//! A file of a backup: any bytes, and frames of any content whose checksums are right.
#![no_main]

use embedded::backup::verify;
use libfuzzer_sys::fuzz_target;

/// The first line, of the formats that this release reads. Its checksum follows.
const LINE: &str = "landfast backup 1 store 3 by fuzzing check ";

fuzz_target!(|bytes: &[u8]| {
    let _ = verify(bytes);
    let mut file = format!("{LINE}{:08x}\n", crc32fast::hash(LINE.as_bytes())).into_bytes();
    assert!(verify(&*file).is_err_and(|error| !error.to_string().contains("format")));
    let mut rest = bytes;
    while let Some((&[kind, stored, more], after)) = rest.split_first_chunk() {
        let (content, after) = after.split_at(after.len().min(stored.into()));
        rest = after;
        let mut frame = vec![kind % 9];
        frame.extend((content.len() as u32).to_le_bytes());
        frame.extend((content.len() as u32 + u32::from(more)).to_le_bytes());
        frame.extend(crc32fast::hash(&[&frame, content].concat()).to_le_bytes());
        file.extend(frame);
        file.extend(content);
    }
    let _ = verify(&*file);
});
