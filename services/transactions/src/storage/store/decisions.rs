//! Decision rows.
//!
//! Invariants
//! - A decision row is decided by one conditional write, and never changes after that (rule T-2):
//!   every transition of `docs/design/0003-transactions.md`, section 4.2, is one function here.
//! - A row is dropped only once no node can decide about it any more, and no committed data depend
//!   on it. `retention` checks that, and conditions on the row's attempt and state enforce it here.

use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Item, Update,
    key_value::{Action, Outcome, Test},
};

use crate::{
    Error, Result,
    model::{Attempt, Outcome as Finished, TransactionId},
    storage::records::{CommitRecord, StoredRecord, decode, encode},
};

use super::{Store, corrupt};

/// The attempt that may decide.
const ATTEMPT: &str = "attempt";
/// The decision; absent if there is none yet.
const STATE: &str = "state";
/// The record of the commit.
const RECORD: &str = "record";
/// The result that its caller keeps with the commit. It is written no later than the decision, and
/// counts only if that attempt has committed.
const RESULT: &str = "result";
/// One: its window is over, and it is dropped with the last of its versions.
const RELEASED: &str = "released";

const COMMITTED: i64 = 1;
const ABORTED: i64 = 2;
const PREPARED: i64 = 3;

/// How a transaction was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Undecided,
    Committed(StoredRecord),
    Aborted,
    /// The sequencer decides: its log is authoritative until the row is settled.
    Prepared,
}

/// A decision row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) attempt: Attempt,
    pub(crate) state: State,
    /// The result that the commit keeps, if it has one.
    pub(crate) result: Option<Bytes>,
    /// Whether its window is over, and it is dropped with the last of its versions.
    pub(crate) is_released: bool,
}

/// The result of a transition of a decision row: done, or the present row. Both depend on the
/// point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decided {
    Done(DurabilityPoint),
    Refused(Option<Decision>, DurabilityPoint),
}

/// The answer to an attempt that cannot decide its row any more. The row of a client id disappears
/// before the commit only if a later attempt took it and has ended as well: a log's resolver closes
/// committing attempts.
pub(crate) fn refused(row: Option<&Decision>, id: &TransactionId, attempt: Attempt) -> Error {
    Error::TransactionFinished(match row {
        Some(row) if row.attempt != attempt => Finished::BegunAnew,
        None if id.generated().is_none() => Finished::BegunAnew,
        _ => Finished::Aborted,
    })
}

impl Store {
    /// The decision row of `id`, and the point that this depends on.
    pub(crate) async fn decision(
        &self,
        id: &TransactionId,
    ) -> Result<(Option<Decision>, DurabilityPoint)> {
        let read = self.get(&self.buckets.decision(id)).await?;
        Ok((
            read.value.map(|item| Decision::decode(&item)).transpose()?,
            read.point,
        ))
    }

    /// The record of `attempt`, if it has committed `id`.
    pub(crate) async fn committed(
        &self,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<Option<CommitRecord>> {
        let (decision, point) = self.decision(id).await?;
        match decision.filter(|decision| decision.attempt == attempt) {
            Some(Decision {
                state: State::Committed(stored),
                ..
            }) => self.record(id, attempt, &stored, point).await.map(Some),
            _ => Ok(None),
        }
    }

    /// A committed row as the record that memory shares.
    pub(crate) async fn record(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        stored: &StoredRecord,
        point: DurabilityPoint,
    ) -> Result<CommitRecord> {
        let writes = self.write_set(attempt, &stored.writes).await?;
        Ok(stored.with(id, attempt, writes, point))
    }

    /// `begin(named)`: takes the row, unless it is finally decided.
    pub(crate) async fn begin_named(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        earlier: Option<Attempt>,
    ) -> Result<Decided> {
        let mut open = Condition::Any(vec![
            Condition::attribute(STATE, Test::Absent),
            Condition::attribute(STATE, Test::is_integer(ABORTED)),
        ]);
        if let Some(earlier) = earlier {
            let is_its = Condition::attribute(ATTEMPT, Test::is(earlier.to_bytes().to_vec()));
            open = Condition::All(vec![open, is_its]);
        }
        let actions = vec![
            set_attempt(attempt),
            Action::unset(STATE),
            Action::unset(RESULT),
        ];
        self.decide(self.row(id, actions).when(open)).await
    }

    /// `commit`: a generated id's row is absent; a client id's is this attempt's and undecided.
    pub(crate) async fn commit(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        is_named: bool,
        (record, result): (&StoredRecord, Option<&Bytes>),
    ) -> Result<Decided> {
        let update = self.committing(id, attempt, is_named, (record, result));
        // Finding its own commit is success: an answer was lost.
        let decided = self.decide(update).await?;
        Ok(decided.or_found(attempt, |state| matches!(state, State::Committed(_))))
    }

    /// The update that commits.
    pub(crate) fn committing(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        is_named: bool,
        (record, result): (&StoredRecord, Option<&Bytes>),
    ) -> Update {
        let actions = committing(attempt, record)
            .into_iter()
            .chain(keeping(result, is_named));
        self.row(id, actions.collect())
            .when(open(attempt, is_named))
    }

    /// Whether this attempt has committed already: then it is done. Repeated as long as the node
    /// lives.
    pub(crate) async fn is_committed(
        &self,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<Decided> {
        let is_it = decided(attempt, COMMITTED);
        self.decide(Update::check(self.buckets.decision(id), is_it))
            .await
    }

    /// Breaks a rule, for tests: commits even if the row belongs to another attempt.
    pub(crate) async fn commit_any_attempt(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: &StoredRecord,
    ) -> Result<Decided> {
        self.decide(self.row(id, committing(attempt, record))).await
    }

    /// `prepare`: hands the decision to the sequencer, under the same condition as a commit.
    pub(crate) async fn prepare(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        is_named: bool,
        result: Option<&Bytes>,
    ) -> Result<Decided> {
        let prepared = [set_attempt(attempt), Action::set_integer(STATE, PREPARED)];
        let actions = prepared.into_iter().chain(keeping(result, is_named));
        let update = Update::modify(self.buckets.decision(id), actions.collect());
        let decided = self.decide(update.when(open(attempt, is_named))).await?;
        Ok(decided.or_found(attempt, |state| *state == State::Prepared))
    }

    /// `settle` of a commit in the sequencer's log. A row that is settled already stays.
    pub(crate) async fn settle_committed(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: &StoredRecord,
    ) -> Result<()> {
        let update = self.row(id, committing(attempt, record));
        let update = update.when(decided(attempt, PREPARED));
        self.finish(&update).await.map(drop)
    }

    /// `settle` of an attempt that the sequencer does not commit, and never will.
    pub(crate) async fn settle_aborted(
        &self,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<Decided> {
        let actions = vec![Action::set_integer(STATE, ABORTED), Action::unset(RESULT)];
        let update = self.row(id, actions).when(decided(attempt, PREPARED));
        self.finish_decision(&update).await
    }

    /// `close(named)`: aborted, if the row is this attempt's and undecided; `close(generated)`:
    /// aborted, if there is no row.
    pub(crate) async fn close(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        is_named: bool,
    ) -> Result<Decided> {
        let actions = vec![set_attempt(attempt), Action::set_integer(STATE, ABORTED)];
        let update = Update::modify(self.buckets.decision(id), actions);
        self.finish_decision(&update.when(open(attempt, is_named)))
            .await
    }

    /// `forget`: deletes the row of a client id's begin that left nothing, if it is still its own
    /// and undecided. An id that may be a generated one keeps a closed row, because its first owner
    /// could take an absent one for its own.
    pub(crate) async fn forget(&self, id: &TransactionId, attempt: Attempt) -> Result<Decided> {
        if id.generated().is_some() {
            return self.close(id, attempt, true).await;
        }
        self.finish_decision(&Update::delete(self.buckets.decision(id)).when(undecided(attempt)))
            .await
    }

    /// `release`: the window of a commit is over, and versions of it are left. Its result is
    /// dropped.
    pub(crate) async fn release(&self, id: &TransactionId, attempt: Attempt) -> Result<()> {
        let actions = vec![Action::set_integer(RELEASED, 1), Action::unset(RESULT)];
        let update = self.row(id, actions).when(decided(attempt, COMMITTED));
        self.finish(&update).await.map(drop)
    }

    /// `drop(committed)`: none of its writes is left, and the window is over.
    pub(crate) async fn drop_committed(&self, id: &TransactionId, attempt: Attempt) -> Result<()> {
        self.finish(&Update::delete(self.buckets.decision(id)).when(decided(attempt, COMMITTED)))
            .await
            .map(drop)
    }

    /// `drop(aborted)`: no node can commit this attempt any more, and its window is over.
    pub(crate) async fn drop_aborted(&self, id: &TransactionId, attempt: Attempt) -> Result<()> {
        self.finish(&Update::delete(self.buckets.decision(id)).when(decided(attempt, ABORTED)))
            .await
            .map(drop)
    }

    fn row(&self, id: &TransactionId, actions: Vec<Action>) -> Update {
        Update::modify(self.buckets.decision(id), actions)
    }

    async fn decide(&self, update: Update) -> Result<Decided> {
        let (outcome, point) = self.update(update).await?;
        Decided::decode(outcome, point)
    }

    async fn finish_decision(&self, update: &Update) -> Result<Decided> {
        let (outcome, point) = self.finish(update).await?;
        Decided::decode(outcome, point)
    }
}

impl Decision {
    pub(crate) fn has_committed(&self, attempt: Attempt) -> bool {
        self.attempt == attempt && matches!(self.state, State::Committed(_))
    }

    /// Whether it may still be decided.
    pub(crate) fn is_undecided(&self) -> bool {
        self.state == State::Undecided
    }

    /// Whether another attempt may take it.
    pub(crate) fn may_be_begun(&self) -> bool {
        matches!(self.state, State::Undecided | State::Aborted)
    }

    pub(crate) fn decode(item: &Item) -> Result<Self> {
        let attempt = item
            .bytes(ATTEMPT)
            .and_then(|bytes| Attempt::from_bytes(bytes));
        let state = match (item.integer(STATE), item.bytes(RECORD)) {
            (None, _) => State::Undecided,
            (Some(COMMITTED), Some(record)) => State::Committed(decode(record, "a commit record")?),
            (Some(ABORTED), _) => State::Aborted,
            (Some(PREPARED), _) => State::Prepared,
            _ => return Err(corrupt("a decision row's state")),
        };
        let attempt = attempt.ok_or_else(|| corrupt("a decision row's attempt"))?;
        Ok(Self {
            attempt,
            state,
            result: item.bytes(RESULT).cloned(),
            is_released: item.integer(RELEASED).is_some(),
        })
    }
}

impl Decided {
    /// A refusal by the attempt's own row in this state is success.
    fn or_found(self, own: Attempt, is_done: impl Fn(&State) -> bool) -> Self {
        match self {
            Self::Refused(Some(row), point) if row.attempt == own && is_done(&row.state) => {
                Self::Done(point)
            }
            decided => decided,
        }
    }

    fn decode(outcome: Outcome, point: DurabilityPoint) -> Result<Self> {
        Ok(match outcome {
            Outcome::Done(_) => Self::Done(point),
            Outcome::Conflict(item) => {
                Self::Refused(item.map(|item| Decision::decode(&item)).transpose()?, point)
            }
        })
    }
}

fn set_attempt(attempt: Attempt) -> Action {
    Action::set(ATTEMPT, attempt.to_bytes().to_vec())
}

fn committing(attempt: Attempt, record: &StoredRecord) -> Vec<Action> {
    vec![
        set_attempt(attempt),
        Action::set_integer(STATE, COMMITTED),
        Action::set(RECORD, encode(record)),
    ]
}

/// Sets the result of a commit, and removes any other that the row has. A generated id has no row
/// yet.
fn keeping(result: Option<&Bytes>, is_named: bool) -> Option<Action> {
    match result {
        Some(result) => Some(Action::set(RESULT, result.clone())),
        None => is_named.then(|| Action::unset(RESULT)),
    }
}

fn decided(attempt: Attempt, state: i64) -> Condition {
    Condition::All(vec![
        Condition::attribute(ATTEMPT, Test::is(attempt.to_bytes().to_vec())),
        Condition::attribute(STATE, Test::is_integer(state)),
    ])
}

/// The row of an attempt that may still be decided: a generated id has none before that.
fn open(attempt: Attempt, is_named: bool) -> Condition {
    if is_named {
        undecided(attempt)
    } else {
        Condition::Absent
    }
}

fn undecided(attempt: Attempt) -> Condition {
    Condition::All(vec![
        Condition::attribute(ATTEMPT, Test::is(attempt.to_bytes().to_vec())),
        Condition::attribute(STATE, Test::Absent),
    ])
}

#[cfg(test)]
mod tests {
    use simulated::World;

    use super::*;
    use crate::{
        Config, Parts, Service,
        model::{Position, Timestamp, Version},
        storage::records::WriteSet,
    };

    fn record(attempt: Attempt) -> StoredRecord {
        let version = Version {
            timestamp: Timestamp::default(),
            node: attempt.node,
        };
        let position = Position {
            log: attempt.node,
            slot: 1,
        };
        StoredRecord {
            version,
            position,
            writes: WriteSet::Inline(Vec::new()),
            effects: 0,
        }
    }

    /// T19: a repeat of an id never gets the result of another attempt.
    #[test]
    fn a_commit_without_a_result_removes_the_one_that_its_row_has() {
        simulated::run(async {
            let world = World::new(1);
            let parts = Parts {
                key_value: world.key_value(),
                clock: world.clock(),
                entropy: world.entropy(),
            };
            let service = Service::new(parts, Config::default());
            service.start().await.expect("it starts");
            let node = service.engine().calls.serving.node();
            let node = node.expect("it has started");
            let (store, record_of) = (&node.store, record);
            for (name, is_sequenced) in [("decided", false), ("sequenced", true)] {
                let id = TransactionId::new(name.to_owned()).expect("a name");
                let attempt = Attempt {
                    node: node.id,
                    sequence: 1_000,
                };
                let begun = store.begin_named(&id, attempt, None).await;
                assert!(matches!(begun, Ok(Decided::Done(_))), "{begun:?}");
                let left = Action::set(RESULT, Bytes::from_static(b"of another attempt"));
                let left = store.update(store.row(&id, vec![left])).await;
                left.expect("it is written");
                let decided = if is_sequenced {
                    store.prepare(&id, attempt, true, None).await
                } else {
                    let record = record_of(attempt);
                    store.commit(&id, attempt, true, (&record, None)).await
                };
                assert!(matches!(decided, Ok(Decided::Done(_))), "{decided:?}");
                let (row, _) = store.decision(&id).await.expect("it is read");
                assert_eq!(row.expect("it is there").result, None, "{name}");
            }
        });
    }
}
