//! Headers, parameters and tokens of S3 that this repository decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    s3_frontend::fuzzing::text(text);
});
