//! Messages on the FUSE device: each decodes, or is a fault.
#![no_main]

#[path = "../../frontends/fuse/tests/it/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    drive::drive_raw(bytes);
    if let Some((opcode, body)) = bytes.split_first() {
        drive::drive(u32::from(*opcode), body);
    }
});
