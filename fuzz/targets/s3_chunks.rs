//! Bodies in the `aws-chunked` encoding: however they arrive, their content is the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((piece, bytes)) = bytes.split_first() {
        s3_frontend::fuzzing::chunks(bytes, usize::from(*piece));
    }
});
