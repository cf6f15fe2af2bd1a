//! Matches replies to requests, and decides when a conversation is over. No I/O.
//!
//! The service answers in the order of the requests, so a queue of requests suffices to give each
//! reply its xid and form. The xid is the service's tag and must come back unchanged. If it does
//! not, the service has lost the order and no later reply can be trusted.
//!
//! A conversation ends with the reply to a close, to an unknown operation or to a peer that fails to
//! prove who it is. If the stream contains
//! bytes that are no request, it ends with the reply to the last request before them. Later bytes
//! of the client are not read.

use std::collections::VecDeque;

use bytes::BytesMut;
use coordination::model::{Output, Request};

use crate::{
    authentication::Authentication,
    framing::{Frames, LengthOutOfRange},
    jute::{
        Malformed, Operation, reply,
        request::{self, Fault},
    },
    latency::LastReply,
    statistics::Tally,
};

/// Bytes after which the next frame cannot be found, or which cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0} (--zookeeper-packet-bytes-max)")]
    Length(#[from] LengthOutOfRange),
    /// A frame is too short for the header of a request.
    #[error("a packet is too short for a request: {0}")]
    Header(#[from] Malformed),
    /// The rest of a frame will not arrive.
    #[error("the peer disconnected in the middle of a packet")]
    Unfinished,
}

#[derive(Debug)]
pub struct Conversation {
    authentication: Authentication,
    awaited: VecDeque<Awaited>,
    phase: Phase,
    fault: Option<Fault>,
    pub(crate) tally: Tally,
    /// The time of the current turn, in milliseconds since the connection began.
    pub(crate) now_ms: u32,
}

#[derive(Debug, Clone)]
struct Awaited {
    xid: i32,
    operation: Operation,
    parts: Vec<Operation>,
    since_ms: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Talking,
    Ending,
    Over,
}

impl Conversation {
    /// A conversation with a peer of which the network knows this much.
    pub fn new(authentication: Authentication) -> Self {
        Self {
            authentication,
            awaited: VecDeque::new(),
            phase: Phase::default(),
            fault: None,
            tally: Tally::default(),
            now_ms: 0,
        }
    }

    pub(crate) fn authentication(&self) -> &Authentication {
        &self.authentication
    }

    /// The next request, with the tag to submit it with. A violation is returned once, and nothing
    /// after it is read.
    pub fn next_request(
        &mut self,
        frames: &mut Frames,
    ) -> Result<Option<(i32, Request)>, Violation> {
        if self.phase != Phase::Talking {
            return Ok(None);
        }
        self.next_in(frames).inspect_err(|_| {
            self.phase = if self.awaited.is_empty() {
                Phase::Over
            } else {
                Phase::Ending
            };
        })
    }

    fn next_in(&mut self, frames: &mut Frames) -> Result<Option<(i32, Request)>, Violation> {
        let Some(frame) = frames.next_frame()? else {
            return Ok(None);
        };
        let decoded = request::decode(frame, &mut self.authentication)?;
        let (xid, operation) = (decoded.xid, decoded.operation);
        let is_unknown_peer = matches!(
            decoded.fault,
            Some(Fault::Authentication | Fault::Identities | Fault::Unauthenticated)
        );
        if is_unknown_peer || matches!(operation, Operation::CloseSession | Operation::Unknown) {
            self.phase = Phase::Ending;
        }
        self.fault = decoded.fault;
        self.tally.requests += 1;
        self.awaited.push_back(Awaited {
            xid,
            operation,
            parts: decoded.parts,
            since_ms: self.now_ms,
        });
        Ok(Some((xid, decoded.request)))
    }

    /// The fault of the last request, returned once.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// Encodes a reply or event. Does nothing if the last reply was encoded before.
    ///
    /// # Panics
    /// If a reply does not belong to the oldest unanswered request.
    pub fn encode(&mut self, output: &Output, buffer: &mut BytesMut) {
        if self.phase == Phase::Over {
            return;
        }
        self.tally.packets_sent += 1;
        match output {
            Output::Event { zxid, kind, path } => {
                reply::encode_event(*zxid, *kind, path, buffer);
            }
            Output::Reply { tag, zxid, result } => {
                let Awaited {
                    xid,
                    operation,
                    parts,
                    since_ms,
                } = self
                    .awaited
                    .pop_front()
                    .expect("the service answers only submitted requests");
                assert_eq!(
                    xid, *tag,
                    "the service answers in the order of the requests"
                );
                let zxid = match operation {
                    _ if *result == Err(coordination::Error::AuthenticationRequired) => {
                        coordination::model::Zxid(0)
                    }
                    Operation::Unknown => reply::NO_ZXID,
                    Operation::Authenticate => coordination::model::Zxid(0),
                    _ => *zxid,
                };
                self.tally.latency.add(self.now_ms.saturating_sub(since_ms));
                self.tally.last = Some(LastReply {
                    operation,
                    xid: (xid >= 0)
                        .then_some(xid)
                        .or(self.tally.last.and_then(|last| last.xid)),
                    zxid,
                    at_ms: 0,
                });
                reply::encode(xid, operation, &parts, zxid, result, buffer);
                if self.phase == Phase::Ending && self.awaited.is_empty() {
                    self.phase = Phase::Over;
                }
            }
        }
    }

    /// Frees the memory of the queue of requests if it is empty.
    pub(crate) fn release_unused(&mut self) {
        if self.awaited.is_empty() {
            self.awaited = VecDeque::new();
        }
    }

    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Whether nothing more is read: the last request was read, or a violation was found.
    pub fn is_ending(&self) -> bool {
        self.phase != Phase::Talking
    }

    /// Whether the last reply was encoded. The connection closes once it is sent.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }
}
