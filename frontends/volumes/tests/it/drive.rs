//! Drives the decoders with any bytes, for the tests and for the fuzz target.

use volumes_frontend::{
    frames::{Frames, REQUEST_BYTES_MAX},
    wire::{FORMAT, Hello, Welcome, decode_answer, decode_request},
};

/// Decodes a message, and checks that it is read back as it is written.
pub(crate) fn drive(body: &[u8]) {
    if let Ok(request) = decode_request(body) {
        let again = decode_request(&FORMAT.encode(&request, body.len()));
        assert_eq!(again, Ok(request));
    }
    if let Ok(answer) = decode_answer(body) {
        let again = decode_answer(&FORMAT.encode(&answer, body.len()));
        assert_eq!(again, Ok(answer));
    }
    if let Some(hello) = body.first_chunk().and_then(Hello::decode) {
        assert_eq!(Some(&hello.encode()), body.first_chunk());
    }
    if let Some(welcome) = body.first_chunk() {
        let _ = Welcome::decode(welcome);
    }
}

/// Splits a stream into frames, and decodes each.
pub(crate) fn drive_stream(stream: &[u8]) {
    let mut frames = Frames::new(REQUEST_BYTES_MAX);
    frames.buffer().extend_from_slice(stream);
    while let Ok(Some(frame)) = frames.next_frame() {
        assert!(frame.body.len() < stream.len());
        drive(&frame.body);
    }
}
