//! The steps and results of functions, and the order that the store gave their commits.
//!
//! Times are virtual, or monotonic for a real store; only their order is used.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use transactions::model::{Attempt, Isolation, Key, TransactionId, Version};

/// One attempt of one transaction, as the writer of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// The transaction.
    pub id: TransactionId,
    /// The number of the begin.
    pub attempt: Attempt,
}

/// The time between a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The time of the request.
    pub asked: Duration,
    /// The time of the answer.
    pub answered: Duration,
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadResult {
    /// This value.
    Value(Bytes),
    /// The key has no value.
    Absent,
    /// No version of the key is consistent with the earlier reads.
    NoValidVersion,
}

/// One step of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A read with a result.
    Read {
        /// The key.
        key: Key,
        /// The result.
        shown: ReadResult,
        /// The time.
        span: Span,
    },
    /// A write; none: a deletion. It is recorded at its request, regardless of its result.
    Wrote {
        /// The key.
        key: Key,
        /// The value.
        value: Option<Bytes>,
    },
}

/// The final answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// All its writes take effect.
    Committed,
    /// None of them takes effect.
    Refused,
    /// None of them takes effect, because another transaction wrote what it had read.
    Conflict,
    /// Unknown.
    Unknown,
}

/// A requested commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// From the first request to the answer.
    pub span: Span,
    /// The answer.
    pub answer: Answer,
}

/// The events of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// The client.
    pub client: usize,
    /// Its transaction id, and the number of the begin.
    pub writer: Writer,
    /// Its isolation level.
    pub isolation: Isolation,
    /// Its begin.
    pub begun: Span,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// Its commit; none: it was never requested.
    pub commit: Option<Commit>,
}

impl Execution {
    /// The last write to each key.
    pub fn writes(&self) -> BTreeMap<&Key, Option<&Bytes>> {
        let mut writes = BTreeMap::new();
        for step in &self.steps {
            if let Step::Wrote { key, value } = step {
                writes.insert(key, value.as_ref());
            }
        }
        writes
    }

    /// The reads of keys that it had not written before.
    pub fn reads(&self) -> impl Iterator<Item = (&Key, &ReadResult, Span)> {
        let mut written = std::collections::BTreeSet::new();
        self.steps.iter().filter_map(move |step| match step {
            Step::Wrote { key, .. } => {
                written.insert(key);
                None
            }
            Step::Read { key, shown, span } => {
                (!written.contains(key)).then_some((key, shown, *span))
            }
        })
    }

    /// The answer to its commit.
    pub fn answer(&self) -> Option<Answer> {
        self.commit.map(|commit| commit.answer)
    }

    /// When its commit was acknowledged.
    pub fn acknowledged(&self) -> Option<Duration> {
        self.commit
            .filter(|commit| commit.answer == Answer::Committed)
            .map(|commit| commit.span.answered)
    }
}

/// The committed attempts, and the version of all that each wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// By writer.
    pub committed: BTreeMap<Writer, Version>,
}
