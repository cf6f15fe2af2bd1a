//! The sequencer of this node orders commits: it validates waiting proposals in turn and writes them
//! as one slot.
//!
//! The module joins the pure decisions of the [`sequencer`](crate::sequencer) with the index and
//! the callers that wait. The log's lock is held while a slot is validated and written. Wishes that
//! arrive meanwhile share the next slot.

use std::{collections::BTreeSet, sync::Arc};

use primitives::{Cursor, SlotIndex};
use tokio::sync::oneshot;

use crate::{
    Error, Result,
    broken::Broken,
    model::{NodeId, Outcome},
    node::Node,
    sequencer::{
        Ordering, Proposal, Sequenced, Sequencer, Waiting, records,
        validation::{LastWriters, Trace},
    },
    sequencing::Sequencing,
    storage::{
        node_registry,
        records::{SequencedSlot, Write, encode},
        store::Store,
    },
};

impl Sequencing {
    /// Becomes the sequencer of a single node, on the store as it is. Errors: `Unavailable`, also
    /// if there is a later start. A later start writes its row before it seals the log, and then
    /// closes by their rows the attempts that others handed over.
    pub(crate) async fn take_over_sequencer(
        &self,
        store: &Arc<Store>,
        own: NodeId,
    ) -> Result<Sequencer> {
        let sequencer = Sequencer::take_over(&self.context, store, true).await?;
        let is_last = node_registry::list_from(store, NodeId(own.0 + 1))
            .await?
            .is_empty();
        if !is_last && !self.context.breaks(Broken::OrdersBehindSuccessor) {
            store.fence();
            store.check_fence()?;
        }
        Ok(sequencer)
    }

    /// Has this node's sequencer decide. `None`: the caller must read the row again.
    pub(crate) async fn order(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        proposal: Proposal,
        writes: Vec<Write>,
        seen: u64,
    ) -> Sequenced {
        let (told, mut decided) = oneshot::channel();
        sequencer.waiting.lock().push_back(Waiting {
            proposal,
            writes,
            seen,
            told,
        });
        loop {
            let mut ordering = sequencer.ordering.lock().await;
            // The task that ordered before may have ordered this proposal as well.
            match decided.try_recv() {
                Ok(decided) => return decided,
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Some(Err(Error::unavailable("the sequencer is gone")));
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.order_waiting(node, sequencer, &mut ordering).await;
                }
            }
        }
    }

    /// Decides the waiting proposals, up to the bound of a slot, and answers their callers.
    async fn order_waiting(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        ordering: &mut Ordering,
    ) {
        let validated = validate(sequencer, &ordering.last_writers);
        let (commits, closed) = (validated.commits, validated.closed);
        if commits.is_empty() && closed.is_empty() {
            self.refuse(validated.conflicting, true);
            return;
        }
        let slot = SequencedSlot {
            written_ms: sequencer.context.clock.now().0,
            by: node.id,
            settled: sequencer.state().settled.through(),
            commits: commits
                .iter()
                .filter_map(|waiting| waiting.proposal.commit())
                .collect(),
            closed: closed
                .iter()
                .map(|Waiting { proposal, .. }| (proposal.id.clone(), proposal.attempt))
                .collect(),
        };
        let writing = sequencer.store.writing();
        let appended = sequencer
            .store
            .append_resting(&mut ordering.writer, encode(&slot))
            .await;
        writing.has_ended();
        let records = appended.map(|(index, point)| {
            ordering.last_writers.note(index, validated.written);
            let writes = commits.iter().map(|waiting| waiting.writes.clone());
            let records = records(index, &slot, writes, point);
            sequencer.note(index, &slot, &records);
            let cursor = Cursor {
                next: SlotIndex(index + 1),
                epoch: sequencer.epoch,
            };
            self.apply_slot(node, cursor, &slot, &records);
            records
        });
        self.refuse(validated.conflicting, records.is_ok());
        for (place, waiting) in commits.into_iter().enumerate() {
            let answer = records
                .as_ref()
                .map(|records| Arc::clone(&records[place]))
                .map_err(Clone::clone);
            let _ = waiting.told.send(Some(answer));
        }
        for waiting in closed {
            let is_closed = Error::TransactionFinished(Outcome::Aborted);
            let _ = waiting.told.send(Some(Err(records
                .as_ref()
                .err()
                .cloned()
                .unwrap_or(is_closed))));
        }
    }

    /// Answers the proposals that conflict with the writes of the batch. If the slot was not written,
    /// the next batch validates them again.
    fn refuse(&self, conflicting: Vec<Waiting>, is_written: bool) {
        let is_final = is_written || self.context.breaks(Broken::RefusesBeforeSlot);
        for waiting in conflicting {
            if is_final {
                self.context.counters.lock().conflicts += 1;
            }
            let _ = waiting.told.send(is_final.then_some(Err(Error::Conflict)));
        }
    }
}

/// The proposals of the next slot, in order, and those that conflict with it.
struct Validated {
    commits: Vec<Waiting>,
    closed: Vec<Waiting>,
    conflicting: Vec<Waiting>,
    /// The keys that the slot writes.
    written: BTreeSet<Trace>,
}

/// Validates the waiting proposals, and answers those that need no slot.
fn validate(sequencer: &Sequencer, last_writers: &LastWriters) -> Validated {
    let (mut batch, mut ordered) = (last_writers.batch(), BTreeSet::new());
    let (mut commits, mut closed, mut conflicting) = (Vec::new(), Vec::new(), Vec::new());
    for waiting in sequencer.next_batch() {
        match sequencer.judge(&waiting, &batch, &ordered) {
            None => {}
            Some(Some(Err(Error::Conflict))) => {
                conflicting.push(waiting);
                continue;
            }
            Some(answer) => {
                // Sending fails only if the caller is gone.
                let _ = waiting.told.send(answer);
                continue;
            }
        }
        ordered.insert(waiting.proposal.attempt);
        batch.admit(waiting.writes.iter().map(|write| Trace::of(&write.key)));
        if waiting.proposal.request.is_some() {
            commits.push(waiting);
        } else {
            closed.push(waiting);
        }
    }
    Validated {
        commits,
        closed,
        conflicting,
        written: batch.into_written(),
    }
}
