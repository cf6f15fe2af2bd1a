//! The answers that the clients of a volume received.

use std::time::Duration;

use bytes::Bytes;
use ports::DurabilityPoint;
use transactions::serializable::model::{Key, KeyRange, Proposal, Slot, Verdict, Write};

use crate::transactions::history::Span;

/// A part of the state at a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saw {
    /// The value of a key.
    Value(Key, Option<Bytes>),
    /// All present names of a range, with their values.
    Names(KeyRange, Vec<(Bytes, Bytes)>),
}

/// An answered read.
#[derive(Debug, Clone)]
pub struct Look {
    /// The time.
    pub span: Span,
    /// Whether it asked for the state at the tail.
    pub is_tail: bool,
    /// Whether it was answered from leased memory: its slot is that of the read before.
    pub is_leased: bool,
    /// The slot that it read at.
    pub slot: Slot,
    /// The parts that it read; a snapshot reads nothing.
    pub saw: Vec<Saw>,
    /// All that it saw lies at or before this point.
    pub point: DurabilityPoint,
}

/// One sending of a proposal.
#[derive(Debug, Clone)]
pub struct Sent {
    /// When it was sent.
    pub asked: Duration,
    /// When it was answered, and how; none: the answer was lost.
    pub answer: Option<(Duration, Verdict, DurabilityPoint)>,
}

/// One attempt of a transaction.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// The proposal that the client sent.
    pub proposal: Proposal,
    /// Its writes.
    pub writes: Vec<Write>,
    /// The parts that it has read.
    pub saw: Vec<Saw>,
    /// Its sendings.
    pub sent: Vec<Sent>,
}

impl Transaction {
    /// Whether it writes without reads and predicates.
    pub fn is_blind(&self) -> bool {
        self.proposal.reads.is_empty() && self.proposal.predicates.is_empty()
    }
}

/// A refused read or proposal whose slot is too old.
#[derive(Debug, Clone, Copy)]
pub struct TooOld {
    /// When it was asked.
    pub asked: Duration,
    /// The slot.
    pub slot: Slot,
}

/// All that happened.
#[derive(Debug, Default)]
pub struct History {
    /// The answered reads.
    pub looks: Vec<Look>,
    /// The proposals.
    pub transactions: Vec<Transaction>,
    /// The slots that were too old.
    pub too_old: Vec<TooOld>,
    /// The slots that were pinned for the whole run.
    pub pinned: Vec<Slot>,
    /// The points that were externalized.
    pub externalized: Vec<DurabilityPoint>,
    /// Errors that no call may return.
    pub errors: Vec<String>,
}
