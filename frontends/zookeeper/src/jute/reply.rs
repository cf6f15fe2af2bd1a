//! Replies and watch events: a header, and the body of the request's operation.
//!
//! An error has no body. An event is a reply with xid -1. Its zxid is that of the change that fired
//! it, or -1 for an event that was found missed when watches were set again.

use bytes::{Bytes, BytesMut};
use coordination::{
    Error,
    model::{EventKind, Response, Zxid},
};

use super::{FrameWriter, Operation};
use crate::error_codes;

pub const EVENT_XID: i32 = -1;
/// The xid of the answer to every ping.
pub const PING_XID: i32 = -2;
/// Takes the place of a missing zxid.
pub const NO_ZXID: Zxid = Zxid(-1);

const HEADER_BYTES: usize = 16;
/// `SyncConnected`, the only possible state of a server that answers.
const STATE_CONNECTED: i32 = 3;

/// Writes the answer to a request as a frame.
///
/// # Panics
/// If the operation cannot have this response: the service answered another request.
pub fn encode(
    xid: i32,
    operation: Operation,
    zxid: Zxid,
    result: &Result<Response, Error>,
    buffer: &mut BytesMut,
) {
    let xid = if operation == Operation::Ping {
        PING_XID
    } else {
        xid
    };
    let response = match result {
        Ok(response) => response,
        Err(error) => {
            let mut frame = FrameWriter::begin(buffer, HEADER_BYTES);
            frame.reply_header(xid, zxid.0, error_codes::code(*error));
            return frame.finish();
        }
    };
    let mut frame = FrameWriter::begin(buffer, HEADER_BYTES + body_bytes(response));
    frame.reply_header(xid, zxid.0, error_codes::OK);
    body(&mut frame, operation, response);
    frame.finish();
}

pub fn encode_event(zxid: Option<Zxid>, kind: EventKind, path: &str, buffer: &mut BytesMut) {
    let mut frame = FrameWriter::begin(buffer, HEADER_BYTES + 12 + path.len());
    frame.reply_header(EVENT_XID, zxid.unwrap_or(NO_ZXID).0, error_codes::OK);
    frame.int(match kind {
        EventKind::NodeCreated => 1,
        EventKind::NodeDeleted => 2,
        EventKind::NodeDataChanged => 3,
        EventKind::NodeChildrenChanged => 4,
    });
    frame.int(STATE_CONNECTED);
    frame.string(path);
    frame.finish();
}

fn body(frame: &mut FrameWriter<'_>, operation: Operation, response: &Response) {
    match (operation, response) {
        (Operation::Create, Response::Created { path, .. })
        | (Operation::Sync, Response::Synced { path: Some(path) }) => frame.string(path),
        (Operation::Sync, Response::Synced { path: None }) => frame.buffer(None),
        (Operation::Create2, Response::Created { path, stat }) => {
            frame.string(path);
            frame.stat(stat);
        }
        (Operation::Exists | Operation::SetData, Response::Stat(stat)) => frame.stat(stat),
        (Operation::GetData, Response::Data { data, stat }) => {
            frame.buffer(data.as_deref());
            frame.stat(stat);
        }
        (Operation::GetChildren, Response::Children { children, .. }) => frame.strings(children),
        (Operation::GetChildren2, Response::Children { children, stat }) => {
            frame.strings(children);
            frame.stat(stat);
        }
        (Operation::Delete, Response::Deleted)
        | (Operation::Ping, Response::Pong)
        | (Operation::SetWatches | Operation::SetWatches2, Response::WatchesSet)
        | (Operation::CloseSession, Response::Closed) => {}
        (operation, _) => panic!("{operation:?} was given the answer to another operation"),
    }
}

/// The largest possible size of the body, so that the buffer grows at most once.
fn body_bytes(response: &Response) -> usize {
    const LENGTH: usize = FrameWriter::LENGTH_BYTES;
    const STAT: usize = FrameWriter::STAT_BYTES;
    match response {
        Response::Created { path, .. } => LENGTH + path.len() + STAT,
        Response::Synced { path } => LENGTH + path.as_deref().map_or(0, str::len),
        Response::Stat(_) => STAT,
        Response::Data { data, .. } => LENGTH + data.as_ref().map_or(0, Bytes::len) + STAT,
        Response::Children { children, .. } => {
            LENGTH
                + STAT
                + children
                    .iter()
                    .map(|child| LENGTH + child.len())
                    .sum::<usize>()
        }
        Response::Deleted | Response::Pong | Response::WatchesSet | Response::Closed => 0,
    }
}
