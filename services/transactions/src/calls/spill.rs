//! Spills values before their commit: large ones at once, others when too much is buffered.
//!
//! A spill is announced in the node's log first, and the entry is confirmed before the first byte
//! of data is written. Data that a crash leaves therefore have a stored owner. Chunks follow, then
//! version items. None of it takes effect before the decision row. The commit writes the values
//! that were not spilled, and the row.
//!
//! Each spill holds a permit among the attempt's *flights*. The commit, and the clean-up after an
//! ended attempt, wait until all flights are over, and then know everything that was ever written.
//!
//! Invariants
//! - A value that cannot be spilled ends its attempt: its key's item may hold it under a higher
//!   write number than any that the commit would write.
//! - The entries of an attempt are settled once nothing is left that its record does not name.
//!   Chunks that a later write replaced are deleted too.
//!
//! From AFT, section 3.3, which spills saturated buffers. The paper leaves open which component
//! deletes the spilled data of an abandoned transaction.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use tokio::sync::OwnedRwLockReadGuard;

use crate::{
    Error, Result,
    attempts::{
        spills::Spills,
        transaction::{Phase, State, Transaction, refusal},
        write_buffer::Which,
    },
    broken::Broken,
    calls::Calls,
    model::Outcome,
    packs::OnTheirWay,
    storage::records::{CommitRecord, Entry, Write, WriteSet},
};

/// The most values spilled at a time.
const WRITES_AT_ONCE: usize = 16;

/// Values on their way to the store.
#[derive(Debug)]
pub(crate) struct Leaving {
    writes: Vec<(Write, Bytes)>,
    /// The bytes of memory that they use until they are stored.
    bytes: usize,
    _flight: OwnedRwLockReadGuard<()>,
}

impl Calls {
    /// Takes values of `transaction` that must be spilled, given its `state`: large ones, or all if
    /// too many are buffered.
    pub(crate) fn leaving(&self, transaction: &Transaction, state: &mut State) -> Option<Leaving> {
        let is_full = state.buffer.unwritten_bytes() > self.context.config.attempt_buffer_bytes_max;
        let which = if is_full { Which::All } else { Which::Large };
        leave_now(transaction, state, which)
    }

    /// Spills these values, even if the caller is dropped meanwhile. Errors: the attempt is over.
    pub(crate) async fn spill(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        leaving: Leaving,
    ) -> Result<()> {
        let at_work = match transaction.node.at_work() {
            Ok(at_work) => at_work,
            // They were never written, and no commit may take them for written.
            Err(error) => {
                self.context.counters.unbuffer(leaving.bytes);
                return self.fail_spill(transaction, error);
            }
        };
        let (calls, transaction) = (Arc::clone(self), Arc::clone(transaction));
        self.context
            .spawn_and_wait(async move {
                let _at_work = at_work;
                let written = calls.write_ahead(&transaction, &leaving).await;
                calls.context.counters.unbuffer(leaving.bytes);
                match written {
                    Ok(()) => note_stored(&transaction, &leaving),
                    Err(error) => calls.fail_spill(&transaction, error),
                }
            })
            .await
    }

    /// Spills the values of the attempt with the most unwritten bytes. Returns false if no attempt
    /// has any.
    pub(crate) async fn spill_largest(self: &Arc<Self>) -> bool {
        let all = self.attempts.lock().all();
        let waits = |transaction: &&Arc<Transaction>| {
            let state = transaction.state();
            (state.phase == Phase::Open).then(|| state.buffer.unwritten_bytes())
        };
        let Some(largest) = all.iter().max_by_key(waits) else {
            return false;
        };
        let leaving = {
            let mut state = largest.state();
            if state.phase != Phase::Open {
                return false;
            }
            leave_now(largest, &mut state, Which::All)
        };
        match leaving {
            // If that fails, the attempt itself reports it.
            Some(leaving) => self.spill(largest, leaving).await.is_ok(),
            None => false,
        }
    }

    async fn write_ahead(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        leaving: &Leaving,
    ) -> Result<()> {
        let Transaction {
            id, attempt, node, ..
        } = &**transaction;
        let writes: Vec<Write> = leaving
            .writes
            .iter()
            .map(|(write, _)| write.clone())
            .collect();
        if !self.context.breaks(Broken::SpillsUnlogged) {
            for part in WriteSet::parts_of(&writes, self.context.config.write_set_inline_bytes_max)
            {
                let entry = Entry::Spilled {
                    id: id.clone(),
                    attempt: *attempt,
                    writes: part,
                };
                let placed = node.log.append(entry.into()).await?;
                transaction.state().spills.slots.push(placed.slot);
            }
        }
        if self.context.breaks(Broken::RecordBeforeChunks) {
            let (calls, transaction) = (Arc::clone(self), Arc::clone(transaction));
            let writes = leaving.writes.clone();
            self.context
                .spawn(async move { drop(write_values(&calls, &transaction, &writes).await) });
            return Ok(());
        }
        write_values(self, transaction, &leaving.writes).await?;
        self.context.counters.lock().spilled_bytes += leaving.bytes as u64;
        Ok(())
    }

    fn fail_spill(self: &Arc<Self>, transaction: &Arc<Transaction>, error: Error) -> Result<()> {
        let mut state = transaction.state();
        match &state.phase {
            Phase::Ended(answer) => Err(refusal(answer)),
            Phase::Committing => {
                state.spills.failed = Some(error.clone());
                Err(error)
            }
            Phase::Open => {
                tracing::debug!(%error, attempt = %transaction.attempt, "values could not be spilled");
                self.end(
                    transaction,
                    &mut state,
                    &Err(Error::TransactionFinished(Outcome::Aborted)),
                );
                drop(state);
                self.forget_begin(transaction);
                Err(error)
            }
        }
    }

    /// Deletes the spilled data of an attempt that ended without a commit.
    pub(crate) fn leave_no_spills(&self, transaction: &Arc<Transaction>) {
        let ended = Arc::clone(transaction);
        self.clean_up_spills(transaction, async move {
            let spills = ended.all_spills().await;
            delete_spilled(&ended, &spills).await
        });
    }

    /// Deletes data that later writes of a commit replaced.
    pub(crate) fn leave_no_replaced(
        &self,
        transaction: &Arc<Transaction>,
        spills: Spills,
        record: &CommitRecord,
    ) {
        let replaced = spills.replaced(record);
        if replaced.is_empty() || self.context.breaks(Broken::KeepsReplacedChunks) {
            return settle(transaction, &spills);
        }
        let committed = Arc::clone(transaction);
        self.clean_up_spills(transaction, async move {
            let Transaction { attempt, node, .. } = &*committed;
            for (write, chunks) in replaced {
                node.store.delete_chunks(*attempt, write, chunks).await?;
            }
            settle(&committed, &spills);
            Ok(())
        });
    }

    fn clean_up_spills(
        &self,
        transaction: &Transaction,
        deletion: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        transaction.node.spawn(&self.context, async move {
            if let Err(error) = deletion.await {
                tracing::debug!(%error, "spilled data are left to the log's resolver");
            }
        });
    }
}

impl Transaction {
    /// Everything that was spilled, once no spill is in flight.
    pub(crate) async fn all_spills(&self) -> Spills {
        let _all = self.flights.write().await;
        std::mem::take(&mut self.state().spills)
    }
}

fn leave_now(transaction: &Transaction, state: &mut State, which: Which) -> Option<Leaving> {
    let writes = state.buffer.leave(which);
    if writes.is_empty() {
        return None;
    }
    state.spills.note(&writes);
    let flight = Arc::clone(&transaction.flights).try_read_owned();
    let flight = flight.expect("a waiter for the flights of an attempt has ended it first");
    let bytes = writes.iter().map(|(_, value)| value.len()).sum();
    Some(Leaving {
        writes,
        bytes,
        _flight: flight,
    })
}

fn note_stored(transaction: &Transaction, leaving: &Leaving) -> Result<()> {
    let mut state = transaction.state();
    for (write, _) in &leaving.writes {
        state.buffer.stored(write);
    }
    match &state.phase {
        Phase::Open | Phase::Committing => Ok(()),
        Phase::Ended(answer) => Err(refusal(answer)),
    }
}

async fn write_values(
    calls: &Arc<Calls>,
    transaction: &Transaction,
    writes: &[(Write, Bytes)],
) -> Result<()> {
    let packing = calls.packing.pack_writes(
        transaction,
        writes.iter().map(|(write, value)| (write, Some(value))),
    );
    let (put, written) = futures_util::join!(
        packing.are_put(),
        put_versions(transaction, writes, &packing)
    );
    put.and(written)
}

async fn put_versions(
    transaction: &Transaction,
    writes: &[(Write, Bytes)],
    packing: &OnTheirWay,
) -> Result<()> {
    let Transaction {
        id, attempt, node, ..
    } = transaction;
    let all = stream::iter(writes.iter().map(Ok));
    all.try_for_each_concurrent(WRITES_AT_ONCE, |(write, value)| async move {
        // No transaction needs the remaining values.
        if let Phase::Ended(answer) = &transaction.state().phase {
            return Err(refusal(answer));
        }
        node.store.put_chunks(*attempt, write, value).await?;
        node.store
            .put_version(
                id,
                *attempt,
                write,
                Some(value.clone()),
                packing.located(write),
            )
            .await
    })
    .await
}

/// Deletes the spilled data of an attempt that does not commit, then settles its entries.
pub(crate) async fn delete_spilled(transaction: &Transaction, spills: &Spills) -> Result<()> {
    let Transaction { attempt, node, .. } = transaction;
    for (write, chunks) in &spills.chunked {
        node.store.delete_chunks(*attempt, *write, *chunks).await?;
    }
    for key in &spills.keys {
        node.store.delete_version(key, *attempt).await?;
    }
    let places = transaction.state().packed.take_places();
    for (pack, bytes) in places {
        node.store.free(pack, bytes);
    }
    settle(transaction, spills);
    Ok(())
}

fn settle(transaction: &Transaction, spills: &Spills) {
    for slot in &spills.slots {
        transaction.node.settled(*slot);
    }
}
