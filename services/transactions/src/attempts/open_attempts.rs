//! All attempts of this node: open ones in the order of their begins, and those that ended lately.
//!
//! Invariants
//! - An id has one latest attempt here. Earlier ones may still be committing: their rows refuse
//!   them.
//! - Attempts that have not ended are in the order in which they captured the frontier, so the
//!   first has the oldest.
//! - The horizon is the frontier of the first reader. Readers are attempts, except for evicted
//!   ones, and plain reads that had to be repeated. It only grows, because the applied frontier
//!   does.
//!
//! Bounds: `open_max` attempts, then a begin is refused. `ended_lately_max` outcomes: those older
//! than `retry_window` are dropped as others arrive; for a dropped one the row is read.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use ports::Monotonic;
use tokio::sync;

use crate::{
    Config, Error, Result,
    attempts::transaction::{CommitAnswer, Transaction, outcome},
    model::{Attempt, Call, NodeId, Outcome, TransactionId},
    storage::frontier::Frontier,
};

/// Held while a client id is begun, so that two begins of one id have the same order in memory as
/// in its row.
pub(crate) type BeginLock = Arc<sync::Mutex<()>>;

/// The attempts of this node, and whether it accepts more.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Open>);

impl Attempts {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock()
    }

    pub(crate) fn start(&self, node: NodeId) {
        self.lock().serving = Some(node);
    }

    /// Accepts no more attempts. Returns the open ones.
    pub(crate) fn close(&self) -> Vec<Arc<Transaction>> {
        let mut open = self.lock();
        open.serving = None;
        open.all()
    }

    /// No node serves. Forgets everything except running begins, and returns the attempts that were
    /// open.
    pub(crate) fn stop(&self) -> Vec<Arc<Transaction>> {
        let mut open = self.lock();
        open.serving = None;
        open.clear()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Open {
    /// The node that they belong to; `None` if no more are accepted.
    serving: Option<NodeId>,
    /// Whether a task ends the attempts that time out.
    pub(crate) is_timer_armed: bool,
    latest: BTreeMap<TransactionId, Arc<Transaction>>,
    /// Attempts that have not ended.
    order: BTreeMap<u64, Arc<Transaction>>,
    /// The readers that keep versions from collection, each with its frontier and the bytes
    /// superseded at its begin.
    readers: BTreeMap<u64, (Arc<Frontier>, u64)>,
    places: u64,
    lately: BTreeMap<TransactionId, (Attempt, CommitAnswer)>,
    lately_order: VecDeque<(Monotonic, TransactionId, Attempt)>,
    beginning: BTreeMap<TransactionId, BeginLock>,
}

/// The state of a call's attempt, as this node knows it.
#[derive(Debug)]
pub(crate) enum AttemptState {
    /// It has not ended.
    Active(Arc<Transaction>),
    /// It ended lately.
    Ended(CommitAnswer),
    /// It is not the latest.
    BegunAnew,
    /// This node does not know it.
    Unknown,
}

impl Open {
    /// Whether they belong to `node` and it accepts more.
    pub(crate) fn are_of(&self, node: NodeId) -> bool {
        self.serving == Some(node)
    }

    /// Checks that one more may begin; an attempt that replaces another of its id is not one more.
    ///
    /// Errors: `TooManyOpen`.
    pub(crate) fn check_room(&self, config: &Config, id: Option<&TransactionId>) -> Result<()> {
        let takes_a_place = || id.is_some_and(|id| self.latest.contains_key(id));
        if self.order.len() < config.open_max || takes_a_place() {
            Ok(())
        } else {
            Err(Error::TooManyOpen)
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Up to `most` attempts that have not ended, in the order of their begins, after this place.
    pub(crate) fn page(&self, after: u64, most: usize) -> Vec<Arc<Transaction>> {
        let following = self.order.range((Excluded(after), Unbounded));
        following
            .take(most)
            .map(|(_, open)| Arc::clone(open))
            .collect()
    }

    pub(crate) fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// The frontier of the oldest reader, and the bytes superseded then; `None` without readers.
    pub(crate) fn horizon(&self) -> Option<&(Arc<Frontier>, u64)> {
        self.readers.values().next()
    }

    /// The oldest attempt that keeps versions from being collected.
    pub(crate) fn oldest_reader(&self) -> Option<&Arc<Transaction>> {
        self.readers.keys().find_map(|place| self.order.get(place))
    }

    /// `transaction` no longer keeps anything from being collected.
    pub(crate) fn overtake(&mut self, transaction: &Transaction) {
        transaction.overtake();
        self.readers.remove(&transaction.start.place);
    }

    /// Keeps the versions that a reader at frontier `applied` may need, until [`Open::unpin`].
    pub(crate) fn pin(&mut self, applied: Arc<Frontier>, superseded_bytes: u64) -> u64 {
        let place = self.next_place();
        self.readers.insert(place, (applied, superseded_bytes));
        place
    }

    /// Releases the versions that [`Open::pin`] kept.
    pub(crate) fn unpin(&mut self, place: u64) {
        self.readers.remove(&place);
    }

    /// Opens `transaction`. Returns the earlier attempt of its id, if one was here.
    pub(crate) fn insert(&mut self, transaction: &Arc<Transaction>) -> Option<Arc<Transaction>> {
        self.lately.remove(&transaction.id);
        self.order
            .insert(transaction.start.place, Arc::clone(transaction));
        let start = &transaction.start;
        self.readers.insert(
            start.place,
            (Arc::clone(&start.applied), start.superseded_bytes),
        );
        self.latest
            .insert(transaction.id.clone(), Arc::clone(transaction))
    }

    pub(crate) fn find(&self, call: &Call) -> AttemptState {
        let is_asked = |attempt: Attempt| call.attempt.is_none_or(|asked| asked == attempt);
        if let Some(transaction) = self.latest.get(&call.id) {
            let found = is_asked(transaction.attempt);
            return if found {
                AttemptState::Active(Arc::clone(transaction))
            } else {
                AttemptState::BegunAnew
            };
        }
        match self.lately.get(&call.id) {
            // The latest is another's.
            Some((_, Err(Error::TransactionFinished(Outcome::BegunAnew))))
                if call.attempt.is_none() =>
            {
                AttemptState::Unknown
            }
            Some((attempt, answer)) if is_asked(*attempt) => AttemptState::Ended(answer.clone()),
            Some(_) => AttemptState::BegunAnew,
            None => AttemptState::Unknown,
        }
    }

    /// Breaks a rule, for tests: finds the attempt of a call even if it is not the latest.
    pub(crate) fn find_any(&self, call: &Call) -> AttemptState {
        let is_asked = |transaction: &&Arc<Transaction>| {
            call.attempt == Some(transaction.attempt) && transaction.id == call.id
        };
        match self.order.values().find(is_asked) {
            Some(transaction) => AttemptState::Active(Arc::clone(transaction)),
            None => self.find(call),
        }
    }

    /// `transaction` has ended with `answer`.
    pub(crate) fn end(
        &mut self,
        transaction: &Transaction,
        answer: &CommitAnswer,
        now: Monotonic,
        config: &Config,
    ) {
        self.order.remove(&transaction.start.place);
        self.readers.remove(&transaction.start.place);
        let is_latest = self
            .latest
            .get(&transaction.id)
            .is_some_and(|latest| latest.attempt == transaction.attempt);
        if !is_latest {
            return;
        }
        self.latest.remove(&transaction.id);
        // An uncertain outcome is looked up instead.
        if outcome(answer).is_some() {
            self.lately.insert(
                transaction.id.clone(),
                (transaction.attempt, answer.clone()),
            );
            self.lately_order
                .push_back((now, transaction.id.clone(), transaction.attempt));
        }
        self.forget_outcomes(now, config);
    }

    fn forget_outcomes(&mut self, now: Monotonic, config: &Config) {
        while let Some((ended, id, attempt)) = self.lately_order.front() {
            if self.lately_order.len() <= config.ended_lately_max
                && now.since(*ended) <= config.retry_window
            {
                return;
            }
            if self
                .lately
                .get(id)
                .is_some_and(|(latest, _)| latest == attempt)
            {
                self.lately.remove(id);
            }
            self.lately_order.pop_front();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Transaction>> {
        self.order.values().cloned().collect()
    }

    /// The lock of a client id that is being begun.
    pub(crate) fn begin_lock(&mut self, id: &TransactionId) -> BeginLock {
        Arc::clone(self.beginning.entry(id.clone()).or_default())
    }

    /// Returns the lock of a client id, which is dropped with its last holder.
    pub(crate) fn end_begin(&mut self, id: &TransactionId, lock: BeginLock) {
        drop(lock);
        if self
            .beginning
            .get(id)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            self.beginning.remove(id);
        }
    }

    fn clear(&mut self) -> Vec<Arc<Transaction>> {
        self.latest.clear();
        self.lately.clear();
        self.lately_order.clear();
        self.readers.clear();
        std::mem::take(&mut self.order).into_values().collect()
    }
}
