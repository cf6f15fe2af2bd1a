//! Rows of the memory service: refused, or of positions that can be computed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    memory::fuzzing::rows(bytes);
    // The version is right.
    memory::fuzzing::rows(&[&[1], bytes].concat());
});
