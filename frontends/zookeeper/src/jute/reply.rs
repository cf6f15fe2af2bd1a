//! Replies and watch events: a header, and the body of the request's operation.
//!
//! An error has no body. An event is a reply with xid -1. Its zxid is that of the change that fired
//! it, or -1 for an event that was found missed when watches were set again.

use bytes::BytesMut;
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
/// In the header of a failed part, and in the one after the last part.
const NO_OPCODE: i32 = -1;
/// `SyncConnected`, the only possible state of a server that answers.
const STATE_CONNECTED: i32 = 3;

/// Writes the answer to a request as a frame.
///
/// # Panics
/// If the operation cannot have this response: the service answered another request.
pub fn encode(
    xid: i32,
    operation: Operation,
    parts: &[Operation],
    zxid: Zxid,
    result: &Result<Response, Error>,
    buffer: &mut BytesMut,
) {
    let xid = if operation == Operation::Ping && result.is_ok() {
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
    let body_bytes = FrameWriter::LENGTH_BYTES + FrameWriter::STAT_BYTES + response.bytes_len();
    let mut frame = FrameWriter::begin(buffer, HEADER_BYTES + body_bytes);
    frame.reply_header(xid, zxid.0, error_codes::OK);
    body(&mut frame, operation, parts, response);
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

fn body(
    frame: &mut FrameWriter<'_>,
    operation: Operation,
    parts: &[Operation],
    response: &Response,
) {
    match (operation, response) {
        (Operation::Create, Response::Created { path, .. })
        | (Operation::Sync, Response::Synced { path: Some(path) }) => frame.string(path),
        (Operation::Sync, Response::Synced { path: None }) => frame.buffer(None),
        (
            Operation::Create2 | Operation::CreateContainer | Operation::CreateTtl,
            Response::Created { path, stat },
        ) => {
            frame.string(path);
            frame.stat(stat);
        }
        (Operation::Exists | Operation::SetData | Operation::SetAcl, Response::Stat(stat)) => {
            frame.stat(stat);
        }
        (Operation::GetAcl, Response::Acl { acl, stat }) => {
            frame.acl(acl);
            frame.stat(stat);
        }
        (Operation::WhoAmI, Response::Identities(identities)) => {
            frame.vector(identities, |frame, identity| {
                frame.string(&identity.scheme);
                frame.string(&identity.id);
            });
        }
        (Operation::GetEphemerals, Response::Ephemerals(paths)) => frame.strings(paths),
        (Operation::CountDescendants, Response::Count(count)) => frame.int(*count),
        // The body is an error record.
        (Operation::AddWatch, Response::WatchAdded) => frame.int(error_codes::OK),
        (Operation::Multi | Operation::MultiRead, Response::Multi(results)) => {
            results_of_parts(frame, parts, results);
        }
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
        | (Operation::Check, Response::Checked)
        | (Operation::Authenticate, Response::Authenticated)
        | (Operation::CheckWatches | Operation::RemoveWatches, Response::WatchesRemoved)
        | (Operation::Ping, Response::Pong)
        | (Operation::SetWatches | Operation::SetWatches2, Response::WatchesSet)
        | (Operation::CloseSession, Response::Closed) => {}
        (operation, _) => panic!("{operation:?} was given the answer to another operation"),
    }
}

/// The results of a multi: a header and a body each, and the header that says done.
fn results_of_parts(
    frame: &mut FrameWriter<'_>,
    parts: &[Operation],
    results: &[Result<Response, Error>],
) {
    let header = |frame: &mut FrameWriter<'_>, opcode, is_done, code| {
        frame.int(opcode);
        frame.bool(is_done);
        frame.int(code);
    };
    for (operation, result) in parts.iter().zip(results) {
        match result {
            Ok(response) => {
                header(frame, operation.result_opcode(), false, error_codes::OK);
                body(frame, *operation, &[], response);
            }
            Err(error) => {
                let code = error_codes::code(*error);
                header(frame, NO_OPCODE, false, code);
                frame.int(code);
            }
        }
    }
    header(frame, NO_OPCODE, true, -1);
}
