//! Which request each reply answers, and when a conversation is over; no I/O.
//!
//! The service answers in the order of the requests, so a queue of what was asked is all it takes to give
//! each reply its xid and form. The xid travels along as the service's tag and must come back the same:
//! if it does not, the service has lost the order and nothing that follows could be trusted.
//!
//! A conversation ends with the reply to a close, or to an operation nobody knows; or, where there are bytes that no
//! request can be found in, with the reply to the last request before them. What the client sent behind is not read.

use std::collections::VecDeque;

use bytes::BytesMut;
use coordination::model::{Output, Request};

use crate::{
    framing::{Frames, LengthOutOfRange},
    jute::{
        Malformed, Operation, reply,
        request::{self, Fault},
    },
    statistics::Tally,
};

/// Bytes behind which the next frame cannot be found, or which cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame's length is not allowed.
    #[error(transparent)]
    Length(#[from] LengthOutOfRange),
    /// A frame is too short for the header of a request.
    #[error("a packet is too short for a request: {0}")]
    Header(#[from] Malformed),
    /// The rest of a frame does not come any more.
    #[error("the peer has gone in the middle of a packet")]
    Unfinished,
}

/// What one client has asked and not been answered.
#[derive(Debug, Default)]
pub struct Conversation {
    awaited: VecDeque<Awaited>,
    stage: Stage,
    fault: Option<Fault>,
    pub(crate) tally: Tally,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    xid: i32,
    operation: Operation,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Talking,
    /// The last request was taken.
    Ending,
    /// Its reply was written.
    Over,
}

impl Conversation {
    /// The next request, with the tag to submit it with. A violation is said once, and nothing is read behind it.
    pub fn next_request(
        &mut self,
        frames: &mut Frames,
    ) -> Result<Option<(i32, Request)>, Violation> {
        if self.stage != Stage::Talking {
            return Ok(None);
        }
        let next = self.next_in(frames);
        if next.is_err() {
            self.stage = if self.awaited.is_empty() {
                Stage::Over
            } else {
                Stage::Ending
            };
        }
        next
    }

    fn next_in(&mut self, frames: &mut Frames) -> Result<Option<(i32, Request)>, Violation> {
        let Some(frame) = frames.next_frame()? else {
            return Ok(None);
        };
        let request::Decoded {
            xid,
            operation,
            request,
            fault,
        } = request::decode(frame)?;
        if matches!(
            operation,
            Operation::CloseSession | Operation::Authenticate | Operation::Unknown
        ) {
            self.stage = Stage::Ending;
        }
        self.fault = fault;
        self.tally.requests[operation.index()] += 1;
        self.awaited.push_back(Awaited { xid, operation });
        Ok(Some((xid, request)))
    }

    /// What was wrong with the last request, said once.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// Writes a reply or event; nothing if the last reply was written before.
    ///
    /// # Panics
    /// If a reply is not to the oldest request without one.
    pub fn encode(&mut self, output: &Output, buffer: &mut BytesMut) {
        if self.stage == Stage::Over {
            return;
        }
        match output {
            Output::Event { zxid, kind, path } => {
                self.tally.events += 1;
                reply::encode_event(*zxid, *kind, path, buffer);
            }
            Output::Reply { tag, zxid, result } => {
                let Awaited { xid, operation } = self
                    .awaited
                    .pop_front()
                    .expect("the service answers only what it was asked");
                assert_eq!(xid, *tag, "the service answers in the order it was asked");
                self.tally.replies += 1;
                self.tally.errors += u64::from(result.is_err());
                let zxid = match operation {
                    Operation::Unknown => reply::NO_ZXID,
                    Operation::Authenticate => coordination::model::Zxid(0),
                    _ => *zxid,
                };
                reply::encode(xid, operation, zxid, result, buffer);
                if self.stage == Stage::Ending && self.awaited.is_empty() {
                    self.stage = Stage::Over;
                }
            }
        }
    }

    /// How many requests wait for their reply.
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Whether the last request was taken, or no more can be: nothing more is read.
    pub fn is_ending(&self) -> bool {
        self.stage != Stage::Talking
    }

    /// Whether the last reply was written: the connection closes once it is sent.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }
}
