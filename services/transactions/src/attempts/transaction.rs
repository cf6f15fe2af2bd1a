//! One attempt of a transaction: open, committing, ended.
//!
//! Invariants
//! - An attempt ends once, and its outcome never changes here.
//! - The choice of a version and its record in the read set are one step under the attempt's lock.
//!   Parallel reads of one attempt therefore see each other's choices.
//!
//! Lock order: the attempt's before the view's.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use ports::{DurabilityPoint, Monotonic, Read};
use tokio::sync::{RwLock, watch};

use crate::{
    Error, Result,
    attempts::{read_set::ReadSet, spills::Spills, write_buffer::WriteBuffer},
    effects::EffectBuffer,
    model::{Attempt, Committed, Key, KeyspaceId, NodeId, Outcome, Timestamp, TransactionId},
    node::Node,
    packs,
    storage::frontier::Frontier,
};

/// The answer to a commit of an ended attempt.
pub(crate) type CommitAnswer = Result<Committed>;

#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) id: TransactionId,
    pub(crate) attempt: Attempt,
    /// Set for a client id: the log slot of the begin, which took its row.
    pub(crate) began: Option<u64>,
    pub(crate) node: Arc<Node>,
    pub(crate) start: Start,
    pub(crate) terms: Terms,
    /// Shared by spills; taken exclusively to wait for them, and only once the attempt accepts no
    /// more writes.
    pub(crate) flights: Arc<RwLock<()>>,
    /// Set once it no longer keeps the versions that it may need from collection.
    overtaken: AtomicBool,
    state: Mutex<State>,
    /// Its commit is decided; the point it depends on may not be durable yet.
    decided: watch::Sender<Option<Read<Committed>>>,
    ended: watch::Sender<Option<CommitAnswer>>,
}

/// What a begin requested and was granted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// The commit's timestamp exceeds this.
    pub(crate) after: Timestamp,
    /// The keyspaces that a serializable transaction reads and writes.
    pub(crate) keyspaces: Option<Arc<[KeyspaceId]>>,
}

/// The position of an attempt's begin.
#[derive(Debug)]
pub(crate) struct Start {
    /// Its number among the begins of this node.
    pub(crate) place: u64,
    /// The applied frontier at the begin: all commits within it are visible to the attempt.
    pub(crate) applied: Arc<Frontier>,
    /// The bytes superseded on this node until the begin.
    pub(crate) superseded_bytes: u64,
    pub(crate) at: Monotonic,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) reads: ReadSet,
    pub(crate) buffer: WriteBuffer,
    pub(crate) effects: EffectBuffer,
    /// The result that its commit keeps.
    pub(crate) result: Option<Bytes>,
    pub(crate) spills: Spills,
    pub(crate) packed: packs::Written,
    pub(crate) last_call: Monotonic,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Committing,
    Ended(CommitAnswer),
}

impl Transaction {
    pub(crate) fn new(
        id: TransactionId,
        attempt: Attempt,
        began: Option<u64>,
        node: Arc<Node>,
        start: Start,
        terms: Terms,
    ) -> Self {
        let state = State {
            phase: Phase::Open,
            reads: ReadSet::default(),
            buffer: WriteBuffer::default(),
            effects: EffectBuffer::default(),
            result: None,
            spills: Spills::default(),
            packed: packs::Written::default(),
            last_call: start.at,
        };
        Self {
            id,
            attempt,
            began,
            node,
            start,
            terms,
            flights: Arc::default(),
            overtaken: AtomicBool::new(false),
            state: Mutex::new(state),
            decided: watch::Sender::new(None),
            ended: watch::Sender::new(None),
        }
    }

    /// Its writes take effect from now on, and are permanent once `point` is durable.
    pub(crate) fn decide(&self, committed: Committed, point: DurabilityPoint) {
        self.decided.send_replace(Some(Read {
            value: committed,
            point,
        }));
    }

    /// Waits until its commit is decided, or it has ended otherwise.
    pub(crate) async fn decided(&self) -> Result<Read<Committed>> {
        let mut decided = self.decided.subscribe();
        let shown = async {
            let shown = decided
                .wait_for(Option::is_some)
                .await
                .expect("the attempt itself holds the sender");
            shown.expect("waited for")
        };
        tokio::select! {
            biased;
            shown = shown => Ok(shown),
            answer = self.ended() => answer.map(Read::durable),
        }
    }

    /// From now on versions that it may need are collected, so a missing version no longer means
    /// that the key is absent.
    pub(crate) fn overtake(&self) {
        self.overtaken.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Ordering::SeqCst)
    }

    pub(crate) fn is_serializable(&self) -> bool {
        self.terms.keyspaces.is_some()
    }

    /// The slot of the sequencer's log at which it reads; `None` if it is read-atomic.
    pub(crate) fn read_at(&self) -> Option<u64> {
        self.is_serializable()
            .then(|| self.start.applied.through(NodeId::SEQUENCER))
    }

    /// Errors: `Invalid` if `key` is in a keyspace that a serializable transaction did not declare.
    pub(crate) fn check_keyspace(&self, key: &Key) -> Result<()> {
        match &self.terms.keyspaces {
            Some(named) if !named.contains(&key.keyspace()) => Err(Error::Invalid(
                "the begin of this serializable transaction did not name the keyspace",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn is_named(&self) -> bool {
        self.began.is_some()
    }

    /// When it times out without further calls.
    pub(crate) fn deadline(&self, state: &State, config: &crate::Config) -> Monotonic {
        (state.last_call + config.idle_timeout).min(self.start.at + config.life_max)
    }

    /// Sets its outcome and drops its read set and buffers. Returns how many bytes were buffered.
    pub(crate) fn end(&self, state: &mut State, answer: &CommitAnswer) -> usize {
        state.phase = Phase::Ended(answer.clone());
        state.reads = ReadSet::default();
        let (buffer, effects, result) = state.take_written();
        self.ended.send_replace(Some(answer.clone()));
        buffer.bytes() + effects.bytes() + result.map_or(0, |result| result.len())
    }

    /// Marks its log entries as settled; `slot` is that of its commit.
    pub(crate) fn settle(&self, slot: Option<u64>) {
        for slot in self.began.into_iter().chain(slot) {
            self.node.settled(slot);
        }
    }

    pub(crate) async fn ended(&self) -> CommitAnswer {
        let mut ended = self.ended.subscribe();
        let answer = ended
            .wait_for(Option::is_some)
            .await
            .expect("the attempt itself holds the sender");
        answer.clone().expect("waited for")
    }
}

impl State {
    /// Notes a call at `now`. Errors: the attempt accepts no more reads and writes.
    pub(crate) fn touch(&mut self, now: Monotonic) -> Result<()> {
        match &self.phase {
            Phase::Open => {
                self.last_call = now;
                Ok(())
            }
            Phase::Committing => Err(Error::TransactionFinished(Outcome::Committing)),
            Phase::Ended(answer) => Err(refusal(answer)),
        }
    }

    pub(crate) fn take_written(&mut self) -> (WriteBuffer, EffectBuffer, Option<Bytes>) {
        (
            std::mem::take(&mut self.buffer),
            std::mem::take(&mut self.effects),
            self.result.take(),
        )
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match &self.phase {
            Phase::Open => Outcome::Open,
            Phase::Committing => Outcome::Committing,
            Phase::Ended(answer) => outcome(answer).unwrap_or(Outcome::Committing),
        }
    }
}

/// The outcome that an answer to a commit implies; `None` if it is uncertain.
pub(crate) fn outcome(answer: &CommitAnswer) -> Option<Outcome> {
    match answer {
        Ok(_) => Some(Outcome::Committed),
        Err(Error::TransactionFinished(outcome)) => Some(*outcome),
        Err(Error::Conflict | Error::SnapshotTooOld) => Some(Outcome::Aborted),
        Err(_) => None,
    }
}

/// The refusal of a read or write after this answer.
pub(crate) fn refusal(answer: &CommitAnswer) -> Error {
    match answer {
        Ok(_) => Error::TransactionFinished(Outcome::Committed),
        Err(Error::Conflict | Error::SnapshotTooOld) => {
            Error::TransactionFinished(Outcome::Aborted)
        }
        Err(error) => error.clone(),
    }
}
