//! Bytes of an instance over its Runtime API, on one connection or two: each request gets a
//! response or ends its connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox::fuzzing::conversation;

fuzz_target!(|bytes: &[u8]| {
    let Some(([piece, split], bytes)) = bytes.split_first_chunk() else { return };
    let at = usize::from(*split) * bytes.len() / 255;
    let connections = [bytes[..at].to_vec(), bytes[at..].to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let said = runtime.block_on(conversation(&connections, usize::from(*piece)));
    for answered in said.answered {
        assert!(answered.is_empty() || answered.starts_with(b"HTTP/1."));
    }
    if let Some(Err(failure)) = said.result {
        serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&failure).expect("an object");
    }
});
