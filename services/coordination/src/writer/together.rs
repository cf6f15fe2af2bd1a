//! One decision for requests of several sessions.
//!
//! Each decision has a slot of the log, a transaction and a delivery, for one request as for many.
//! With many clients that each have an update or two under way, these costs recur for every few
//! requests. So an invocation with messages of several sessions first decides their first requests
//! together, in one transaction that also applies them ([`crate::distributor`]).
//!
//! It is a shortcut. Each session is then handled by itself, beside the others, and has the rest of
//! its requests decided: those after a request that cannot be planned at once, and all of them if a
//! condition of the transaction did not hold.
//!
//! Invariants
//! - A session takes part with a row that this process wrote last, and with first deliveries only.
//!   Another row, a second delivery and the end of a session take more than one step.
//! - The transaction has the conditions of every session's row ([`Broken::ChecksOneRow`]).
//! - The requests of a session keep their order: none is planned after one that was not.

use std::collections::BTreeMap;

use ports::Result;

use super::{
    BATCH_REQUESTS_MAX, Received, Turn, Writer,
    batch::{Batch, PlanError},
    is_end,
};
use crate::{
    distributor::{Directly, Distributor, RowDecision},
    model::SessionId,
    records::Submitted,
};

/// The sessions whose work has begun, with the number of their requests that are finished.
pub(super) type Begun<'writer> = BTreeMap<SessionId, (Turn<'writer>, usize)>;

/// A session's part of a shared batch.
struct Share<'writer> {
    turn: Turn<'writer>,
    /// The number of its requests that are finished once the batch is applied.
    done: usize,
    /// The number of its requests that the batch decides.
    decided: usize,
    /// The number of the last of them.
    request: u64,
}

/// A shared batch takes no further session once it has so many requests. It then has at most twice
/// as many, so that no other task runs between its plan and its transaction, and plans on states
/// that it is about to replace.
const REQUESTS_ENOUGH: usize = BATCH_REQUESTS_MAX;

impl Share<'_> {
    fn decision(&self) -> RowDecision<'_> {
        let row = &self.turn.row;
        let after = row.after_applied(self.decided, self.request);
        RowDecision { row, after }
    }
}

impl Writer {
    /// Decides the first requests of several sessions together, as far as possible.
    pub(super) async fn decide_together(&self, sessions: &[&[Received]]) -> Result<Begun<'_>> {
        let mut begun = Begun::new();
        let Some(distributor) = &self.distributor else {
            return Ok(begun);
        };
        let mut rest = sessions;
        while rest.len() > 1 {
            let (batch, mut shares) = self.shared(&mut rest).await?;
            if let Some(batch) = batch.filter(|batch| !batch.is_empty()) {
                apply(batch, distributor, &mut shares).await?;
            }
            if rest.len() > 1 {
                // Other tasks of the process get a turn.
                tokio::task::yield_now().await;
            }
            let shares = shares.into_iter();
            begun.extend(shares.map(|share| (share.turn.session, (share.turn, share.done))));
        }
        Ok(begun)
    }

    /// Plans requests of the first of `sessions`, which it removes.
    async fn shared(
        &self,
        sessions: &mut &[&[Received]],
    ) -> Result<(Option<Batch<'_>>, Vec<Share<'_>>)> {
        let mut shares: Vec<Share<'_>> = Vec::with_capacity(sessions.len());
        let mut shared: Option<Batch<'_>> = None;
        let is_full = |batch: &Batch<'_>| batch.len() >= REQUESTS_ENOUGH || self.is_large(batch);
        while let Some((received, rest)) = sessions.split_first()
            && !shared.as_ref().is_some_and(is_full)
        {
            *sessions = rest;
            let Some(mut turn) = self.kept_turn(received)? else {
                continue;
            };
            let batch = shared.get_or_insert_with(|| {
                let mut batch = turn.batch();
                batch.try_without_locks();
                batch
            });
            batch.store.observe(turn.store.point())?;
            batch.begin_session(&turn.row);
            let done = if batch.is_optimistic() {
                turn.add_some(batch, received).await
            } else {
                0
            };
            shares.push(Share {
                turn,
                done,
                decided: batch.session_len(),
                request: batch.request,
            });
        }
        Ok((shared, shares))
    }

    /// The work on a session whose row this process wrote last.
    fn kept_turn(&self, received: &[Received]) -> Result<Option<Turn<'_>>> {
        let Some((row, point)) = self.own_row(received[0].submitted.session, received) else {
            return Ok(None);
        };
        let mut store = self.store();
        store.observe(point)?;
        Ok(Some(self.turn(row, store)))
    }
}

impl Turn<'_> {
    /// Adds the first of `received` to a batch that other sessions share, up to one that must be
    /// decided alone. Returns the number of those that the batch finishes.
    async fn add_some(&mut self, batch: &mut Batch<'_>, received: &[Received]) -> usize {
        let mut done = 0;
        for received in received.iter().take(BATCH_REQUESTS_MAX) {
            let submitted = &received.submitted;
            match self.needs_no_decision(submitted, batch) {
                Ok(true) => {
                    done += 1;
                    continue;
                }
                Ok(false) if is_shareable(submitted) && !self.writer.is_large(batch) => {}
                Ok(false) | Err(_) => break,
            }
            let outcome = match self.outcome(submitted, received.attempt, batch).await {
                Ok(plan) => Ok(plan),
                Err(PlanError::Refused(refusal)) => Err(refusal),
                Err(unplanned) => {
                    batch.forget_planned_from();
                    if matches!(unplanned, PlanError::Unneeded) {
                        done += 1;
                        continue;
                    }
                    break;
                }
            };
            batch.add(submitted, self.now_ms(), outcome);
            done += 1;
        }
        done
    }
}

/// Whether a request may be decided with those of other sessions. Data in an object does not fit
/// into a transaction, and the end of a session may need several.
fn is_shareable(submitted: &Submitted) -> bool {
    !is_end(submitted) && submitted.operation.temporary_objects().is_empty()
}

/// Applies a shared batch, unless something has changed or it does not fit. Then nothing of it is
/// done.
async fn apply(
    mut batch: Batch<'_>,
    distributor: &Distributor,
    shares: &mut [Share<'_>],
) -> Result<()> {
    let deciding = shares.iter().filter(|share| share.decided > 0);
    let rows: Vec<_> = deciding.map(Share::decision).collect();
    let Directly::Applied(point) = batch.apply_directly(distributor, &rows).await? else {
        for share in shares.iter_mut().filter(|share| share.decided > 0) {
            share.done = 0;
        }
        return Ok(());
    };
    let afters: Vec<_> = rows.into_iter().map(|row| row.after).collect();
    batch.store.observe(point)?;
    let (_, store) = batch.install().await?;
    let deciding = shares.iter_mut().filter(|share| share.decided > 0);
    for (share, after) in deciding.zip(afters) {
        share.turn.row = after;
        share.turn.store.observe(store.point())?;
    }
    Ok(())
}
