//! How a node has the sequencer decide: its own, or that of another node, by messages that can be lost, late or doubled.
//!
//! What is asked is asked until it is known what became of it: by the answer, by the log, or by the row. A repeat changes
//! nothing, since an attempt stands in the log once: the sequencer looks at the row, which says it once the log has forgotten,
//! and knows whether it has forgotten anything since.
//!
//! `Conflict` and `SnapshotTooOld` are final: whatever was written since stays written since. So whoever hears them may close
//! the row alone. After any other error it is for the log to say that an attempt never commits.
//!
//! A commit of a generated id is wanted only until its client was answered that its outcome is unknown. Whoever writes the same
//! again, by whichever node, and then something newer, must not find the old write on top of it once this node reaches the
//! sequencer: so from then on the attempt is closed instead. Of a chosen id that is for its next begin, and until then whoever
//! repeats its commit wants it.

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
    sequencer::{Sequencer, Wish},
    serializable::Serializable,
    storage::{
        records::{CommitRecord, StoredRecord, Write},
        store::{Decision, State, Store, refused},
    },
};

impl Serializable {
    /// Has the sequencer decide, whoever that is, for as long as it takes: to commit if it is asked before `wanted_until`, and
    /// from then on to close. `seen`: the generation of this node's sequencer before the row was handed over, which nobody
    /// had decided then. Errors: `Conflict`, `SnapshotTooOld`, `TransactionFinished`, and of this node's own sequencer `NoRoom` and `Corrupt`: it
    /// has not committed, and will not; `Unavailable` once the node cannot go on, and it may have.
    pub(crate) async fn sequence(
        self: &Arc<Self>,
        node: &Arc<Node>,
        wish: &Wish,
        writes: &[Write],
        seen: Option<u64>,
        wanted_until: Option<Monotonic>,
    ) -> Result<Arc<CommitRecord>> {
        let mut delays = Store::delays();
        let asked = self.context.clock.monotonic();
        let mut is_said = false;
        loop {
            if wanted_until.is_some_and(|until| self.context.clock.monotonic() >= until) {
                return self.close_unwanted(node, wish).await;
            }
            let answered = match node.sequencer() {
                Some(sequencer) => self.decide_here(node, sequencer, wish, writes, seen).await,
                None => self.ask_sequencer(node, wish, writes).await,
            };
            let is_final = |error: &Error| {
                matches!(
                    error,
                    Error::Conflict | Error::SnapshotTooOld | Error::TransactionFinished(_)
                )
            };
            match answered {
                Ok(record) => return Ok(record),
                Err(error) if is_final(&error) => return Err(error),
                // Nobody else has heard of it.
                Err(error @ (Error::NoRoom | Error::Corrupt(_))) if node.sequencer().is_some() => {
                    return Err(error);
                }
                Err(error) => {
                    let is_long = self.context.clock.monotonic().since(asked)
                        >= self.context.config.commit_answer_timeout;
                    if is_long && !std::mem::replace(&mut is_said, true) {
                        warn_of_sequencer(node, &error);
                    }
                    tracing::debug!(%error, "the sequencer is asked again");
                }
            }
            node.store.standing()?;
            if let Some(known) = self.look_for(node, wish).await? {
                return known;
            }
            node.store.pause(&mut delays).await;
        }
    }

    /// Has an attempt closed that its client was told to be unknown, for as long as it takes: it has committed by now, or never
    /// will. Errors: `TransactionFinished`; `Unavailable` once the node cannot go on.
    async fn close_unwanted(
        self: &Arc<Self>,
        node: &Arc<Node>,
        wish: &Wish,
    ) -> Result<Arc<CommitRecord>> {
        let mut delays = Store::delays();
        let mut is_said = false;
        let closing = wish.closing();
        loop {
            let closed = match node.sequencer() {
                Some(sequencer) => self.close_here(node, sequencer, &closing).await,
                None => self.ask_to_close(node, &closing).await,
            };
            if let Err(error) = closed {
                if !std::mem::replace(&mut is_said, true) {
                    warn_of_sequencer(node, &error);
                }
                tracing::debug!(%error, "the sequencer is asked again to close what its client was not told");
            }
            node.store.standing()?;
            if let Some(known) = self.look_for(node, wish).await? {
                return known;
            }
            node.store.pause(&mut delays).await;
        }
    }

    /// Finds out about an attempt whose row was handed over: what the log says of it, and if that is nothing, nothing
    /// ever. Returns the row as it is then. Errors: `Unavailable` also if no sequencer answers.
    pub(crate) async fn close_prepared(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<(Option<Decision>, DurabilityPoint)> {
        if self.context.config.is_broken(Broken::ClosesPreparedRows) {
            node.store.settle_aborted(id, attempt).await?;
            return node.store.decision(id).await;
        }
        let is_noted_now = self.note_closing(node, id, attempt).await?;
        let wish = Wish::to_close(id, attempt);
        let closed = if let Some(sequencer) = node.sequencer() {
            self.close_here(node, sequencer, &wish).await
        } else {
            if node.followed.writer().is_none() {
                self.follow_sequencer(node).await?;
            }
            let closed = self.ask_to_close(node, &wish).await;
            if closed.is_err() {
                // There may be a successor.
                self.follow_sequencer(node).await?;
            }
            closed
        };
        closed?;
        if node.has_closed(attempt) && !is_noted_now {
            // By now the name may have gone whose row was not decided yet.
            self.idempotency_keys
                .keep_names(node, vec![(id.clone(), attempt)])
                .await?;
        }
        node.store.decision(id).await
    }

    /// Before it is asked for the first time that an attempt of another node be closed its name is noted: no entry of a log may
    /// name it, and then nothing else would ever drop its row. Whether it was.
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

    /// Has the row of a commit that stands in the log say so.
    pub(crate) async fn settle(
        &self,
        node: &Node,
        record: &CommitRecord,
        stored: &StoredRecord,
    ) -> Result<()> {
        if let Some(sequencer) = node.sequencer() {
            sequencer.settle(record.attempt).await?;
        }
        // Once more, unless this node's sequencer has decided it itself; the row changes once.
        if node
            .sequencer()
            .is_none_or(|sequencer| record.position.slot <= sequencer.sealed)
        {
            node.store
                .settle_committed(&record.id, record.attempt, stored)
                .await?;
        }
        // Only now is it trimmed: what is in memory by then need not be read in the log.
        match node.sequencer().filter(|_| self.context.is_alone()) {
            Some(sequencer) => sequencer.trim(u64::MAX).await,
            None => Ok(()),
        }
    }

    /// What the log or the row says of an attempt; none: nothing yet.
    async fn look_for(
        &self,
        node: &Arc<Node>,
        wish: &Wish,
    ) -> Result<Option<Result<Arc<CommitRecord>>>> {
        match self.follow_sequencer(node).await {
            Err(Error::Unavailable(_)) if node.store.standing().is_ok() => return Ok(None),
            followed => followed?,
        }
        if let Some(record) = node.followed.unsettled(wish.attempt) {
            return Ok(Some(Ok(record)));
        }
        let (decision, point) = node.store.decision(&wish.id).await?;
        let own = decision
            .as_ref()
            .filter(|decision| decision.attempt == wish.attempt);
        Ok(match own.map(|decision| &decision.state) {
            Some(State::Prepared | State::Undecided) => None,
            Some(State::Committed(stored)) => {
                let record = node
                    .store
                    .record(&wish.id, wish.attempt, stored, point)
                    .await?;
                Some(Ok(Arc::new(record)))
            }
            Some(State::Aborted) | None => {
                Some(Err(refused(decision.as_ref(), &wish.id, wish.attempt)))
            }
        })
    }

    /// Decides about an attempt in this node's log.
    async fn decide_here(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        wish: &Wish,
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
                let (decision, point) = node.store.decision(&wish.id).await?;
                let own = decision
                    .as_ref()
                    .filter(|decision| decision.attempt == wish.attempt);
                match own.map(|decision| &decision.state) {
                    Some(State::Prepared) => generation,
                    Some(State::Committed(stored)) => {
                        let record = node
                            .store
                            .record(&wish.id, wish.attempt, stored, point)
                            .await?;
                        return Ok(Arc::new(record));
                    }
                    // Whoever asks has handed it over before.
                    Some(State::Undecided | State::Aborted) | None => {
                        return Err(refused(decision.as_ref(), &wish.id, wish.attempt));
                    }
                }
            };
            if let Some(answer) = self
                .order(node, sequencer, wish.clone(), writes.to_vec(), seen)
                .await
            {
                return answer;
            }
        }
    }

    /// Closes an attempt in this node's log, and has its row say what that says.
    async fn close_here(&self, node: &Arc<Node>, sequencer: &Sequencer, wish: &Wish) -> Result<()> {
        match self.decide_here(node, sequencer, wish, &[], None).await {
            Ok(_) | Err(Error::TransactionFinished(_)) => sequencer.settle(wish.attempt).await,
            Err(error) => Err(error),
        }
    }

    /// Has another node's sequencer decide.
    async fn ask_sequencer(
        &self,
        node: &Arc<Node>,
        wish: &Wish,
        writes: &[Write],
    ) -> Result<Arc<CommitRecord>> {
        let version = self.ask_writer(node, wish).await?.map_err(Error::from)?;
        let stored = wish.stored(version);
        let stored =
            stored.ok_or_else(|| Error::unavailable("a node answers what was not asked"))?;
        let record = Arc::new(CommitRecord {
            id: wish.id.clone(),
            attempt: wish.attempt,
            version,
            position: stored.position,
            writes: writes.to_vec(),
            parts: stored.writes.parts(),
            // It is answered once it is durable.
            point: DurabilityPoint::DURABLE,
        });
        if let Some(mut cache) = self.cache.of(node.id) {
            let news = [Arc::clone(&record)];
            node.observe(&news);
            cache.merge(node.id, &news);
        }
        Ok(record)
    }

    async fn ask_to_close(&self, node: &Arc<Node>, wish: &Wish) -> Result<()> {
        match self.ask_writer(node, wish).await?.map_err(Error::from) {
            Ok(_) | Err(Error::TransactionFinished(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn ask_writer(&self, node: &Arc<Node>, wish: &Wish) -> Result<Ordered> {
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
            .ask(node, writer, &address, &Message::Sequence(wish.clone()))
            .await?
        {
            Answer::Ordered(ordered) => Ok(ordered),
            _ => Err(Error::unavailable("a node answers what was not asked")),
        }
    }

    /// Another node asks this one's sequencer.
    pub(crate) async fn serve_sequence(self: &Arc<Self>, node: &Arc<Node>, wish: Wish) -> Ordered {
        let (serializable, node) = (Arc::clone(self), Arc::clone(node));
        let ordered = self
            .context
            .spawn_and_wait(async move { serializable.decide_for_another(&node, &wish).await });
        ordered.await.map_err(Refused::from)
    }

    async fn decide_for_another(
        self: &Arc<Self>,
        node: &Arc<Node>,
        wish: &Wish,
    ) -> Result<Version> {
        let sequencer = node
            .sequencer()
            .ok_or_else(|| Error::unavailable("this is not the sequencer"))?;
        let Some(request) = wish.request() else {
            self.close_here(node, sequencer, wish).await?;
            // The row says it, too.
            return Err(Error::TransactionFinished(Outcome::Aborted));
        };
        let writes = node.store.write_set(wish.attempt, &request.set).await?;
        let record = self
            .decide_here(node, sequencer, wish, &writes, None)
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
            "whatever was handed over is decided by the sequencer's log"
        );
        Ok(record.version)
    }
}

fn warn_of_sequencer(node: &Node, error: &Error) {
    let sequencer = node.followed.writer().unwrap_or_default().0;
    tracing::warn!(%error, sequencer, "no commit goes on here: the node that orders them does not answer; is its address right?");
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use bytes::Bytes;
    use simulated::World;

    use super::*;
    use crate::{
        Config, Parts, Service,
        cluster::{
            membership::Alone,
            peers::{NoAnswer, Peers},
        },
        model::{Address, KeyspaceId},
    };

    /// Nobody else is there.
    #[derive(Debug)]
    struct Nobody;

    #[async_trait]
    impl Peers for Nobody {
        async fn call(&self, _: &Address, _: Bytes) -> Result<Bytes, NoAnswer> {
            Err(NoAnswer::Silence("nobody".into()))
        }
    }

    /// T9: however often it is tried to close an attempt while nobody orders.
    #[test]
    fn a_name_takes_one_place_while_nobody_closes_it() {
        simulated::run(async {
            let world = World::new(1);
            let parts = Parts {
                key_value: world.key_value(),
                clock: world.clock(),
                entropy: world.entropy(),
            };
            let among = Service::builder(parts).among(Arc::new(Alone::default()), Arc::new(Nobody));
            let service = among.build(Config::default());
            service.start().await.expect("a calm world");
            let serializable = &service.engine().core.recovery.serializable;
            let node = service
                .engine()
                .core
                .serving
                .node()
                .expect("it has started");
            let id = TransactionId::new("t").expect("a name");
            let attempt = Attempt {
                node: NodeId(node.id.0 + 1),
                sequence: 1,
            };
            let places = || serializable.idempotency_keys.lock().values().sum::<u64>();
            for _ in 0..3 {
                let closed = serializable.close_prepared(&node, &id, attempt).await;
                assert!(
                    matches!(closed, Err(Error::Unavailable(_))),
                    "nobody orders"
                );
                assert_eq!(places(), 1);
            }
            serializable
                .sequence_keyspace(&node, KeyspaceId::default())
                .await
                .expect("a calm world");
            while node.sequencer().is_none() {
                serializable
                    .context
                    .clock
                    .sleep(std::time::Duration::from_secs(1))
                    .await;
            }
            serializable
                .close_prepared(&node, &id, attempt)
                .await
                .expect("somebody orders");
            assert_eq!(places(), 2, "it stays for a window from when it was closed");
        });
    }
}
