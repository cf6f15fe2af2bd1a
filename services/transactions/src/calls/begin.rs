//! Begin, and begin anew.
//!
//! A begin with a client id takes the id's row and logs that, in one round. A later begin of the
//! same id takes the row over, so every earlier attempt's commit fails at the row, on any node
//! (T-5). A generated id needs no row before its commit, because no other caller knows it.
//!
//! A crash between the two writes leaves either a row without a state or an entry without a row.
//! The log's resolver deletes such a row, or the next begin of the id takes it over. Such an entry
//! means nothing.

use std::sync::Arc;

use ports::{DurabilityPoint, Read};

use crate::{
    Error, Result,
    attempts::{
        open_attempts::AttemptState,
        transaction::{self, Phase, Start, Terms, Transaction},
    },
    broken::Broken,
    calls::Calls,
    cluster::forwarded::{Asked, Said},
    model::{
        After, Attempt, Begin, Begun, Call, Isolation, KeyspaceId, NodeId, Outcome, Position,
        Timestamp, TransactionId,
    },
    node::Node,
    storage::{
        records::{Entry, StoredRecord},
        store::{Decided, Decision, State, Store},
    },
};

/// How many begins on a full node may ask the store at a time whether they have committed. Others
/// are refused at once.
pub(crate) const FULL_LOOK_UPS_MAX: usize = 4;
/// How far a client's token may lie beyond the clock, in milliseconds.
const TOKEN_SLACK_MS: u64 = 10_000;

impl Calls {
    pub(crate) async fn begin(self: &Arc<Self>, begin: Begin) -> Result<Read<Begun>> {
        let node = self.serving.node()?;
        self.cluster.may_answer(&node)?;
        self.cluster.check_clock()?;
        let room = self
            .attempts
            .lock()
            .check_room(&self.context.config, begin.id.as_ref());
        if let Err(full) = room {
            // A begin without a permit may have committed before. It learns so on a retry, once
            // fewer begins arrive at a time.
            let Ok(_look_up) = self.full_look_ups.try_acquire() else {
                return Err(full);
            };
            let before = self.committed_before(&node, begin.id.as_ref()).await?;
            return before.ok_or(full);
        }
        let terms = Box::pin(self.agree(&node, &begin)).await?;
        let Some(id) = begin.id else {
            let (id, attempt) = self.open_generated(&node, terms)?;
            return Ok(Read::durable(Begun::Open { id, attempt }));
        };
        let calls = Arc::clone(self);
        let at_work = node.at_work()?;
        self.context
            .spawn_and_wait(async move {
                let _at_work = at_work;
                let begin = Box::pin(calls.begin_named(&node, &id, terms));
                calls.alone_with(&id, begin).await
            })
            .await
    }

    /// Runs `future` while nothing else begins or looks up the same id here.
    pub(crate) async fn alone_with<T>(
        &self,
        id: &TransactionId,
        future: impl Future<Output = T>,
    ) -> T {
        let lock = self.attempts.lock().begin_lock(id);
        let alone = lock.lock().await;
        let output = future.await;
        drop(alone);
        self.attempts.lock().end_begin(id, lock);
        output
    }

    /// The answer to a begin of an id that has committed, which needs no capacity. `None` if it has
    /// not.
    async fn committed_before(
        &self,
        node: &Arc<Node>,
        id: Option<&TransactionId>,
    ) -> Result<Option<Read<Begun>>> {
        let Some(id) = id else { return Ok(None) };
        let (decision, point) = node.store.decision(id).await?;
        let is_committed = matches!(&decision, Some(it) if matches!(it.state, State::Committed(_)));
        if !is_committed {
            return Ok(None);
        }
        let before = self.decided_before(node, id, decision.as_ref(), point);
        before.await.map(Some)
    }

    /// Ensures that the new transaction sees the client's last commit, and that its own commit has
    /// a higher timestamp.
    async fn see(&self, node: &Arc<Node>, begin: &Begin) -> Result<Timestamp> {
        let Some(after) = begin.after else {
            return Ok(Timestamp::default());
        };
        let After { version, position } = after;
        let Position { log, slot } = position;
        let contains = || self.cache.lock().applied.contains(position);
        if !contains() {
            let mut cluster = self.cluster.lock();
            let received = cluster.received(&self.cache.lock().applied, log);
            if received >= slot {
                // Merges the announcements of the batch now, so that the begin need not wait for
                // the end of its interval.
                cluster.merge_batch(node, &self.cache);
            }
        }
        let mut is_applied = contains();
        if !is_applied && !self.context.is_alone() {
            if log == NodeId::SEQUENCER {
                self.sequencing.follow_sequencer(node).await?;
                is_applied = contains();
            } else if log != node.id && log <= NodeId::MAX {
                is_applied = self.cluster.follow(node, log).await? >= slot;
            }
        }
        let is_known = match version.slot() {
            Some(slot) => {
                position
                    == Position {
                        log: NodeId::SEQUENCER,
                        slot,
                    }
                    && is_applied
            }
            None => position.log == node.id || is_applied,
        };
        // A forged token must not push the clock far ahead.
        let timestamp = version.timed();
        if !is_known || !node.log.is_plausible(timestamp, TOKEN_SLACK_MS) {
            return Err(Error::Invalid("the commit token is not of this store"));
        }
        node.log.observe(timestamp);
        Ok(timestamp)
    }

    /// The terms of a begin, if they can be granted. A serializable transaction reads at the
    /// frontier applied after this (T-4).
    async fn agree(self: &Arc<Self>, node: &Arc<Node>, begin: &Begin) -> Result<Terms> {
        let after = self.see(node, begin).await?;
        if begin.isolation == Isolation::ReadAtomic {
            return if begin.keyspaces.is_empty() {
                Ok(Terms {
                    after,
                    keyspaces: None,
                })
            } else {
                Err(Error::Invalid(
                    "only a serializable transaction names its keyspaces",
                ))
            };
        }
        let default = [KeyspaceId::default()];
        let keyspaces = if begin.keyspaces.is_empty() {
            &default
        } else {
            &begin.keyspaces[..]
        };
        for keyspace in keyspaces {
            self.sequencing.sequence_keyspace(node, *keyspace).await?;
        }
        if !self.context.breaks(Broken::ReadsAtWhatItHeard) {
            self.sequencing.follow_sequencer(node).await?;
        }
        Ok(Terms {
            after,
            keyspaces: Some(keyspaces.into()),
        })
    }

    async fn begin_named(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        terms: Terms,
    ) -> Result<Read<Begun>> {
        let attempt = node.next_attempt();
        let entry = Entry::Began {
            id: id.clone(),
            attempt,
        };
        let (placed, taken) = futures_util::join!(
            node.log.append(entry.into()),
            self.take_row(node, id, attempt),
        );
        let opened = match (&placed, &taken) {
            (Ok(placed), Ok(Decided::Done(point))) => {
                let opened = self.open(node, id, attempt, Some(placed.slot), terms);
                opened.map(|()| Read {
                    value: Begun::Open {
                        id: id.clone(),
                        attempt,
                    },
                    point: *point,
                })
            }
            (_, Ok(Decided::Refused(decision, point))) => {
                self.decided_before(node, id, decision.as_ref(), *point)
                    .await
            }
            (Err(error), _) | (_, Err(error)) => Err(error.clone()),
        };
        let is_open = |begun: &Read<Begun>| matches!(begun.value, Begun::Open { .. });
        if !opened.as_ref().is_ok_and(is_open) {
            if matches!(taken, Ok(Decided::Done(_))) {
                node.store.forget(id, attempt).await?;
            }
            match placed {
                Ok(placed) => node.settled(placed.slot),
                Err(_) => node.leaves_traces(),
            }
        }
        opened
    }

    /// Takes the row of a client id. An earlier attempt that was handed over is decided first.
    async fn take_row(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<Decided> {
        loop {
            let elsewhere = self.undecided_elsewhere(node, id).await?;
            match node.store.begin_named(id, attempt, elsewhere).await? {
                Decided::Refused(
                    Some(Decision {
                        attempt: earlier,
                        state: State::Prepared,
                        ..
                    }),
                    _,
                ) => {
                    self.sequencing.close_prepared(node, id, earlier).await?;
                }
                // Another attempt has taken it meanwhile.
                Decided::Refused(decision, _)
                    if elsewhere.is_some()
                        && decision.as_ref().is_none_or(Decision::may_be_begun) => {}
                taken => {
                    if let (Decided::Done(_), Some(earlier)) = (&taken, elsewhere) {
                        self.end_elsewhere(node, id, earlier).await?;
                    }
                    return Ok(taken);
                }
            }
        }
    }

    /// Another node's undecided attempt that holds the row of a client id.
    async fn undecided_elsewhere(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
    ) -> Result<Option<Attempt>> {
        if self.context.is_alone() || self.context.breaks(Broken::BeginsAnewInSilence) {
            return Ok(None);
        }
        let (decision, _) = node.store.decision(id).await?;
        let elsewhere =
            decision.filter(|decision| decision.is_undecided() && decision.attempt.node != node.id);
        Ok(elsewhere.map(|decision| decision.attempt))
    }

    /// T-5: the node of an attempt whose row was taken must answer no more calls of it. A node that
    /// can no longer answer calls need not be told. Errors: `Unavailable` if the message does not
    /// arrive.
    async fn end_elsewhere(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        earlier: Attempt,
    ) -> Result<()> {
        let call = Call {
            id: id.clone(),
            attempt: Some(earlier),
        };
        let asked = self.context.clock.monotonic();
        let mut delays = Store::delays();
        loop {
            let Some(owner) = self.owner_of(node, earlier.node).await? else {
                return Ok(());
            };
            match self.forward(&owner, &call, Asked::Status).await {
                Ok(None | Some(Said::Outcome(Outcome::Open)))
                | Err(Error::Unavailable(_) | Error::TooMuchBuffered) => {}
                Ok(Some(_)) | Err(_) => return Ok(()),
            }
            node.store.check_fence()?;
            if self.context.clock.monotonic().since(asked)
                > self.context.config.commit_answer_timeout
            {
                return Err(Error::unavailable(
                    "the node of an earlier attempt does not answer",
                ));
            }
            self.context.pause(&mut delays).await;
        }
    }

    /// The row of a client id is decided finally.
    async fn decided_before(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        decision: Option<&Decision>,
        point: DurabilityPoint,
    ) -> Result<Read<Begun>> {
        let Some(Decision {
            attempt,
            state: State::Committed(stored),
            result,
            ..
        }) = decision
        else {
            return Err(Error::Corrupt(
                "a client id was refused by a row that is not committed".into(),
            ));
        };
        self.apply_committed(node, id, *attempt, stored, point)
            .await?;
        Ok(Read {
            value: Begun::Committed {
                id: id.clone(),
                after: stored.after(),
                result: result.clone(),
            },
            point,
        })
    }

    /// A caller that learns of a commit sees it from then on (T5), even while the commit still
    /// waits for its answer from the store. Commits within the applied frontier are skipped: their
    /// versions may be collected already.
    pub(crate) async fn apply_committed(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
        stored: &StoredRecord,
        point: DurabilityPoint,
    ) -> Result<()> {
        if self.cache.lock().applied.contains(stored.position) {
            return Ok(());
        }
        let record = Arc::new(node.store.record(id, attempt, stored, point).await?);
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.index.apply(&record);
        }
        Ok(())
    }

    /// Opens an attempt under an id that no other caller knows.
    pub(crate) fn open_generated(
        self: &Arc<Self>,
        node: &Arc<Node>,
        terms: Terms,
    ) -> Result<(TransactionId, Attempt)> {
        let attempt = node.next_attempt();
        let random = self.context.entropy.next_u64() as u16;
        let id = TransactionId::generate(self.context.clock.now(), attempt, random);
        self.open(node, &id, attempt, None, terms)?;
        Ok((id, attempt))
    }

    /// Opens an attempt. From here on the horizon is at most the present frontier. The earlier
    /// attempt of its id ends.
    fn open(
        self: &Arc<Self>,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
        began: Option<u64>,
        terms: Terms,
    ) -> Result<()> {
        let now = self.context.clock.monotonic();
        let (transaction, earlier) = {
            let mut attempts = self.attempts.lock();
            if !attempts.are_of(node.id) {
                return Err(Error::unavailable("the node restarts"));
            }
            attempts.check_room(&self.context.config, Some(id))?;
            let (applied, superseded_bytes) = self.cache.frontier();
            let start = Start {
                place: attempts.next_place(),
                applied,
                superseded_bytes,
                at: now,
            };
            let transaction =
                Transaction::new(id.clone(), attempt, began, Arc::clone(node), start, terms);
            let transaction = Arc::new(transaction);
            let earlier = attempts.insert(&transaction);
            (transaction, earlier)
        };
        self.context.counters.lock().begun += 1;
        self.arm_timer();
        if let Some(earlier) = earlier {
            self.begin_anew(&earlier, &transaction);
        }
        Ok(())
    }

    /// T-5: deletes what an earlier attempt had written. One that is committing is left to its row.
    fn begin_anew(self: &Arc<Self>, earlier: &Arc<Transaction>, transaction: &Transaction) {
        let mut state = earlier.state();
        if state.phase != Phase::Open || self.context.breaks(Broken::CommitsAnyAttempt) {
            return;
        }
        if self.context.breaks(Broken::KeepsEarlierBuffer) {
            transaction.state().buffer = std::mem::take(&mut state.buffer);
        }
        self.end_begun_anew(earlier, &mut state);
    }

    fn end_begun_anew(
        self: &Arc<Self>,
        earlier: &Arc<Transaction>,
        state: &mut transaction::State,
    ) {
        self.end(
            earlier,
            state,
            &Err(Error::TransactionFinished(Outcome::BegunAnew)),
        );
        if let Some(slot) = earlier.began {
            // The row belongs to the later attempt, and this one wrote nothing.
            earlier.node.settled(slot);
        }
    }

    /// Ends the local attempt of a client id that was begun anew at another node: the row then
    /// belongs to the later attempt.
    pub(crate) async fn end_if_begun_elsewhere(self: &Arc<Self>, call: &Call) -> Result<()> {
        if self.context.is_alone() || call.id.generated().is_some() {
            return Ok(());
        }
        let AttemptState::Active(transaction) = self.find(call) else {
            return Ok(());
        };
        let (row, _) = transaction.node.store.decision(&call.id).await?;
        if row.is_some_and(|row| row.attempt != transaction.attempt) {
            let mut state = transaction.state();
            if state.phase == Phase::Open {
                self.end_begun_anew(&transaction, &mut state);
            }
        }
        Ok(())
    }
}
