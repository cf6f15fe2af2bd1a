//! What `landfast zookeeper copy` reads: packets of a server, and snapshot files. Each decodes to values that can be
//! written to the other side, or is an error.
#![no_main]
#![allow(dead_code)] // Only the decoders of these modules are driven.

#[path = "../../src/commands/zookeeper/kinds.rs"]
mod kinds;
#[path = "../../src/commands/zookeeper/protocol.rs"]
mod protocol;

use std::io::Read as _;

use bytes::Bytes;
use kinds::Kind;
use libfuzzer_sys::fuzz_target;
use protocol::{Reply, Request};
use zookeeper_frontend::{
    framing::Frames,
    jute::{Malformed, Reader},
};

const FRAME_BYTES_MAX: usize = 1 << 16;
/// The length, the xid and the opcode of a request.
const HEAD_BYTES: usize = 12;
/// The xid, the zxid and no error.
const REPLY: [u8; 16] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];

fuzz_target!(|bytes: &[u8]| {
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    for piece in bytes.chunks(7) {
        frames.space().extend_from_slice(piece);
        frames.received(piece.len());
        while let Ok(Some(frame)) = frames.next_frame() {
            let frame = frame.rest();
            let _ = protocol::connected(&frame);
            if let Ok(reply) = Reply::decode(&frame) {
                read(&reply);
            }
        }
    }
    let whole = Bytes::from([&REPLY, bytes].concat());
    read(&Reply::decode(&whole).expect("it has a head"));
    let snapshot = b"ZKSN\0\0\0\x02\0\0\0\0\0\0\0\0".chain(bytes);
    if let Ok(kinds) = kinds::read_snapshot(snapshot) {
        assert!(kinds.values().all(|kind| *kind != Kind::Persistent));
    }
});

/// Reads a reply as each call does.
fn read(reply: &Reply) {
    let _ = (reply.stat(), reply.children(), reply.count());
    if let Ok((data, stat)) = reply.data() {
        let _ = protocol::creates(&stat);
        if let Some(kind) = Kind::of_owner(stat.ephemeral_owner) {
            let written = sent(Request::create("/", data.as_deref(), &[], kind), |reader| {
                reader.path()?;
                reader.data()
            });
            assert_eq!(written, Ok(data));
        }
    }
    if let Ok(acl) = reply.acl() {
        let written = sent(Request::set_acl("/", &acl), |reader| {
            reader.path()?;
            reader.acl()
        });
        assert_eq!(written, Ok(acl));
    }
}

/// Reads the fields of a request back.
fn sent<T>(mut request: Request, fields: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>) -> Result<T, Malformed> {
    let bytes = Bytes::copy_from_slice(&request.numbered(1)[HEAD_BYTES..]);
    fields(&mut Reader::new(&bytes))
}
