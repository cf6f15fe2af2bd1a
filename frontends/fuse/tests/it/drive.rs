//! Drives the decoder with any bytes, for the tests and for the fuzz target.

use fuse_frontend::wire::{Operation, Request, TRANSFER_BYTES_MAX, Write};

/// A message with a right header.
pub(crate) fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
    let length = 40 + body.len() as u32;
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(2_u64.to_ne_bytes());
    bytes.extend(1_u64.to_ne_bytes());
    for number in [1000_u32, 100, 42, 0] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Decodes a body of one operation after a right header, and checks the properties of the result.
pub(crate) fn drive(opcode: u32, body: &[u8]) {
    let message = message(opcode, body);
    let (header, request) = Request::decode(&message).expect("the header is right");
    assert_eq!((header.opcode, header.unique, header.pid), (opcode, 2, 42));
    if let Ok(request) = request {
        check(&request.operation, body);
    }
}

/// Decodes bytes as they are.
pub(crate) fn drive_raw(bytes: &[u8]) {
    if let Ok((_, Ok(request))) = Request::decode(bytes) {
        check(&request.operation, bytes);
    }
}

fn check(operation: &Operation<'_>, body: &[u8]) {
    let is_name = |name: &[u8]| !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
    match *operation {
        Operation::Lookup(name)
        | Operation::MkDir { name, .. }
        | Operation::Create { name, .. }
        | Operation::Unlink(name) => assert!(is_name(name)),
        Operation::Rename { name, name_new, .. } => assert!(is_name(name) && is_name(name_new)),
        Operation::Write(Write { data, .. }) => assert!(data.len() < body.len()),
        Operation::Read(read) => assert!(read.size <= TRANSFER_BYTES_MAX),
        Operation::BatchForget(forgets) => {
            assert!(forgets.iter().count() * 16 <= body.len());
        }
        _ => {}
    }
}
