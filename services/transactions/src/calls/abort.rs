//! How attempts end without a commit: abort, time-out, and the clean-up after them.
//!
//! Invariants
//! - An attempt ends in memory first, so nothing more is written for it. Then its row is closed, if
//!   it has one, then its data is deleted.
//! - A log entry is settled only once nothing is left of it. After a crash between two of these
//!   steps, the resolver of the log therefore finds the remainder.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Result,
    attempts::{
        open_attempts::AttemptState,
        transaction::{CommitAnswer, Phase, State, Transaction, outcome},
    },
    calls::Calls,
    effects::{Effect, outbox},
    model::{Call, Outcome},
    storage::records::{Write, WriteSet},
};

/// The shortest wait between two searches for attempts that timed out.
const TIMER_GRAIN: Duration = Duration::from_millis(100);

impl Calls {
    pub(crate) async fn abort(self: &Arc<Self>, call: &Call) -> Result<()> {
        let found = self.find(call);
        let answer = match found {
            AttemptState::Active(transaction) => self.abort_here(&transaction).await,
            AttemptState::Ended(answer) => answer,
            AttemptState::BegunAnew => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            AttemptState::Unknown => Box::pin(self.answer_of(call)).await,
        };
        match answer {
            Ok(_) => Err(Error::TransactionFinished(Outcome::Committed)),
            Err(
                Error::TransactionFinished(Outcome::Aborted | Outcome::Expired)
                | Error::Conflict
                | Error::SnapshotTooOld,
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn abort_here(self: &Arc<Self>, transaction: &Arc<Transaction>) -> CommitAnswer {
        {
            let mut state = transaction.state();
            if state.phase == Phase::Open {
                let answer = Err(Error::TransactionFinished(Outcome::Aborted));
                self.end(transaction, &mut state, &answer);
                drop(state);
                self.forget_begin(transaction);
                return answer;
            }
        }
        self.wait_for_end(transaction).await
    }

    /// Ends an attempt with `answer`.
    pub(crate) fn end(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        state: &mut State,
        answer: &CommitAnswer,
    ) {
        self.context.counters.ended(outcome(answer));
        self.context
            .counters
            .unbuffer(transaction.end(state, answer));
        self.attempts.lock().end(
            transaction,
            answer,
            self.context.clock.monotonic(),
            &self.context.config,
        );
        transaction.node.work.notify_one();
        if !state.spills.is_empty() {
            self.leave_no_spills(transaction);
        }
    }

    /// Deletes the row that a begin with a client id took, if the attempt left nothing else.
    pub(crate) fn forget_begin(self: &Arc<Self>, transaction: &Arc<Transaction>) {
        let Some(slot) = transaction.began else {
            return;
        };
        let (transaction, node) = (Arc::clone(transaction), Arc::clone(&transaction.node));
        Arc::clone(&node).spawn(&self.context, async move {
            // Skipped if the node cannot go on: then its log is resolved, which deletes the row
            // too.
            if node
                .store
                .forget(&transaction.id, transaction.attempt)
                .await
                .is_ok()
            {
                node.settled(slot);
            }
        });
    }

    /// Closes the row of an attempt that announced `writes`, then deletes its data.
    pub(crate) async fn clean_up(
        &self,
        transaction: &Transaction,
        slot: Option<u64>,
        writes: &[Write],
        set: &WriteSet,
        effects: &[Effect],
    ) -> Result<()> {
        let Transaction {
            id, attempt, node, ..
        } = transaction;
        let is_sequenced = self.sequencing.keyspaces.lock().are_any_sequenced();
        if is_sequenced {
            // The row may be handed over, and the attempt is not in the sequencer's log and never
            // will be.
            node.store.settle_aborted(id, *attempt).await?;
        }
        if transaction.is_named() || slot.is_some() {
            node.store
                .close(id, *attempt, transaction.is_named())
                .await?;
        } else if is_sequenced {
            // No entry announced this generated id, so nothing else would ever delete its row.
            node.store.drop_aborted(id, *attempt).await?;
        }
        if let Some(slot) = slot {
            self.apply_own(node, slot);
        }
        for write in writes {
            node.store.delete_version(&write.key, *attempt).await?;
        }
        node.store.delete_write_set(*attempt, set).await?;
        if !effects.is_empty() {
            let parts = outbox::parts(effects, self.context.config.effects_inline_bytes_max);
            node.store.delete_effects(*attempt, parts).await?;
        }
        transaction.settle(slot);
        Ok(())
    }

    /// Starts the one timer of a node, which runs while attempts are open.
    pub(crate) fn arm_timer(self: &Arc<Self>) {
        if std::mem::replace(&mut self.attempts.lock().is_timer_armed, true) {
            return;
        }
        let calls = Arc::clone(self);
        self.context.spawn(async move {
            while let Some(wait) = calls.expire_overdue() {
                calls.context.clock.sleep(wait.max(TIMER_GRAIN)).await;
            }
        });
    }

    /// Ends attempts that timed out. Returns the time until the next may time out, or `None` if
    /// none is open.
    fn expire_overdue(self: &Arc<Self>) -> Option<Duration> {
        let now = self.context.clock.monotonic();
        let mut next = None;
        let all = self.attempts.lock().all();
        for transaction in all {
            let mut state = transaction.state();
            let deadline = transaction.deadline(&state, &self.context.config);
            if deadline > now || state.phase != Phase::Open {
                let wait = deadline.since(now);
                next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
                continue;
            }
            self.end(
                &transaction,
                &mut state,
                &Err(Error::TransactionFinished(Outcome::Expired)),
            );
            drop(state);
            self.forget_begin(&transaction);
        }
        let mut attempts = self.attempts.lock();
        // An attempt may have begun since the list was made.
        if next.is_none() && attempts.len() == 0 {
            attempts.is_timer_armed = false;
            return None;
        }
        Some(next.unwrap_or_default())
    }
}
