//! Begin, and begin anew.
//!
//! A begin of a name takes its row and says so in the log, in one round: whoever begins it later takes the row over,
//! and every earlier attempt's commit finds it so, wherever it is (T-5). A generated id needs no row before its
//! commit: nobody else knows it.
//!
//! Dies between the two writes: a row without a state, which the resolver of the log forgets, or the next begin of the
//! name takes over; or an entry without a row, which is nothing.

use std::sync::Arc;

use ports::DurabilityPoint;

use crate::{
    Error, Result,
    attempts::{
        open_attempts::{BeginLock, Found},
        transaction::{self, Phase, Start, Terms, Transaction},
    },
    broken::Broken,
    calls::Calls,
    model::{
        After, Attempt, Begin, Begun, Call, Isolation, KeyspaceId, NodeId, Outcome, Position,
        Shown, Timestamp, TransactionId,
    },
    node::Node,
    storage::{
        node_log::Draft,
        records::StoredRecord,
        store::{Decided, Decision, State, Store},
    },
};

/// How many begins of a full node may ask the store at a time whether they have committed; the others are refused at once.
pub(crate) const FULL_LOOK_UPS_MAX: usize = 4;
/// By how much a client's token may lie beyond the clock.
const TOKEN_SLACK_MS: u64 = 10_000;

impl Calls {
    pub(crate) async fn begin(self: &Arc<Self>, begin: Begin) -> Result<Shown<Begun>> {
        let node = self.serving.node()?;
        self.cluster.may_answer(&node)?;
        self.cluster.check_clock()?;
        let room = self
            .attempts
            .lock()
            .check_room(&self.context.config, begin.id.as_ref());
        if let Err(full) = room {
            // Whom nobody asks the store for may have committed, and hears so once fewer come at a time.
            let Ok(_look_up) = self.full_look_ups.try_acquire() else {
                return Err(full);
            };
            let before = self.committed_before(&node, begin.id.as_ref()).await?;
            return before.ok_or(full);
        }
        let terms = Box::pin(self.agree(&node, &begin)).await?;
        let Some(id) = begin.id else {
            let attempt = node.next_attempt();
            let random = self.context.entropy.next_u64() as u16;
            let id = TransactionId::generate(self.context.clock.now(), attempt, random);
            self.open(&node, &id, attempt, None, terms)?;
            return Ok(Shown::durable(Begun::Open { id, attempt }));
        };
        let calls = Arc::clone(self);
        let at_work = node.at_work()?;
        self.context
            .spawn_and_wait(async move {
                let _at_work = at_work;
                let lock = calls.attempts.lock().begin_lock(&id);
                let held = Arc::clone(&lock);
                let begun = {
                    let _alone = held.lock().await;
                    Box::pin(calls.begin_named(&node, &id, terms)).await
                };
                drop(held);
                calls.end_begin(&id, lock);
                begun
            })
            .await
    }

    pub(crate) fn end_begin(&self, id: &TransactionId, lock: BeginLock) {
        self.attempts.lock().end_begin(id, lock);
    }

    /// What the begin of a name is answered that has committed, which takes no place; none: it has not.
    async fn committed_before(
        &self,
        node: &Arc<Node>,
        id: Option<&TransactionId>,
    ) -> Result<Option<Shown<Begun>>> {
        let Some(id) = id else { return Ok(None) };
        match node.store.decision(id).await? {
            (
                Some(
                    decision @ Decision {
                        state: State::Committed(_),
                        ..
                    },
                ),
                point,
            ) => self
                .decided_before(node, id, Some(&decision), point)
                .await
                .map(Some),
            _ => Ok(None),
        }
    }

    /// Makes sure that the new transaction sees the client's last commit, and that its own comes above it.
    async fn see(&self, node: &Arc<Node>, begin: &Begin) -> Result<Timestamp> {
        let Some(after) = begin.after else {
            return Ok(Timestamp::default());
        };
        let After { version, position } = after;
        let mut is_heard = self.cache.lock().heard.contains(position);
        if !is_heard
            && self
                .cluster
                .lock()
                .received(&self.cache.lock().heard, position.log)
                >= position.slot
        {
            // Nobody who asks for it waits until it would be merged with others.
            self.cluster.lock().merge_gathered(node, &self.cache);
            is_heard = self.cache.lock().heard.contains(position);
        }
        if !is_heard
            && !self.context.is_alone()
            && position.log != node.id
            && position.log <= NodeId::MAX
        {
            is_heard = self.cluster.follow(node, position.log).await? >= position.slot;
        } else if !is_heard && !self.context.is_alone() && position.log == NodeId::SEQUENCER {
            self.serializable.follow_sequencer(node).await?;
            is_heard = self.cache.lock().heard.contains(position);
        }
        let is_known = match version.slot() {
            Some(slot) => {
                position
                    == Position {
                        log: NodeId::SEQUENCER,
                        slot,
                    }
                    && is_heard
            }
            None => position.log == node.id || is_heard,
        };
        // A token from nowhere must not push the clock out of all reach.
        let timestamp = version.timed();
        if !is_known || !node.log.is_plausible(timestamp, TOKEN_SLACK_MS) {
            return Err(Error::Invalid("the commit token is not of this store"));
        }
        node.log.observe(timestamp);
        Ok(timestamp)
    }

    /// What a begin asks for, if it can be had. A serializable one reads at what is heard after this (T-4).
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
            self.serializable.sequence_keyspace(node, *keyspace).await?;
        }
        if !self.context.config.is_broken(Broken::ReadsAtWhatItHeard) {
            self.serializable.follow_sequencer(node).await?;
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
    ) -> Result<Shown<Begun>> {
        let attempt = node.next_attempt();
        let (placed, taken) = futures_util::join!(
            node.log.append(Draft::began(id.clone(), attempt)),
            self.take_row(node, id, attempt),
        );
        let opened = match (&placed, &taken) {
            (Ok(placed), Ok(Decided::Done(point))) => {
                let opened = self.open(node, id, attempt, Some(placed.slot), terms);
                opened.map(|()| Shown {
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
        if !matches!(
            &opened,
            Ok(Shown {
                value: Begun::Open { .. },
                ..
            })
        ) {
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

    /// Takes the row of a name. An earlier attempt that was handed over is decided first.
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
                    self.serializable.close_prepared(node, id, earlier).await?;
                }
                // Somebody else has taken it meanwhile.
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

    /// The attempt of another node that has the row of a name, and is not decided.
    async fn undecided_elsewhere(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
    ) -> Result<Option<Attempt>> {
        if self.context.is_alone() || self.context.config.is_broken(Broken::BeginsAnewInSilence) {
            return Ok(None);
        }
        let (decision, _) = node.store.decision(id).await?;
        let elsewhere =
            decision.filter(|decision| decision.is_undecided() && decision.attempt.node != node.id);
        Ok(elsewhere.map(|decision| decision.attempt))
    }

    /// T-5: the node of an attempt whose row was taken answers no more calls of it. One that may not answer at all any more need
    /// not be told. Errors: `Unavailable` if it does not hear.
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
            let Some(owner) = self.cluster.owner_of(node, earlier).await? else {
                return Ok(());
            };
            match self
                .forward_status(&owner, &call)
                .await
                .map_err(Error::from)
            {
                Ok(Outcome::Open) | Err(Error::Unavailable(_) | Error::TooMuchBuffered) => {}
                Ok(_) | Err(_) => return Ok(()),
            }
            node.store.standing()?;
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

    /// The row of a name is decided for good.
    async fn decided_before(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        decision: Option<&Decision>,
        point: DurabilityPoint,
    ) -> Result<Shown<Begun>> {
        let Some(Decision {
            attempt,
            state: State::Committed(stored),
            ..
        }) = decision
        else {
            return Err(Error::Corrupt(
                "a name was refused by a row that is not committed".into(),
            ));
        };
        self.hear_committed(node, id, *attempt, stored, point)
            .await?;
        Ok(Shown {
            value: Begun::Committed {
                id: id.clone(),
                after: stored.after(),
            },
            point,
        })
    }

    /// Whoever is told that something is committed sees it from then on (T5), also while the commit itself still waits
    /// for its answer from the store. What is heard already is not news: its versions may be collected.
    pub(crate) async fn hear_committed(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
        stored: &StoredRecord,
        point: DurabilityPoint,
    ) -> Result<()> {
        if self.cache.lock().heard.contains(stored.position) {
            return Ok(());
        }
        let record = Arc::new(node.store.record(id, attempt, stored, point).await?);
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.index.hear(&record);
        }
        Ok(())
    }

    /// Opens an attempt; from here on the horizon is at most what is heard now. The earlier attempt of its id ends.
    pub(crate) fn open(
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
                return Err(Error::unavailable("the node starts over"));
            }
            attempts.check_room(&self.context.config, Some(id))?;
            let (heard, superseded_bytes) = self.cache.frontier();
            let start = Start {
                place: attempts.next_place(),
                heard,
                superseded_bytes,
                at: now,
            };
            let transaction =
                Transaction::new(id.clone(), attempt, began, Arc::clone(node), start, terms);
            let transaction = Arc::new(transaction);
            let earlier = attempts.insert(&transaction);
            (transaction, earlier)
        };
        self.context.counters.begun();
        self.arm_timer();
        if let Some(earlier) = earlier {
            self.begin_anew(&earlier, &transaction);
        }
        Ok(())
    }

    /// T-5: what an earlier attempt had written goes. One that is committing is left to its row.
    fn begin_anew(self: &Arc<Self>, earlier: &Arc<Transaction>, transaction: &Transaction) {
        let mut state = earlier.state();
        if state.phase != Phase::Open || self.context.config.is_broken(Broken::CommitsAnyAttempt) {
            return;
        }
        if self.context.config.is_broken(Broken::KeepsEarlierBuffer) {
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
            // The row is the later attempt's, and nothing of this one was written.
            earlier.node.settled(slot);
        }
    }

    /// Of a name that is open here, and that somebody has begun anew at another node, the row is the later attempt's: then
    /// the one here ends.
    pub(crate) async fn end_if_begun_elsewhere(self: &Arc<Self>, call: &Call) -> Result<()> {
        if self.context.is_alone() || call.id.generated().is_some() {
            return Ok(());
        }
        let Found::Here(transaction) = self.find(call) else {
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
