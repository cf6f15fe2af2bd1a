//! How nodes ask each other: one call to one node, its messages and their bounds.
//!
//! A call is a question and its answer, both as bytes, so that whoever carries them knows nothing of what they say. It may
//! be lost, late or doubled: every message can be repeated, and none is more than news or a question. What a node promises
//! it promises by its log and its rows.
//!
//! A message says to which node it goes, not only to which address: a process that starts over is another node at the same
//! address. One whose kind is not known is refused by its number, so nodes of two builds can work beside each other.
//!
//! It also carries a secret that only those know who reach the store: whoever may call the listener is not yet a node, and a
//! stranger's news would be believed by all.
//!
//! Bounds: [`message_bytes_max`] a message, [`CALL_MAX`] a call. What clients wait for is asked *at length*: it may take longer, by what it
//! carries ([`more_time_for`]), as long as its node says in between how it stands ([`looks`](crate::cluster::probe)).

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, Result, model::Address};

/// The longest message of any kind, and the longest answer: a value of the largest size, and what stands around it.
pub const MESSAGE_BYTES_MAX: usize = (64 << 20) + (64 << 10);

/// The longest announcement: its commits up to one of the largest, and how its node stands.
const ANNOUNCEMENT_BYTES_MAX: usize = 20 << 20;

/// The longest wish of a sequencer: what a transaction has read, a number for each key, and what it writes.
const SEQUENCE_BYTES_MAX: usize = 2 << 20;

/// The longest question, and the longest message of a kind that is not known here.
const QUESTION_BYTES_MAX: usize = 4 << 10;

/// The kinds of messages: the first byte of each.
pub(super) const ASK: u8 = 1;
pub(super) const ANNOUNCE: u8 = 2;
pub(super) const FORWARD: u8 = 3;
pub(super) const SEQUENCE: u8 = 4;
pub(super) const STOP_TIMESTAMPS: u8 = 5;

/// The longest message that begins with `kind`.
pub const fn message_bytes_max(kind: u8) -> usize {
    match kind {
        FORWARD => MESSAGE_BYTES_MAX,
        ANNOUNCE => ANNOUNCEMENT_BYTES_MAX,
        SEQUENCE => SEQUENCE_BYTES_MAX,
        _ => QUESTION_BYTES_MAX,
    }
}

/// How long an answer is waited for.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// How much longer a call may take for each MiB that it carries.
const MORE_FOR_A_MIB: Duration = Duration::from_millis(125);

/// How much longer than others a call may take that carries `bytes`, on its way and into the store.
pub fn more_time_for(bytes: usize) -> Duration {
    MORE_FOR_A_MIB * (bytes >> 20) as u32
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody says anything: what was asked may have been done.
    #[error("no answer from a node: {0}")]
    Silence(Arc<str>),
    /// The node lives, and has no memory for the message: nothing was done.
    #[error("a node has no memory for what it is told")]
    TooMuchBuffered,
    /// The node lives, and cannot answer now: what was asked may have been done.
    #[error("a node cannot answer: {0}")]
    Unavailable(Arc<str>),
}

/// What is not known of something that was asked at length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// Its node is gone, or says nothing whatever it is asked.
    Silence(Error),
    /// Its node lives, and has nothing more to do for it.
    Refused(NoAnswer),
    /// Its node lives, and may still do it, at any time.
    Late(NoAnswer),
}

/// The way to the other nodes.
#[async_trait]
pub trait Peers: Debug + Send + Sync {
    /// Takes `message` to the node at `address`, and its answer back. Nothing is promised of order, nor that a message
    /// arrives once.
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer>;
}
