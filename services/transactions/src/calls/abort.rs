//! How attempts end that do not commit: abort, time-outs, and cleaning up behind them.
//!
//! Invariants
//! - An attempt ends in memory first, so nothing more is written for it; then its row, if it has one, then its data.
//! - An entry of the log is settled only once nothing is left of it, so that whoever comes after a death between two
//!   of these steps finds the rest.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Result,
    attempts::{
        open_attempts::Found,
        transaction::{Answer, Phase, State, Transaction, outcome},
    },
    calls::Calls,
    effects::{Effect, outbox},
    model::{Call, Outcome},
    storage::records::{Write, WriteSet},
};

/// The shortest wait between two looks for attempts that ran out of time.
const TIMER_GRAIN: Duration = Duration::from_millis(100);

impl Calls {
    pub(crate) async fn abort(self: &Arc<Self>, call: &Call) -> Result<()> {
        let found = self.find(call);
        let answer = match found {
            Found::Here(transaction) => self.abort_here(&transaction).await,
            Found::Ended(answer) => answer,
            Found::BegunAnew => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            Found::Nothing => self.answer_of(call).await,
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

    async fn abort_here(self: &Arc<Self>, transaction: &Arc<Transaction>) -> Answer {
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

    /// Ends an attempt as `answer` says.
    pub(crate) fn end(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        state: &mut State,
        answer: &Answer,
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

    /// Gives back the row that a named begin took, if it left nothing else.
    pub(crate) fn forget_begin(self: &Arc<Self>, transaction: &Arc<Transaction>) {
        let Some(slot) = transaction.began else {
            return;
        };
        let transaction = Arc::clone(transaction);
        let Ok(at_work) = transaction.node.at_work() else {
            return;
        };
        self.context.spawn(async move {
            let _at_work = at_work;
            let node = &transaction.node;
            // Not if the node cannot go on: then its log is resolved, and the row with it.
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

    /// Closes the row of an attempt that announced `writes`, then deletes what it wrote.
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
        let is_sequenced = self.serializable.keyspaces.lock().are_any_sequenced();
        if is_sequenced {
            // It may be handed over, and is not in the log, nor will it be.
            node.store.settle_aborted(id, *attempt).await?;
        }
        if transaction.is_named() {
            node.store.close_named(id, *attempt).await?;
        } else if slot.is_some() {
            node.store.close_generated(id, *attempt).await?;
        } else if is_sequenced {
            // Of a generated id that was not announced nobody knows, and nothing else would ever take the row away.
            node.store.drop_aborted(id, *attempt).await?;
        }
        if let Some(slot) = slot {
            self.hear_own(node, slot);
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

    /// One timer per node, while attempts are open.
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

    /// Ends what has run out of time. Returns how long nothing else will; none: nothing is open.
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
        // Somebody may have begun since the list was made.
        if next.is_none() && attempts.len() == 0 {
            attempts.is_timer_armed = false;
            return None;
        }
        Some(next.unwrap_or_default())
    }
}
