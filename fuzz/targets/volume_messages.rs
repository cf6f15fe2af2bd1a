//! Messages on the socket of volumes: each decodes, or is an error.
#![no_main]

#[path = "../../frontends/volumes/tests/it/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    drive::drive_stream(bytes);
    // The version is right.
    drive::drive(&[&[2], bytes].concat());
});
