//! What functions did and were shown, and the order that the store gave their commits.
//!
//! Times are virtual, or monotonic where a real store is watched; only their order is used.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use transactions::model::{Attempt, Isolation, Key, TransactionId, Version};

/// One attempt of one transaction: who writes a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// The transaction.
    pub id: TransactionId,
    /// Which begin of it.
    pub attempt: Attempt,
}

/// From a question to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it was asked.
    pub asked: Duration,
    /// When it was answered.
    pub answered: Duration,
}

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// With this value.
    Value(Bytes),
    /// The key has none.
    Absent,
    /// No version of the key went with what was read before.
    NoValidVersion,
}

/// One step of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It read, and was answered.
    Read {
        /// The key.
        key: Key,
        /// What it was shown.
        shown: Shown,
        /// When.
        span: Span,
    },
    /// It wrote; none: it deleted the key. Noted when it was asked for, whatever came of it.
    Wrote {
        /// The key.
        key: Key,
        /// The value.
        value: Option<Bytes>,
    },
}

/// What the client was told of its commit in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// All its writes count.
    Committed,
    /// None of them does.
    Refused,
    /// None of them does, since somebody has written what it read.
    Conflict,
    /// Nothing.
    Unknown,
}

/// A commit that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// From the first time it was asked for to the answer.
    pub span: Span,
    /// The answer.
    pub answer: Answer,
}

/// What happened in one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Whose it was.
    pub client: usize,
    /// Its name, and which begin of it.
    pub writer: Writer,
    /// What it asked to be kept apart from.
    pub isolation: Isolation,
    /// Its begin.
    pub begun: Span,
    /// What it did, in order.
    pub steps: Vec<Step>,
    /// Its commit; none: it was never asked for.
    pub commit: Option<Commit>,
}

impl Execution {
    /// What it last wrote to each key.
    pub fn writes(&self) -> BTreeMap<&Key, Option<&Bytes>> {
        let mut writes = BTreeMap::new();
        for step in &self.steps {
            if let Step::Wrote { key, value } = step {
                writes.insert(key, value.as_ref());
            }
        }
        writes
    }

    /// Its reads of keys that it had not written itself before.
    pub fn reads(&self) -> impl Iterator<Item = (&Key, &Shown, Span)> {
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

    /// What it was told of its commit.
    pub fn answer(&self) -> Option<Answer> {
        self.commit.map(|commit| commit.answer)
    }

    /// When it was told that it had committed.
    pub fn acknowledged(&self) -> Option<Duration> {
        self.commit
            .filter(|commit| commit.answer == Answer::Committed)
            .map(|commit| commit.span.answered)
    }
}

/// Which attempts committed, and the version of all that each wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// By writer.
    pub committed: BTreeMap<Writer, Version>,
}
