//! Resolves the log of a dead node: seals it, and decides each of its entries.
//!
//! Every step can be repeated, and two resolvers at once do no harm, because a row is decided once.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use primitives::{FencedLog, Slot};

use crate::{
    Error, Result,
    broken::Broken,
    collection::uncommitted::{all_of, delete_uncommitted, tidy_spilled},
    model::{Attempt, TransactionId},
    node::Node,
    recovery::Recovery,
    storage::{
        layout,
        node_registry::{self, NodeRow},
        records::{Entry, StoredSlot, decode},
        store::{Decided, Decision, State, Store},
    },
};

/// How to close an attempt whose row was handed over to the sequencer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Closing<'a> {
    /// There is no sequencer, so there is no such row.
    Never,
    /// The log's decisions are settled already, and no other node writes to it.
    ByRow,
    /// The sequencer's log decides.
    ByLog(&'a Arc<Node>),
}

/// Entries resolved at a time.
const ENTRIES_AT_ONCE: usize = 16;

impl Recovery {
    /// Resolves one log. Returns its row after that.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        store: &Store,
        row: NodeRow,
        closing: Closing<'_>,
    ) -> Result<NodeRow> {
        let log = FencedLog::new(
            Arc::clone(&self.calls.context.key_value),
            layout::log(row.node),
        );
        let slots = if self.calls.context.breaks(Broken::ResolvesWithoutSeal) {
            store
                .again(|| log.take_over_without_seal(row.done))
                .await?
                .1
        } else {
            let (writer, slots) = store.again(|| log.take_over(row.done)).await?;
            store.seen(writer.point())?;
            slots
        };
        let (mut done, mut timestamp) = (row.done, row.timestamp);
        let (mut commits, mut others) = (Vec::new(), Vec::new());
        for slot in slots {
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            timestamp = timestamp.max(stored.timestamp);
            done = Slot::cursor(&slot);
            let (committing, other): (Vec<_>, Vec<_>) = stored
                .entries
                .into_iter()
                .partition(|entry| matches!(entry, Entry::Committing { .. }));
            others.extend(other);
            commits.extend(committing);
        }
        let count = commits.len() + others.len();
        // The row of a client id whose commit hangs is closed, and stays so for later queries; a
        // row that was only begun is deleted. Spilled data are deleted unless the attempt's commit
        // names them.
        for entries in [commits, others] {
            let resolving =
                stream::iter(entries).map(|entry| self.resolve_entry(store, entry, closing));
            all_of(resolving.buffered(ENTRIES_AT_ONCE)).await?;
        }
        tracing::info!(
            node = row.node.0,
            slot = done.next.0 - 1,
            count,
            "the log of an earlier start is resolved"
        );
        let row = NodeRow {
            done,
            timestamp,
            is_resolved: true,
            ..row
        };
        node_registry::mark_resolved(store, row).await?;
        Ok(row)
    }

    /// Decides an entry whose owner is gone, and deletes uncommitted data.
    async fn resolve_entry(
        self: &Arc<Self>,
        store: &Store,
        entry: Entry,
        closing: Closing<'_>,
    ) -> Result<()> {
        match entry {
            // The row may be taken over by a later begin, committed, or absent: all the same to
            // this attempt.
            Entry::Began { id, attempt } => store.forget(&id, attempt).await.map(drop),
            Entry::Committing {
                id,
                attempt,
                named,
                writes,
                ..
            } => {
                if !self
                    .is_committed(store, &id, attempt, named, closing)
                    .await?
                {
                    delete_uncommitted(store, attempt, &writes).await?;
                }
                Ok(())
            }
            Entry::Spilled {
                id,
                attempt,
                writes,
            } => {
                tidy_spilled(
                    store,
                    &id,
                    attempt,
                    &writes,
                    self.calls.context.config.mutant,
                )
                .await
            }
        }
    }

    /// Whether an attempt has committed. If not, it is closed, and never will.
    async fn is_committed(
        self: &Arc<Self>,
        store: &Store,
        id: &TransactionId,
        attempt: Attempt,
        named: bool,
        closing: Closing<'_>,
    ) -> Result<bool> {
        let (mut decision, _) = store.decision(id).await?;
        let prepared = decision
            .as_ref()
            .filter(|decision| decision.state == State::Prepared);
        if let Some(prepared) = prepared.map(|decision| decision.attempt) {
            decision = match closing {
                Closing::Never => {
                    return Err(Error::unavailable(
                        "an earlier start has just marked a keyspace",
                    ));
                }
                Closing::ByRow => {
                    store.settle_aborted(id, attempt).await?;
                    store.decision(id).await?.0
                }
                Closing::ByLog(node) if prepared == attempt => {
                    self.calls
                        .sequencing
                        .close_prepared(node, id, attempt)
                        .await?
                        .0
                }
                // A later attempt of the client id has the row.
                Closing::ByLog(_) => return Ok(false),
            };
        }
        let is_undecided = decision
            .as_ref()
            .is_none_or(|decision| decision.state == State::Undecided);
        let decision = if is_undecided {
            match store.close(id, attempt, named).await? {
                Decided::Done(_) => return Ok(false),
                Decided::Refused(decision, _) => decision,
            }
        } else {
            decision
        };
        let is_this = |decision: &Decision| {
            decision.attempt == attempt && matches!(decision.state, State::Committed(_))
        };
        Ok(decision.as_ref().is_some_and(is_this))
    }
}
