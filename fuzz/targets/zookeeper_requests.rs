//! Bytes of a ZooKeeper client, in pieces: no panic, and one whole frame in response to every
//! request.
#![no_main]

#[path = "../../frontends/zookeeper/tests/it/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((piece, bytes)) = bytes.split_first() {
        drive::drive(bytes, usize::from(*piece));
        drive::drive_connect(bytes);
    }
});
