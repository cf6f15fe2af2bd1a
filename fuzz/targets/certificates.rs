//! A client's certificate, whose subject becomes an identity.
#![no_main]

use libfuzzer_sys::fuzz_target;
use listener::distinguished_name::of_subject;

fuzz_target!(|bytes: &[u8]| {
    let _ = of_subject(bytes);
});
