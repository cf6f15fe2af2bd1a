//! How a node has the sequencer decide: its own sequencer, or another node's by messages that may
//! be lost, late or duplicated.
//!
//! A node asks until it knows the outcome: from the answer, the log, or the row. Repeats are
//! harmless, because an attempt is in the log once. The sequencer reads the row, which holds the
//! outcome once the log has forgotten it. The generation tells whether the sequencer has forgotten
//! anything since.
//!
//! `Conflict` and `SnapshotTooOld` are final, because later writes cannot undo the conflict. A node
//! that receives one may close the row alone. After any other error, only the log can tell that an
//! attempt never commits.
//!
//! A commit of a generated id is wanted only until its client was told that its outcome is unknown.
//! The client may then write the same again, through any node, and then something newer. The old
//! write must not land on top of that once this node reaches the sequencer. From then on the
//! attempt is therefore closed instead. For a client id, the next begin closes it, and until then a
//! caller that repeats the commit wants it.

use std::sync::Arc;

use ports::{DurabilityPoint, Monotonic};

use crate::{
    Error, Result,
    broken::Broken,
    cluster::{
        forwarded::Refused,
        messages::{Answer, Message, Ordered},
    },
    model::{Attempt, NodeId, Outcome, Position, TransactionId, Version},
    node::Node,
    sequencer::{Proposal, Sequencer},
    sequencing::Sequencing,
    storage::{
        records::{CommitRecord, StoredRecord, Write},
        store::{Decision, State, Store, refused},
    },
};

impl Sequencing {
    /// Has the present sequencer decide, however long it takes: to commit if asked before
    /// `wanted_until`, and from then on to close. `seen` is the generation of this node's sequencer
    /// before the row was handed over, when the row was undecided. Errors: `Conflict`,
    /// `SnapshotTooOld`, `TransactionFinished`, and from this node's own sequencer `NoRoom` and
    /// `Corrupt`: the attempt has not committed, and will not. `Unavailable` once the node cannot
    /// go on: it may have committed.
    pub(crate) async fn sequence(
        self: &Arc<Self>,
        node: &Arc<Node>,
        proposal: &Proposal,
        writes: &[Write],
        seen: Option<u64>,
        wanted_until: Option<Monotonic>,
    ) -> Result<Arc<CommitRecord>> {
        let mut delays = Store::delays();
        let asked = self.context.clock.monotonic();
        let mut is_said = false;
        loop {
            let now = self.context.clock.monotonic();
            let is_wanted = wanted_until.is_none_or(|until| now < until);
            let answered = if !is_wanted {
                let closing = Proposal::to_close(&proposal.id, proposal.attempt);
                let closed = self.close_with_sequencer(node, &closing).await;
                closed.map(|()| None)
            } else if let Some(sequencer) = node.sequencer() {
                let decided = self.decide_here(node, sequencer, proposal, writes, seen);
                decided.await.map(Some)
            } else {
                self.ask_sequencer(node, proposal, writes).await.map(Some)
            };
            let is_final = |error: &Error| {
                matches!(
                    error,
                    Error::Conflict | Error::SnapshotTooOld | Error::TransactionFinished(_)
                )
            };
            match answered {
                Ok(Some(record)) => return Ok(record),
                // It has committed, or never will: the log or its row tells which.
                Ok(None) => {}
                Err(error) if is_final(&error) => return Err(error),
                // No other node knows of it.
                Err(error @ (Error::NoRoom | Error::Corrupt(_)))
                    if is_wanted && node.sequencer().is_some() =>
                {
                    return Err(error);
                }
                Err(error) => {
                    let is_long = now.since(asked) >= self.context.config.commit_answer_timeout;
                    if is_long && !std::mem::replace(&mut is_said, true) {
                        warn_of_sequencer(node, &error);
                    }
                    tracing::debug!(%error, "the sequencer is asked again");
                }
            }
            node.store.check_fence()?;
            if let Some(known) = self.find_outcome(node, proposal).await? {
                return known;
            }
            node.store.pause(&mut delays).await;
        }
    }

    /// Finds the outcome of an attempt whose row was handed over. If the log has none, it is closed
    /// and never commits. Returns the row as it is then. Errors: `Unavailable`, also if no
    /// sequencer answers.
    pub(crate) async fn close_prepared(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<(Option<Decision>, DurabilityPoint)> {
        if self.context.breaks(Broken::ClosesPreparedRows) {
            node.store.settle_aborted(id, attempt).await?;
            return node.store.decision(id).await;
        }
        let is_noted_now = self.note_closing(node, id, attempt).await?;
        let proposal = Proposal::to_close(id, attempt);
        if node.sequencer().is_none() && node.followed.writer().is_none() {
            self.follow_sequencer(node).await?;
        }
        let closed = self.close_with_sequencer(node, &proposal).await;
        if closed.is_err() && node.sequencer().is_none() {
            // There may be a successor.
            self.follow_sequencer(node).await?;
        }
        closed?;
        if node.has_closed(attempt) && !is_noted_now {
            // The client id whose row was undecided may have been dropped by now.
            self.idempotency_keys
                .keep_names(node, vec![(id.clone(), attempt)])
                .await?;
        }
        node.store.decision(id).await
    }

    /// Before the first request to close another node's attempt, its id is noted. No log entry may
    /// name it, and then nothing else would ever drop its row. Returns whether it was noted.
    async fn note_closing(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<bool> {
        let is_to_note = attempt.node != node.id && !node.is_closing(attempt);
        if is_to_note {
            self.idempotency_keys
                .keep_names(node, vec![(id.clone(), attempt)])
                .await?;
            node.begins_to_close(attempt);
        }
        Ok(is_to_note)
    }

    /// Settles the row of a commit in the log.
    pub(crate) async fn settle(
        &self,
        node: &Node,
        record: &CommitRecord,
        stored: &StoredRecord,
    ) -> Result<()> {
        if let Some(sequencer) = node.sequencer() {
            sequencer.settle(record.attempt).await?;
        }
        // Repeated unless this node's sequencer has decided it itself; the row changes once.
        if node
            .sequencer()
            .is_none_or(|sequencer| record.position.slot <= sequencer.sealed)
        {
            node.store
                .settle_committed(&record.id, record.attempt, stored)
                .await?;
        }
        // Only now is the log trimmed: commits in the index by then need not be read from it.
        match node.sequencer().filter(|_| self.context.is_alone()) {
            Some(sequencer) => sequencer.trim(u64::MAX).await,
            None => Ok(()),
        }
    }

    /// The outcome of an attempt in the log or its row; `None` if there is none yet.
    async fn find_outcome(
        &self,
        node: &Arc<Node>,
        proposal: &Proposal,
    ) -> Result<Option<Result<Arc<CommitRecord>>>> {
        match self.follow_sequencer(node).await {
            Err(Error::Unavailable(_)) if !node.store.is_fenced() => return Ok(None),
            followed => followed?,
        }
        if let Some(record) = node.followed.unsettled(proposal.attempt) {
            return Ok(Some(Ok(record)));
        }
        let is_open = |state: &State| matches!(state, State::Prepared | State::Undecided);
        self.outcome_in_row(node, proposal, is_open).await
    }

    /// The outcome of an attempt in its row; `None` if the row is its own, and `is_open`.
    async fn outcome_in_row(
        &self,
        node: &Node,
        proposal: &Proposal,
        is_open: impl Fn(&State) -> bool,
    ) -> Result<Option<Result<Arc<CommitRecord>>>> {
        let Proposal { id, attempt, .. } = proposal;
        let (decision, point) = node.store.decision(id).await?;
        let own = decision.as_ref().filter(|row| row.attempt == *attempt);
        Ok(match own.map(|decision| &decision.state) {
            Some(state) if is_open(state) => None,
            Some(State::Committed(stored)) => {
                let record = node.store.record(id, *attempt, stored, point).await?;
                Some(Ok(Arc::new(record)))
            }
            _ => Some(Err(refused(decision.as_ref(), id, *attempt))),
        })
    }

    /// Decides about an attempt in this node's log.
    async fn decide_here(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        proposal: &Proposal,
        writes: &[Write],
        mut seen: Option<u64>,
    ) -> Result<Arc<CommitRecord>> {
        {
            let known = self.keyspaces.lock();
            if writes
                .iter()
                .any(|write| !known.is_wholly_sequenced(write.key.keyspace()))
            {
                return Err(Error::unavailable("the keyspace is being marked"));
            }
        }
        loop {
            let seen = if let Some(seen) = seen.take() {
                seen
            } else {
                let generation = sequencer.generation();
                // The asking node handed the row over before.
                let is_open = |state: &State| *state == State::Prepared;
                match self.outcome_in_row(node, proposal, is_open).await? {
                    None => generation,
                    Some(outcome) => return outcome,
                }
            };
            if let Some(answer) = self
                .order(node, sequencer, proposal.clone(), writes.to_vec(), seen)
                .await
            {
                return answer;
            }
        }
    }

    /// Closes an attempt in this node's log, and settles its row accordingly.
    async fn close_here(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        proposal: &Proposal,
    ) -> Result<()> {
        match self.decide_here(node, sequencer, proposal, &[], None).await {
            Ok(_) | Err(Error::TransactionFinished(_)) => sequencer.settle(proposal.attempt).await,
            Err(error) => Err(error),
        }
    }

    /// Has another node's sequencer decide.
    async fn ask_sequencer(
        &self,
        node: &Arc<Node>,
        proposal: &Proposal,
        writes: &[Write],
    ) -> Result<Arc<CommitRecord>> {
        let version = self
            .ask_writer(node, proposal)
            .await?
            .map_err(Error::from)?;
        let stored = proposal.stored(version);
        let stored = stored.ok_or_else(|| Error::unavailable("unexpected kind of answer"))?;
        // It is answered once it is durable.
        let (Proposal { id, attempt, .. }, point) = (proposal, DurabilityPoint::DURABLE);
        let record = Arc::new(stored.with(id, *attempt, writes.to_vec(), point));
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.on_commits_elsewhere(node, &[Arc::clone(&record)]);
        }
        Ok(record)
    }

    async fn close_with_sequencer(&self, node: &Arc<Node>, proposal: &Proposal) -> Result<()> {
        if let Some(sequencer) = node.sequencer() {
            return self.close_here(node, sequencer, proposal).await;
        }
        match self.ask_writer(node, proposal).await?.map_err(Error::from) {
            Ok(_) | Err(Error::TransactionFinished(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn ask_writer(&self, node: &Arc<Node>, proposal: &Proposal) -> Result<Ordered> {
        let no_sequencer = || Error::unavailable("there is no sequencer at the moment");
        let writer = node
            .followed
            .writer()
            .filter(|writer| *writer != node.id)
            .ok_or_else(no_sequencer)?;
        let address = self
            .cluster
            .membership
            .members()
            .nodes
            .get(&writer)
            .cloned()
            .ok_or_else(no_sequencer)?;
        match self
            .cluster
            .ask(node, writer, &address, &Message::Sequence(proposal.clone()))
            .await?
        {
            Answer::Ordered(ordered) => Ok(ordered),
            _ => Err(Error::unavailable("unexpected kind of answer")),
        }
    }

    /// Another node asks this one's sequencer.
    pub(crate) async fn serve_sequence(
        self: &Arc<Self>,
        node: &Arc<Node>,
        proposal: Proposal,
    ) -> Ordered {
        let (sequencing, node) = (Arc::clone(self), Arc::clone(node));
        let ordered = self
            .context
            .spawn_and_wait(async move { sequencing.decide_for_another(&node, &proposal).await });
        ordered.await.map_err(Refused::from)
    }

    async fn decide_for_another(
        self: &Arc<Self>,
        node: &Arc<Node>,
        proposal: &Proposal,
    ) -> Result<Version> {
        let sequencer = node
            .sequencer()
            .ok_or_else(|| Error::unavailable("this is not the sequencer"))?;
        let Some(request) = &proposal.request else {
            self.close_here(node, sequencer, proposal).await?;
            // The row is settled, too.
            return Err(Error::TransactionFinished(Outcome::Aborted));
        };
        let writes = node.store.write_set(proposal.attempt, &request.set).await?;
        let record = self
            .decide_here(node, sequencer, proposal, &writes, None)
            .await?;
        node.store.externalize(record.point).await?;
        let is_sequenced = matches!(
            record.position,
            Position {
                log: NodeId::SEQUENCER,
                ..
            }
        );
        assert!(
            is_sequenced,
            "the sequencer's log decides every attempt that was handed over"
        );
        Ok(record.version)
    }
}

fn warn_of_sequencer(node: &Node, error: &Error) {
    let sequencer = node.followed.writer().unwrap_or_default().0;
    tracing::warn!(%error, sequencer, "commits do not proceed here: the node that orders them does not answer; is its address right?");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::peers::tests::start_among_others, model::KeyspaceId};

    /// T9: memory stays bounded however often attempts are to be closed while no sequencer serves.
    #[test]
    fn a_name_takes_one_place_while_nobody_closes_it() {
        simulated::run(async {
            let service = start_among_others().await;
            let sequencing = &service.engine().calls.sequencing;
            let node = service
                .engine()
                .calls
                .serving
                .node()
                .expect("it has started");
            let id = TransactionId::new("t").expect("a name");
            let attempt = Attempt {
                node: NodeId(node.id.0 + 1),
                sequence: 1,
            };
            let places = || sequencing.idempotency_keys.lock().values().sum::<u64>();
            for _ in 0..3 {
                let closed = sequencing.close_prepared(&node, &id, attempt).await;
                assert!(
                    matches!(closed, Err(Error::Unavailable(_))),
                    "no node orders"
                );
                assert_eq!(places(), 1);
            }
            sequencing
                .sequence_keyspace(&node, KeyspaceId::default())
                .await
                .expect("a calm world");
            while node.sequencer().is_none() {
                sequencing
                    .context
                    .clock
                    .sleep(std::time::Duration::from_secs(1))
                    .await;
            }
            sequencing
                .close_prepared(&node, &id, attempt)
                .await
                .expect("a node orders");
            assert_eq!(places(), 2, "it stays for a window from when it was closed");
        });
    }
}
