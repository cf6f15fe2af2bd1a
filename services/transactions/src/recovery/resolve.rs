//! Resolves the log of a node that is gone: it is sealed, and each of its entries is decided.

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

/// How an attempt is closed whose row was handed over to the sequencer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Closing<'a> {
    /// There is no sequencer, so there is no such row.
    Never,
    /// What the log had decided is settled already, and nobody else writes it.
    ByRow,
    /// The sequencer's log says it.
    ByLog(&'a Arc<Node>),
}

/// Entries resolved at a time.
const ENTRIES_AT_ONCE: usize = 16;

impl Recovery {
    /// Resolves one log. Returns the row as it is then.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        store: &Store,
        row: NodeRow,
        closing: Closing<'_>,
    ) -> Result<NodeRow> {
        let log = FencedLog::new(Arc::clone(&self.context.key_value), layout::log(row.node));
        let slots = if self.context.config.is_broken(Broken::ResolvesWithoutSeal) {
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
        // A name whose commit hangs is closed, and stays so for who asks; one that was only begun is forgotten. What was
        // written ahead goes by what its commit came to, if there was one.
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
}

impl Recovery {
    /// Decides an entry whose owner is gone, and deletes what does not count.
    async fn resolve_entry(
        self: &Arc<Self>,
        store: &Store,
        entry: Entry,
        closing: Closing<'_>,
    ) -> Result<()> {
        match entry {
            // Taken over by a later begin, committed, or nothing: all the same to this one.
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
            } => tidy_spilled(store, &id, attempt, &writes, self.context.config.broken).await,
        }
    }

    /// Whether an attempt has committed; from now on it has not, if it had not.
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
                    self.serializable.close_prepared(node, id, attempt).await?.0
                }
                // A later attempt of the name has the row.
                Closing::ByLog(_) => return Ok(false),
            };
        }
        let is_undecided = decision
            .as_ref()
            .is_none_or(|decision| decision.state == State::Undecided);
        let decision = if is_undecided {
            let closed = if named {
                store.close_named(id, attempt).await?
            } else {
                store.close_generated(id, attempt).await?
            };
            match closed {
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
