//! Drives everything without I/O with a peer's bytes: framing, decoding, and the encoding of
//! answers.

use bytes::{Bytes, BytesMut};
use coordination::{
    Error,
    model::{Output, Request, Response, Stat, Zxid},
};
use zookeeper_frontend::{
    authentication::Authentication, conversation::Conversation, framing::Frames,
    jute::connect::ConnectRequest,
};

/// The packet limit.
pub(crate) const PACKET_BYTES_MAX: usize = 1 << 16;

/// A conversation with a peer on the same machine.
pub(crate) fn conversation() -> Conversation {
    Conversation::new(authentication())
}

pub(crate) fn authentication() -> Authentication {
    Authentication::new([127, 0, 0, 1].into(), None, None, None, false)
}

/// Feeds the bytes in pieces of `piece` bytes and answers every request. Panics if an invariant
/// breaks. Returns the number of requests.
pub(crate) fn drive(bytes: &[u8], piece: usize) -> usize {
    let mut frames = Frames::new(PACKET_BYTES_MAX);
    let mut conversation = conversation();
    let mut buffer = BytesMut::new();
    let mut requests = 0;
    'bytes: for bytes in bytes.chunks(piece.max(1)) {
        frames.space().extend_from_slice(bytes);
        frames.received(bytes.len());
        loop {
            match conversation.next_request(&mut frames) {
                Ok(Some((tag, request))) => {
                    requests += 1;
                    let output = Output::Reply {
                        tag,
                        zxid: Zxid(1),
                        result: answer(request),
                    };
                    conversation.encode(&output, &mut buffer);
                }
                Ok(None) => break,
                Err(_) => break 'bytes,
            }
        }
        if conversation.is_over() {
            break;
        }
    }
    assert_eq!(conversation.awaited(), 0, "every request was answered");
    assert_eq!(
        replies(buffer.freeze()),
        requests,
        "each answer is one frame"
    );
    requests
}

/// Decodes the bytes as a client's first packet.
pub(crate) fn drive_connect(bytes: &[u8]) {
    let mut frames = Frames::new(PACKET_BYTES_MAX);
    frames.space().extend_from_slice(bytes);
    frames.received(bytes.len());
    if let Ok(Some(frame)) = frames.next_frame()
        && let Ok(request) = ConnectRequest::decode(frame)
    {
        let _ = request.connect();
    }
}

fn answer(request: Request) -> Result<Response, Error> {
    let stat = Stat::default();
    match request {
        Request::Create { path, .. } => Ok(Response::Created { path, stat }),
        Request::Delete { .. } => Ok(Response::Deleted),
        Request::SetData { .. } | Request::SetAcl { .. } | Request::Exists { .. } => {
            Ok(Response::Stat(stat))
        }
        Request::Check { .. } => Ok(Response::Checked),
        Request::Multi(parts) | Request::MultiRead(parts) => {
            Ok(Response::Multi(parts.into_iter().map(answer).collect()))
        }
        Request::GetAcl { .. } => Ok(Response::Acl {
            acl: Vec::new(),
            stat,
        }),
        Request::Authenticate(_) => Ok(Response::Authenticated),
        Request::WhoAmI => Ok(Response::Identities(Vec::new())),
        Request::GetEphemerals { prefix } => Ok(Response::Ephemerals(vec![prefix])),
        Request::CountDescendants { .. } => Ok(Response::Count(1)),
        Request::AddWatch { .. } => Ok(Response::WatchAdded),
        Request::RemoveWatches { .. } => Ok(Response::WatchesRemoved),
        Request::GetData { path, .. } => Ok(Response::Data {
            data: Some(Bytes::from(path)),
            stat,
        }),
        Request::GetChildren { path, .. } => Ok(Response::Children {
            children: vec![path],
            stat,
        }),
        Request::Sync { path } => Ok(Response::Synced { path }),
        Request::Ping => Ok(Response::Pong),
        Request::SetWatches { .. } => Ok(Response::WatchesSet),
        Request::Close => Ok(Response::Closed),
        Request::Refuse(error) | Request::RefuseUpdate(error) => Err(error),
    }
}

/// Number of frames in the bytes. Panics if they are not complete frames with a header.
fn replies(mut bytes: Bytes) -> usize {
    let mut replies = 0;
    while let Some(length) = bytes.first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        assert!(length >= 16, "a reply has a header");
        let _ = bytes.split_to(4 + length);
        replies += 1;
    }
    assert!(bytes.is_empty(), "the last frame is whole");
    replies
}
