//! What is asked of the sequencer: that an attempt commits, or that it never does.

use serde::{Deserialize, Serialize};

use crate::{
    model::{Attempt, TransactionId, Version},
    sequencer::{Observed, WriteSet},
    storage::records::{SequencedCommit, StoredRecord},
};

/// Who wants to commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// What it read; none: it does not ask whether that was written since.
    pub(crate) observed: Option<Observed>,
    pub(crate) set: WriteSet,
    pub(crate) effects: u32,
}

/// What is asked of the sequencer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wish {
    pub(crate) id: TransactionId,
    pub(crate) attempt: Attempt,
    /// None: to say that it never commits, unless it has.
    pub(crate) request: Option<Request>,
}

impl Wish {
    /// To commit.
    pub(crate) fn to_commit(id: &TransactionId, attempt: Attempt, request: Request) -> Self {
        Self {
            id: id.clone(),
            attempt,
            request: Some(request),
        }
    }

    /// To know what became of an attempt, for good.
    pub(crate) fn to_close(id: &TransactionId, attempt: Attempt) -> Self {
        Self {
            id: id.clone(),
            attempt,
            request: None,
        }
    }

    /// The same attempt, which is not to commit any more.
    pub(crate) fn closing(&self) -> Self {
        Self::to_close(&self.id, self.attempt)
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.attempt
    }

    pub(crate) fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    pub(crate) fn name(&self) -> (TransactionId, Attempt) {
        (self.id.clone(), self.attempt)
    }

    pub(crate) fn commit(&self) -> Option<SequencedCommit> {
        let Request { set, effects, .. } = self.request.as_ref()?;
        let (id, attempt) = self.name();
        Some(SequencedCommit {
            id,
            attempt,
            writes: set.clone(),
            effects: *effects,
        })
    }

    /// About how long it is in a slot.
    pub(crate) fn bytes_len(&self) -> usize {
        let writes = self
            .request
            .as_ref()
            .map_or(0, |request| request.set.bytes_len());
        64 + self.id.as_bytes().len() + writes
    }

    /// What its row will say if it has committed as `version`.
    pub(crate) fn stored(&self, version: Version) -> Option<StoredRecord> {
        let (slot, place) = (version.slot()?, version.node.0);
        self.commit().map(|commit| commit.record(slot, place))
    }
}
