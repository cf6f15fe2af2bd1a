//! A request to the sequencer: that an attempt commits, or that it never does.
//!
//! Other nodes send it to the sequencer's node as a message.

use serde::{Deserialize, Serialize};

use crate::{
    model::{Attempt, TransactionId, Version},
    sequencer::{Observed, WriteSet},
    storage::records::{SequencedCommit, StoredRecord},
};

/// An attempt that wants to commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Its reads to validate; `None` skips validation.
    pub(crate) observed: Option<Observed>,
    pub(crate) set: WriteSet,
    pub(crate) effects: u32,
}

/// A request to the sequencer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposal {
    pub(crate) id: TransactionId,
    pub(crate) attempt: Attempt,
    /// The commit. `None`: record that the attempt never commits, unless it has.
    pub(crate) request: Option<Request>,
}

impl Proposal {
    /// To commit.
    pub(crate) fn to_commit(id: &TransactionId, attempt: Attempt, request: Request) -> Self {
        Self {
            id: id.clone(),
            attempt,
            request: Some(request),
        }
    }

    /// Asks for the final outcome of an attempt.
    pub(crate) fn to_close(id: &TransactionId, attempt: Attempt) -> Self {
        Self {
            id: id.clone(),
            attempt,
            request: None,
        }
    }

    pub(crate) fn commit(&self) -> Option<SequencedCommit> {
        let Request { set, effects, .. } = self.request.as_ref()?;
        Some(SequencedCommit {
            id: self.id.clone(),
            attempt: self.attempt,
            writes: set.clone(),
            effects: *effects,
        })
    }

    /// Its approximate length in a slot, in bytes.
    pub(crate) fn bytes_len(&self) -> usize {
        let writes = self
            .request
            .as_ref()
            .map_or(0, |request| request.set.bytes_len());
        64 + self.id.as_bytes().len() + writes
    }

    /// The record that its row will hold if it has committed as `version`.
    pub(crate) fn stored(&self, version: Version) -> Option<StoredRecord> {
        let (slot, place) = (version.slot()?, version.node.0);
        self.commit().map(|commit| commit.record(slot, place))
    }
}
