//! The group commit: entry, data and row in one step of the store.
//!
//! ```text
//!  1  one transaction of the store: the slot, and data and row of each commit whose entry is in it
//!  2  install, wait until that is durable, and with it all before it; answer
//! ```
//!
//! It needs a store that changes items of several partitions atomically. It costs one wait instead
//! of two dependent ones, and one command for all concurrent commits. The row still decides, by the
//! same condition, and it cannot exist without its entry and its data. A crash leaves nothing, or
//! all.
//!
//! If the group was refused, or its outcome is unknown, each commit proceeds step by step. First
//! the slot is filled for certain, with the same entries. After that no part of the group can still
//! arrive, because the group puts the slot only if it is absent. Each commit then learns from its
//! row, permanently, whether it has committed.
//!
//! Commits with effects, with spilled or packed values, with many or large writes, and commits of
//! sequenced keyspaces go step by step.

use bytes::Bytes;

use super::Commit;
use crate::{
    Error, Result,
    attempts::transaction::CommitAnswer,
    broken::Broken,
    storage::{
        node_log::{Data, Placed},
        records::{Place, WriteSet},
        store::Decided,
    },
};

impl Commit<'_> {
    /// The data written before its row, if it may be part of the slot's group.
    pub(super) fn data_of_group(&self) -> Option<Data> {
        let (id, attempt, node) = self.names();
        let needs_steps = [
            Broken::RecordBeforeData,
            Broken::VisibleBeforeRecord,
            Broken::CommitsAnyAttempt,
        ]
        .into_iter()
        .any(|rule| self.calls.context.breaks(rule));
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
        let bytes = self.buffer.bytes() + self.result.as_ref().map_or(0, Bytes::len);
        let putting =
            |(write, value): (_, Option<_>)| node.store.putting(id, attempt, write, value, None);
        let values = self
            .unwritten()
            .map(|(write, buffered)| (write, buffered.value().cloned()));
        let data = Data {
            updates: values.map(putting).collect(),
            result: self.result.clone(),
            bytes,
        };
        node.log.takes(&data).then_some(data)
    }

    /// Commits with the group of the slot that holds its entry.
    pub(super) async fn run_in_group(mut self, data: Data) -> CommitAnswer {
        let placed = match self
            .transaction
            .node
            .log
            .append(self.draft().with(data))
            .await
        {
            Ok(placed) => placed,
            // The entry may be in the log, together with the data and the row.
            Err(Error::OutcomeUnknown) => return Err(Error::OutcomeUnknown),
            Err(error) => return self.give_up(None, error),
        };
        let decided = match placed.committed {
            Some(point) => Ok(Decided::Done(point)),
            None => self.decide_alone(placed).await,
        };
        self.end(placed, decided).await
    }

    /// Decides after a group that may be incomplete; its slot is written.
    async fn decide_alone(&self, placed: Placed) -> Result<Decided> {
        let (id, attempt, node) = self.names();
        if let Decided::Done(point) = node.store.is_committed(id, attempt).await? {
            return Ok(Decided::Done(point));
        }
        self.write_data().await?;
        self.decide(placed).await
    }
}
