//! The commit in a sequenced keyspace: the row hands the decision over.
//!
//! ```text
//!  1  as any commit, and together with it the row: undecided ──▶ prepared, from now on the
//!     sequencer decides
//!  2  all of that is confirmed
//!  3  a slot of the sequencer's log: that decides, and installs
//!  4  wait until the slot is durable, and with it all before it
//!  5  answer; then the row is settled, too
//! ```
//!
//! Without the hand-over, one decision would have two writers: the node that closes the row, and
//! the sequencer. The table in `docs/design/0003-transactions.md`, section 9.4, lists what a crash
//! after each step leaves. Until the row is settled, the commit is found in the log, or in the
//! memory of the node that wrote it.

use std::{sync::Arc, time::Duration};

use ports::Monotonic;
use primitives::Backoff;

use crate::{
    Error, Result,
    attempts::{spills::Spills, transaction::CommitAnswer},
    broken::Broken,
    model::Outcome,
    sequencer::{
        Sequencer,
        proposal::{Proposal, Request},
        validation::Observed,
    },
    storage::{
        records::CommitRecord,
        store::{Decided, refused},
    },
};

use super::Commit;

/// How often to read the row of a closed attempt until we assume that no begin is taking it: a
/// tenth of a second in all.
const TAKEN_SOON: Backoff = Backoff {
    first: Duration::from_millis(5),
    longest: Duration::from_millis(40),
    attempts_max: 8,
};

impl Commit<'_> {
    /// Commits after validation of `observed`; `None` skips validation.
    pub(super) async fn run_sequenced(mut self, observed: Option<Observed>) -> CommitAnswer {
        if let Err(error) = self.may_begin() {
            return self.give_up(None, error);
        }
        let node = Arc::clone(&self.transaction.node);
        let seen = node.sequencer().map(Sequencer::generation);
        let data = async {
            let (data, prepared) = futures_util::join!(self.write_data(), self.prepare());
            data.and(prepared)
        };
        let placed = match self.round_one(data).await {
            Ok(placed) => placed,
            Err((slot, error)) => return self.give_up(slot, error),
        };
        let request = Request {
            observed,
            set: self.set.clone(),
            effects: self.effects.len() as u32,
        };
        let proposal = Proposal::to_commit(&self.transaction.id, self.transaction.attempt, request);
        let wanted_until = self.wanted_until();
        let record = match self
            .calls
            .sequencing
            .sequence(&node, &proposal, &self.writes, seen, wanted_until)
            .await
        {
            Ok(record) => record,
            Err(Error::Unavailable(_)) => return Err(Error::OutcomeUnknown),
            Err(Error::TransactionFinished(Outcome::Aborted)) if self.transaction.is_named() => {
                let error = self.why_closed().await;
                return self.give_up(Some(placed.slot), error);
            }
            Err(error) => return self.give_up(Some(placed.slot), error),
        };
        self.on_commit(placed.slot, &record, Some(proposal));
        self.answer(&record).await
    }

    /// The deadline for deciding that it commits; `None` means no deadline. A client that was told
    /// *unknown* for a generated id asks no more, or accepts *aborted* as the answer.
    fn wanted_until(&self) -> Option<Monotonic> {
        let is_for_good =
            self.transaction.is_named() || self.calls.context.breaks(Broken::CommitsAfterUnknown);
        (!is_for_good).then(|| self.began + self.calls.context.config.commit_answer_timeout)
    }

    /// Hands the decision over. Errors: `TransactionFinished` if the row was decided before.
    async fn prepare(&self) -> Result<()> {
        let (id, attempt, node) = self.names();
        match node
            .store
            .prepare(
                id,
                attempt,
                self.transaction.is_named(),
                self.result.as_ref(),
            )
            .await?
        {
            Decided::Done(_) => Ok(()),
            Decided::Refused(decision, point) => {
                node.store
                    .externalize(point)
                    .await
                    .map_err(|_| Error::OutcomeUnknown)?;
                Err(refused(decision.as_ref(), id, attempt))
            }
        }
    }

    /// The row was closed. A begin of the same client id closes what was handed over, and takes the
    /// row in its next step. A client that received *aborted* between the two would begin once
    /// more, and end the attempt that replaced it (T8).
    async fn why_closed(&self) -> Error {
        let (id, attempt, node) = self.names();
        let mut delays = TAKEN_SOON.delays();
        loop {
            let aborted = Error::TransactionFinished(Outcome::Aborted);
            let Ok((row, point)) = node.store.decision(id).await else {
                return aborted;
            };
            let why = refused(row.as_ref(), id, attempt);
            if why != aborted {
                return node
                    .store
                    .externalize(point)
                    .await
                    .map_or(Error::OutcomeUnknown, |()| why);
            }
            match delays.next_delay(&*self.calls.context.entropy) {
                Some(delay) => self.calls.context.clock.sleep(delay).await,
                None => return aborted,
            }
        }
    }

    /// Settles the row as the sequencer's log decided, and then the entries in the own log,
    /// including those of spilled data, whose fate the row decides. If this is interrupted, the
    /// next start does it.
    pub(super) fn settle_later(
        &self,
        slot: u64,
        spills: Spills,
        record: &Arc<CommitRecord>,
        proposal: Proposal,
    ) {
        let (calls, transaction) = (Arc::clone(self.calls), Arc::clone(self.transaction));
        let (node, record) = (Arc::clone(&transaction.node), Arc::clone(record));
        Arc::clone(&node).spawn(&self.calls.context, async move {
            let Some(stored) = proposal.stored(record.version) else {
                return;
            };
            if let Err(error) = calls.sequencing.settle(&node, &record, &stored).await {
                tracing::debug!(%error, "a commit is left to the next start to be settled");
                return;
            }
            calls.on_row(&transaction, slot, spills, &record);
        });
    }
}
