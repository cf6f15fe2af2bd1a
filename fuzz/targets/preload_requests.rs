//! Bytes from a program with the preload library: refused, or a request that encodes to the same.
#![no_main]

use preload_frontend::wire::Request;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(request) = Request::decode(bytes) {
        let mut buffer = vec![0; bytes.len()];
        assert_eq!(request.encode(&mut buffer), Some(bytes.len()));
        assert_eq!(buffer, bytes);
    }
});
