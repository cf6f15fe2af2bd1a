//! The transport between nodes: one call to one node, its messages and their bounds.
//!
//! A call is a question and its answer, both as bytes, so the transport knows nothing of their
//! content. It may be lost, late or duplicated: every message can be repeated, and none is more
//! than news or a question. A node's promises are in its log and its rows.
//!
//! A message names its receiving node, not only an address: a process that restarts is another node
//! at the same address. A message of an unknown kind is refused by its number, so nodes of two
//! builds can work side by side.
//!
//! A message also carries a secret that only processes with access to the store know. A caller of
//! the listener need not be a node, and every node would believe a stranger's news.
//!
//! Bounds: [`message_bytes_max`] a message, [`CALL_MAX`] a call. Work that clients wait for is
//! requested *at length*. It may take longer, in proportion to its size ([`more_time_for`]), as
//! long as its node meanwhile answers liveness probes ([`probe`](crate::cluster::probe)).

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, Result, model::Address};

/// The longest message of any kind, and the longest answer: a value of the largest size and its
/// envelope.
pub const MESSAGE_BYTES_MAX: usize = (64 << 20) + (64 << 10);

/// The longest announcement: its commits up to one of the largest, and the state of its node.
const ANNOUNCEMENT_BYTES_MAX: usize = 20 << 20;

/// The longest proposal to a sequencer: a transaction's reads, with a number for each key, and its
/// writes.
const SEQUENCE_BYTES_MAX: usize = 2 << 20;

/// The longest question, and the longest message of an unknown kind.
const QUESTION_BYTES_MAX: usize = 4 << 10;

/// The kinds of messages: the first byte of each.
pub(super) const ASK: u8 = 1;
pub(crate) const ANNOUNCE: u8 = 2;
pub(super) const FORWARD: u8 = 3;
pub(super) const SEQUENCE: u8 = 4;
pub(super) const STOP_TIMESTAMPS: u8 = 5;
/// Begins a connection for volumes. It has no body, and is no message of a call.
pub(super) const VOLUMES: u8 = 6;

/// The longest message that begins with `kind`.
pub const fn message_bytes_max(kind: u8) -> usize {
    match kind {
        FORWARD => MESSAGE_BYTES_MAX,
        ANNOUNCE => ANNOUNCEMENT_BYTES_MAX,
        SEQUENCE => SEQUENCE_BYTES_MAX,
        _ => QUESTION_BYTES_MAX,
    }
}

/// How long to wait for an answer.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// The extra time of a call for each MiB that it carries.
const MORE_FOR_A_MIB: Duration = Duration::from_millis(125);

/// The extra time of a call that carries `bytes`, for its way and its storage.
pub fn more_time_for(bytes: usize) -> Duration {
    MORE_FOR_A_MIB * (bytes >> 20) as u32
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No answer: the request may have been done.
    #[error("no answer from a node: {0}")]
    Silence(Arc<str>),
    /// The node is alive, and has no memory for the message: nothing was done.
    #[error("a node has no memory for the message")]
    TooMuchBuffered,
    /// The node is alive, and cannot answer now: the request may have been done.
    #[error("a node cannot answer: {0}")]
    Unavailable(Arc<str>),
}

/// Why the result of a request at length is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Its node is gone, or answers nothing.
    Silence(Error),
    /// Its node is alive, and will do nothing more for it.
    Refused(NoAnswer),
    /// Its node is alive, and may still do it at any time.
    Late(NoAnswer),
}

/// The transport to the other nodes.
#[async_trait]
pub trait Peers: Debug + Send + Sync {
    /// Sends `message` to the node at `address`, and returns its answer. No order is promised, nor
    /// that a message arrives only once.
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer>;
}

#[cfg(test)]
pub(crate) mod tests {
    use simulated::World;

    use super::{Address, Arc, Bytes, NoAnswer, Peers, async_trait};
    use crate::{Config, Parts, Service, cluster::membership::Alone};

    /// A transport that reaches no node.
    #[derive(Debug)]
    struct Nobody;

    #[async_trait]
    impl Peers for Nobody {
        async fn call(&self, _: &Address, _: Bytes) -> Result<Bytes, NoAnswer> {
            Err(NoAnswer::Silence("no node".into()))
        }
    }

    /// A node that could have others beside it, and has none.
    pub(crate) async fn start_among_others() -> Service {
        let world = World::new(1);
        let parts = Parts {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let among = Service::builder(parts).among(Arc::new(Alone::default()), Arc::new(Nobody));
        let service = among.build(Config::default());
        service.start().await.expect("a calm world");
        service
    }
}
