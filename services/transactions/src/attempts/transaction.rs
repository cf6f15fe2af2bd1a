//! One attempt of a transaction: open, committing, ended.
//!
//! Invariants
//! - An attempt ends once, and what it ended as never changes here.
//! - A choice of a version and its record in the read set are one step under the attempt's lock, so that parallel
//!   reads of one attempt see each other's choices.
//!
//! Locks: the attempt's before the view's.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use ports::{DurabilityPoint, Monotonic};
use tokio::sync::{RwLock, watch};

use crate::{
    Error, Result,
    attempts::{read_set::ReadSet, spills::Spills, write_buffer::WriteBuffer},
    effects::EffectBuffer,
    model::{
        Attempt, Committed, Key, KeyspaceId, NodeId, Outcome, Shown, Timestamp, TransactionId,
    },
    node::Node,
    packs,
    storage::frontier::Heard,
};

/// What a commit of an ended attempt is answered with.
pub(crate) type Answer = Result<Committed>;

/// One attempt.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) id: TransactionId,
    pub(crate) attempt: Attempt,
    /// Whether the client chose the id: then its row was taken by the begin, which stands in this slot.
    pub(crate) began: Option<u64>,
    pub(crate) node: Arc<Node>,
    pub(crate) start: Start,
    pub(crate) terms: Terms,
    /// Shared by whoever writes its values ahead, taken by who waits for them; only once it takes no more writes.
    pub(crate) flights: Arc<RwLock<()>>,
    /// It no longer keeps the versions it may need from being collected.
    overtaken: AtomicBool,
    state: Mutex<State>,
    /// It counts, and rests on this point, which may not be durable yet.
    decided: watch::Sender<Option<Shown<Committed>>>,
    ended: watch::Sender<Option<Answer>>,
}

/// What a begin asked for, and was granted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// The commit is above this.
    pub(crate) after: Timestamp,
    /// Of a serializable one: where it reads and writes.
    pub(crate) keyspaces: Option<Arc<[KeyspaceId]>>,
}

/// Where the begin of an attempt stands among everything else.
#[derive(Debug)]
pub(crate) struct Start {
    /// Its place among the begins of this node.
    pub(crate) place: u64,
    /// What was heard: all of that is visible to it.
    pub(crate) heard: Arc<Heard>,
    /// How many bytes had been superseded on this node.
    pub(crate) superseded_bytes: u64,
    /// When.
    pub(crate) at: Monotonic,
}

/// What changes about an attempt.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) reads: ReadSet,
    pub(crate) buffer: WriteBuffer,
    pub(crate) effects: EffectBuffer,
    pub(crate) spills: Spills,
    pub(crate) packed: packs::Written,
    pub(crate) last_call: Monotonic,
}

/// How far an attempt is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Committing,
    Ended(Answer),
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

    /// Its writes count from now on, and last once `point` is durable.
    pub(crate) fn decide(&self, committed: Committed, point: DurabilityPoint) {
        self.decided.send_replace(Some(Shown {
            value: committed,
            point,
        }));
    }

    /// Waits until its writes count, or it has ended otherwise.
    pub(crate) async fn decided(&self) -> Result<Shown<Committed>> {
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
            answer = self.ended() => answer.map(Shown::durable),
        }
    }

    /// From now on versions go that it may need: what it finds missing is no absence.
    pub(crate) fn overtake(&self) {
        self.overtaken.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Ordering::SeqCst)
    }

    pub(crate) fn is_serializable(&self) -> bool {
        self.terms.keyspaces.is_some()
    }

    /// The slot of the sequencer's log at which it reads; none: it is read-atomic.
    pub(crate) fn read_at(&self) -> Option<u64> {
        self.is_serializable()
            .then(|| self.start.heard.through(NodeId::SEQUENCER))
    }

    /// Errors: `Invalid` if `key` lies where a serializable transaction did not say that it would be.
    pub(crate) fn check_keyspace(&self, key: &Key) -> Result<()> {
        match &self.terms.keyspaces {
            Some(named) if !named.contains(&key.keyspace()) => Err(Error::Invalid(
                "the begin of this serializable transaction did not name the keyspace",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_named(&self) -> bool {
        self.began.is_some()
    }

    /// When it runs out of time if nobody calls.
    pub(crate) fn deadline(&self, state: &State, config: &crate::Config) -> Monotonic {
        (state.last_call + config.idle_timeout).min(self.start.at + config.life_max)
    }

    /// Says what it ended as; what it had read and buffered goes. Returns how many bytes were buffered.
    pub(crate) fn end(&self, state: &mut State, answer: &Answer) -> usize {
        state.phase = Phase::Ended(answer.clone());
        state.reads = ReadSet::default();
        let (buffer, effects) = state.take_written();
        self.ended.send_replace(Some(answer.clone()));
        buffer.bytes() + effects.bytes()
    }

    /// Nothing is left to do for its entries in the log; `slot` is its commit's.
    pub(crate) fn settle(&self, slot: Option<u64>) {
        for slot in self.began.into_iter().chain(slot) {
            self.node.settled(slot);
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Answer {
        let mut ended = self.ended.subscribe();
        let answer = ended
            .wait_for(Option::is_some)
            .await
            .expect("the attempt itself holds the sender");
        answer.clone().expect("waited for")
    }
}

impl State {
    /// A call arrives at `now`. Errors: the attempt takes no reads and writes any more.
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

    /// What it wrote and sends, for who commits it.
    pub(crate) fn take_written(&mut self) -> (WriteBuffer, EffectBuffer) {
        (
            std::mem::take(&mut self.buffer),
            std::mem::take(&mut self.effects),
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

/// What an answer to a commit says about the attempt; none: not what became of it.
pub(crate) fn outcome(answer: &Answer) -> Option<Outcome> {
    match answer {
        Ok(_) => Some(Outcome::Committed),
        Err(Error::TransactionFinished(outcome)) => Some(*outcome),
        Err(Error::Conflict | Error::SnapshotTooOld) => Some(Outcome::Aborted),
        Err(_) => None,
    }
}

/// What a read or write is refused with.
pub(crate) fn refusal(answer: &Answer) -> Error {
    match answer {
        Ok(_) => Error::TransactionFinished(Outcome::Committed),
        Err(Error::Conflict | Error::SnapshotTooOld) => {
            Error::TransactionFinished(Outcome::Aborted)
        }
        Err(error) => error.clone(),
    }
}
