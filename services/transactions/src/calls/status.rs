//! The outcome of a transaction: for calls to attempts that are not open here, and for repeats.
//!
//! A decided row is the answer. An undecided row whose owner is gone is closed first, and its state
//! after that is the answer. The service therefore never reports "aborted" for a transaction that
//! commits later (T-2). Closing is safe even if the owner is alive.
//!
//! A generated id may have no row. Its owner is this node, which does not hold it, or an earlier
//! start, whose log is sealed and resolved. Neither can commit it any more, so nothing has to be
//! written. Where its row may have been dropped the answer is *expired*, never *aborted*. That
//! applies past the window, and to every id that began no later than the last one whose row was
//! dropped. The second rule is necessary because a clock that was set back makes old ids look
//! young.
//!
//! Every answer from here is durable (P4): errors carry no point.

use std::sync::Arc;

use ports::{DurabilityPoint, Read};

use crate::{
    Error, Result,
    attempts::{
        open_attempts::AttemptState,
        transaction::{CommitAnswer, outcome},
    },
    broken::Broken,
    calls::Calls,
    model::{Attempt, Call, Committed, Outcome, TransactionId, transaction_id::Generated},
    node::Node,
    storage::{
        node_registry,
        store::{Decided, Decision, State},
    },
};

impl Calls {
    pub(crate) async fn status(self: &Arc<Self>, call: &Call) -> Result<Read<Outcome>> {
        let found = self.find(call);
        let answer = match found {
            AttemptState::Active(transaction) => {
                return Ok(Read::durable(transaction.state().outcome()));
            }
            AttemptState::BegunAnew => return Ok(Read::durable(Outcome::BegunAnew)),
            AttemptState::Ended(answer) => answer,
            AttemptState::Unknown => Box::pin(self.answer_of(call)).await,
        };
        match (outcome(&answer), answer) {
            (Some(outcome), _) => Ok(Read::durable(outcome)),
            (None, Err(Error::Expired)) => Ok(Read::durable(Outcome::Expired)),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => unreachable!("a commit that was answered has an outcome"),
        }
    }

    /// The answer to a commit whose attempt is unknown here. It runs as a task of the engine, and
    /// excludes begins of the same id.
    pub(crate) async fn answer_of(self: &Arc<Self>, call: &Call) -> CommitAnswer {
        let (calls, asked) = (Arc::clone(self), call.clone());
        let answer = self
            .context
            .spawn_and_wait(async move {
                let node = calls.serving.node()?;
                let look_up = calls.look_up(&node, &asked);
                calls.alone_with(&asked.id, look_up).await
            })
            .await;
        if answer == Err(Error::NoSuchTransaction)
            && let AttemptState::Ended(ended) = self.attempts.lock().find(call)
        {
            // The store keeps no record of a client id that was not begun since.
            return ended;
        }
        answer
    }

    /// Finds the attempt of a call on this node. Where there are other nodes, one may have begun
    /// the id since.
    pub(crate) fn find(&self, call: &Call) -> AttemptState {
        let found = self.attempts.lock().find(call);
        if self.context.is_alone() {
            return found;
        }
        let is_own = |attempt: Attempt| self.attempts.lock().are_of(attempt.node);
        match (found, call.attempt) {
            (AttemptState::BegunAnew, Some(attempt)) if !is_own(attempt) => AttemptState::Unknown,
            (AttemptState::Ended(Err(_)), None)
            | (AttemptState::Ended(Err(Error::TransactionFinished(Outcome::Aborted))), Some(_))
                if call.id.generated().is_none() =>
            {
                AttemptState::Unknown
            }
            (found, _) => found,
        }
    }

    async fn look_up(self: &Arc<Self>, node: &Arc<Node>, call: &Call) -> CommitAnswer {
        if !matches!(self.find(call), AttemptState::Unknown) {
            return Err(Error::unavailable("the transaction is being begun"));
        }
        let (mut decision, mut point) = node.store.decision(&call.id).await?;
        if decision.is_none() && self.closes_absent(node, &call.id).await? {
            (decision, point) = node.store.decision(&call.id).await?;
        }
        let Some(decision) = decision else {
            return self.answer_without_row(node, call, point).await;
        };
        let is_begun_anew = call.attempt.is_some_and(|asked| asked != decision.attempt);
        if is_begun_anew && decision.is_undecided() {
            // The row belongs to a later attempt, which may be open at another node; this one
            // cannot commit any more.
            node.store.externalize(point).await?;
            return Err(Error::TransactionFinished(Outcome::BegunAnew));
        }
        let (decision, point) = self
            .close_undecided(node, &call.id, decision, point)
            .await?;
        node.store.externalize(point).await?;
        let is_asked = call.attempt.is_none_or(|asked| asked == decision.attempt);
        match decision.state {
            _ if !is_asked => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            State::Committed(stored) => {
                self.apply_committed(node, &call.id, decision.attempt, &stored, point)
                    .await?;
                Ok(Committed {
                    after: stored.after(),
                })
            }
            State::Aborted | State::Undecided | State::Prepared => {
                Err(Error::TransactionFinished(Outcome::Aborted))
            }
        }
    }

    /// There is no row, and the node that owns the id may still commit it. It must be prevented
    /// before any answer. Returns false if it cannot commit, or no node has it.
    async fn closes_absent(&self, node: &Arc<Node>, id: &TransactionId) -> Result<bool> {
        let Some(generated) = id.generated() else {
            return Ok(false);
        };
        let attempt = generated.attempt;
        if self.context.is_alone() || attempt.node == node.id {
            return Ok(false);
        }
        let row = node_registry::get(&node.store, attempt.node).await?;
        if row.is_none_or(|row| row.is_resolved) || self.is_expired(node, generated).await? {
            return Ok(false);
        }
        // There may be no log entry that names it. Then nothing else would ever drop its row.
        self.idempotency_keys
            .keep_names(node, vec![(id.clone(), attempt)])
            .await?;
        node.store.close(id, attempt, false).await?;
        Ok(true)
    }

    /// There is no row. A generated id then never committed, or its row was dropped; the same holds
    /// for an attempt of a random id. Otherwise a client that repeats the commit would assume it
    /// had never happened, and do the work again.
    async fn answer_without_row(
        &self,
        node: &Node,
        call: &Call,
        point: DurabilityPoint,
    ) -> CommitAnswer {
        if let Some(attempt) = call.attempt.filter(|_| call.id.is_random())
            && self.is_dropped(node, attempt).await?
        {
            node.store.externalize(point).await?;
            return Err(Error::Expired);
        }
        let generated = call.id.generated().ok_or(Error::NoSuchTransaction)?;
        let attempt = generated.attempt;
        let was_given = if self.context.is_alone() || attempt.node == node.id {
            attempt.node.0 > 0 && (attempt.node < node.id || node.has_begun(attempt))
        } else {
            node_registry::get(&node.store, attempt.node)
                .await?
                .is_some()
        };
        if !was_given {
            return Err(Error::NoSuchTransaction);
        }
        let is_expired = self.is_expired(node, generated).await?;
        node.store.externalize(point).await?;
        if is_expired {
            return Err(Error::Expired);
        }
        Err(Error::TransactionFinished(Outcome::Aborted))
    }

    /// Whether the row of a generated id may have been dropped.
    async fn is_expired(&self, node: &Node, generated: Generated) -> Result<bool> {
        let Generated { start, attempt } = generated;
        let age_ms = u128::from(self.context.clock.now().ms_since(start));
        Ok(self.is_dropped(node, attempt).await?
            || age_ms > self.context.config.retry_window.as_millis())
    }

    /// Whether the row of an attempt of a generated or random id may have been dropped.
    async fn is_dropped(&self, node: &Node, attempt: Attempt) -> Result<bool> {
        let dropped = node_registry::dropped_through(&node.store, attempt.node).await?;
        Ok(attempt.sequence <= dropped && !self.context.breaks(Broken::ForgetsWhatItDropped))
    }

    /// The row exists. If it is undecided, no node holds its attempt any more.
    async fn close_undecided(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        decision: Decision,
        point: DurabilityPoint,
    ) -> Result<(Decision, DurabilityPoint)> {
        match decision.state {
            State::Undecided => match node.store.close(id, decision.attempt, true).await? {
                Decided::Done(point) => Ok((
                    Decision {
                        state: State::Aborted,
                        ..decision
                    },
                    point,
                )),
                Decided::Refused(Some(decision), point) => Ok((decision, point)),
                Decided::Refused(None, _) => Err(Error::NoSuchTransaction),
            },
            State::Prepared => {
                let (decision, point) = self
                    .sequencing
                    .close_prepared(node, id, decision.attempt)
                    .await?;
                Ok((decision.ok_or(Error::NoSuchTransaction)?, point))
            }
            State::Committed(_) | State::Aborted => Ok((decision, point)),
        }
    }
}
