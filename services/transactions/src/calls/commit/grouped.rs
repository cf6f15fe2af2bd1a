//! The commit in a group: entry, data and row in one step of the store.
//!
//! ```text
//!  1  one transaction of the store: the slot, and data and row of each commit whose entry is in it
//!  2  install, wait until that is durable, and with it all before it; answer
//! ```
//!
//! Where the store changes items of several partitions together, that is one wait instead of two that depend on each other,
//! and one command for all who commit at a time. The row is still what decides, by the same condition; it cannot be there without
//! its entry and its data. Nothing is left by a death, or all.
//!
//! What was refused, or is not known to have happened, is done step by step: the slot is filled for certain, with the same
//! entries, and then nothing of the group comes any more that is not there, since the group puts the slot if absent. So a look at its row
//! tells each commit for good whether it has committed.
//!
//! Commits with effects, spilled or packed values, many or large ones, and those of sequenced keyspaces go the long way.

use super::Commit;
use crate::{
    Error, Result,
    attempts::transaction::{Answer, Transaction},
    broken::Broken,
    storage::{
        node_log::{Data, Placed},
        records::{Place, WriteSet},
        store::Decided,
    },
};

impl Commit<'_> {
    /// What it writes before its row, if that may go with its slot.
    pub(super) fn data_of_group(&self) -> Option<Data> {
        let Transaction {
            id, attempt, node, ..
        } = &**self.transaction;
        let needs_steps = matches!(
            self.calls.context.config.broken,
            Some(
                Broken::RecordBeforeData | Broken::VisibleBeforeRecord | Broken::CommitsAnyAttempt
            )
        );
        let has_apart = needs_steps
            || !self.effects.is_empty()
            || !self.spills.is_empty()
            || self.calls.packing.objects.is_some()
            || matches!(self.set, WriteSet::Parts(_))
            || !self
                .writes
                .iter()
                .all(|write| matches!(write.place, Place::Inline { .. } | Place::Gone));
        if has_apart {
            return None;
        }
        let bytes = self.buffer.bytes();
        let putting =
            |(write, value): (_, Option<_>)| node.store.putting(id, *attempt, write, value, None);
        let values = self
            .unwritten()
            .map(|(write, buffered)| (write, buffered.value().cloned()));
        let data = Data {
            updates: values.map(putting).collect(),
            bytes,
        };
        node.log.takes(&data).then_some(data)
    }

    /// Commits with the group that its entry gets into.
    pub(super) async fn run_in_group(mut self, data: Data) -> Answer {
        let placed = match self
            .transaction
            .node
            .log
            .append(self.draft().with(data))
            .await
        {
            Ok(placed) => placed,
            // It may be in the log, and all the rest with it.
            Err(Error::OutcomeUnknown) => return Err(Error::OutcomeUnknown),
            Err(error) => return self.give_up(None, error),
        };
        let decided = match placed.committed {
            Some(point) => Ok(Decided::Done(point)),
            None => self.decide_alone(placed).await,
        };
        self.end(placed, decided).await
    }

    /// After a group of which not everything may be there; its slot is.
    async fn decide_alone(&self, placed: Placed) -> Result<Decided> {
        let Transaction {
            id, attempt, node, ..
        } = &**self.transaction;
        if let Decided::Done(point) = node.store.is_committed(id, *attempt).await? {
            return Ok(Decided::Done(point));
        }
        self.write_data().await?;
        self.decide(placed).await
    }
}
