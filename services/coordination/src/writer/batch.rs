//! Requests that are decided together: their locks and their outcomes.
//!
//! Waiting requests share writes that cost the same for one as for many. A znode is locked or read,
//! and installed, once for all requests that touch it, and one write of the session's row decides
//! them all.
//!
//! An optimistic batch reads znodes and takes no locks. One transaction decides it and installs its
//! states, if these are as they were read, and may also apply it. Any other batch locks znodes,
//! decides, and then installs and unlocks. Every lock names the first request of the batch. A
//! writer that meets a lock therefore finds all of them in the outbox, or fences all of them out.
//!
//! A batch has the requests of one session. Only an optimistic batch that is applied at once may
//! have those of several sessions, one after the other ([`Batch::begin_session`]).
//!
//! Invariants
//! - A batch never waits for a lock while it holds locks of another request, because waiting
//!   writers could deadlock. When a request meets a held lock, the batch ends before that request.
//!   The request then waits with only its own locks, taken in path order.
//! - A batch is decided completely or not at all.
//! - A batch is decided, installed and unlocked only while the store still has the state that it
//!   was planned from, in particular the locks. Index entries are removed only while it also has
//!   the decision.

mod ancestor_lock;
mod known;
mod size;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ports::{Condition, Result, Update, key_value::Version};

pub(super) use self::known::Known;

use crate::{
    Error,
    broken::Broken,
    dependency::TrackedStore,
    distributor::{Direct, Directly, Distributor, RowDecision},
    records::{Decided, Effect, Holder, NodeState, Submitted, Touched, UpdateId, encode_sized},
    storage::{
        ephemerals, expiring,
        node::{self, Lock, Locking, Seen},
        session::{self, Decision, Row, Together, Transition},
        user_store::UserStore,
    },
};

/// Why a request has no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error("the request is refused: {0:?}")]
    Refused(Refusal),
    /// The request changes nothing and needs no decision.
    #[error("there is nothing to do")]
    Unneeded,
    /// The batch released all locks to wait for one. The request must be planned again.
    #[error("a lock was waited for")]
    Waited,
    #[error("another writer holds a lock that this writer must not wait for")]
    Contended,
    #[error("a store failed: {0}")]
    Failed(#[from] ports::Error),
}

impl From<Error> for PlanError {
    fn from(error: Error) -> Self {
        Self::Refused(Refusal { error, part: None })
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// The number of the part that failed and the number of parts, if it is a multi.
    pub(super) part: Option<(u32, u32)>,
}

/// A znode that the batch has locked or, if it is optimistic, read.
#[derive(Debug)]
struct Held {
    /// The row as an optimistic batch read it. None if it is locked.
    seen: Option<Seen>,
    /// The state when it was locked or read.
    found: Option<NodeState>,
    /// The state that the batch gives it.
    becomes: Option<NodeState>,
    is_touched: bool,
    /// The last request that was planned from it, as an index in the batch.
    planned_by: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Batch<'writer> {
    locking: &'writer Locking,
    lock: Lock,
    /// The most znodes that one transaction can take with the decision, if the batch is optimistic.
    optimistic_max: Option<usize>,
    /// The decision depends on everything observed here, in particular the locks.
    pub(super) store: TrackedStore,
    /// The states that this process installed last, if no other process installs any.
    pub(super) known: Option<&'writer Known>,
    /// The store with the quotas to enforce, if any.
    pub(super) quotas: Option<&'writer UserStore>,
    attach: u64,
    held: BTreeMap<String, Held>,
    /// The outcomes.
    pub(super) decided: Vec<Decided>,
    /// The number of outcomes of sessions before the present one.
    first: usize,
    /// The number of the session's last request, decided before or in this batch.
    pub(super) request: u64,
    closes: bool,
    /// The encoded outcomes, once they are in the session's row.
    outcomes: Vec<Bytes>,
    /// About the encoded length of its outcomes, in bytes.
    pub(super) bytes_len: usize,
    /// Ephemerals of the session that the batch deletes, with the updates that created them.
    deleted: Vec<(UpdateId, String)>,
    /// The index entries of containers and znodes with a time to live that the batch may delete.
    expiring: BTreeMap<String, Version>,
    /// Paths whose locks were waited for, which a multi takes in path order with its others.
    waited_for: BTreeSet<String>,
}

impl<'writer> Batch<'writer> {
    /// An empty batch of requests after those that `row` has decided.
    pub(super) fn new(locking: &'writer Locking, row: &Row, store: TrackedStore) -> Self {
        Self {
            locking,
            lock: Lock::of(next_holder(row)),
            optimistic_max: None,
            store,
            known: None,
            quotas: None,
            attach: row.attach,
            held: BTreeMap::new(),
            decided: Vec::new(),
            first: 0,
            request: row.request,
            closes: false,
            outcomes: Vec::new(),
            bytes_len: 0,
            deleted: Vec::new(),
            expiring: BTreeMap::new(),
            waited_for: BTreeSet::new(),
        }
    }

    /// From now on requests of the session of `row` are added, after those that it has decided.
    pub(super) fn begin_session(&mut self, row: &Row) {
        self.lock = Lock::of(next_holder(row));
        (self.attach, self.request) = (row.attach, row.request);
        self.first = self.len();
    }

    /// The number of the present session's requests.
    pub(super) fn session_len(&self) -> usize {
        self.len() - self.first
    }

    pub(super) fn breaks(&self, rule: Broken) -> bool {
        self.locking.mutant.breaks(rule)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.decided.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.decided.len()
    }

    /// The number of znodes that it has locked or read.
    pub(super) fn znodes(&self) -> usize {
        self.held.len()
    }

    pub(super) fn next_id(&self) -> UpdateId {
        let first = self.lock.holder.request;
        UpdateId {
            sequence: first.sequence + self.session_len() as u64,
            ..first
        }
    }

    /// Makes an empty batch optimistic, if the store's transactions can take a decision with the
    /// states that it installs. Such a batch reads znodes instead of locking them, and never waits.
    /// If a znode is locked, or has changed when the batch is decided, the batch fails as
    /// contended, and the caller plans it again with locks.
    pub(super) fn try_without_locks(&mut self) {
        let limits = self.store.store().limits();
        if limits.transact_across_partitions && self.locking.is_optimistic() {
            self.optimistic_max = limits.transact_items_max.checked_sub(1);
        }
    }

    pub(super) fn is_optimistic(&self) -> bool {
        self.optimistic_max.is_some()
    }

    /// Locks a znode once for the whole batch. Returns the state that the batch has given it so
    /// far.
    pub(super) async fn lock(&mut self, path: &str) -> Result<Option<NodeState>, PlanError> {
        let next = Some(self.len());
        if let Some(held) = self.held.get_mut(path) {
            held.planned_by = next;
            return Ok(held.becomes.clone());
        }
        if let Some(most) = self.optimistic_max {
            if self.held.len() >= most {
                return Err(PlanError::Contended);
            }
            let (seen, found) = self.read(path).await?;
            hold(&mut self.held, path, (Some(seen), found.clone()), next);
            return Ok(found);
        }
        let found = if self.is_empty() {
            self.locking.lock(&mut self.store, path, &self.lock).await?
        } else {
            self.locking
                .try_lock(&mut self.store, path, &self.lock)
                .await?
                .ok_or(PlanError::Contended)?
        };
        hold(&mut self.held, path, (None, found.clone()), next);
        Ok(found)
    }

    /// Reads a znode's row. A known state may be outdated, which the decision's conditions find
    /// out.
    async fn read(&mut self, path: &str) -> Result<(Seen, Option<NodeState>), PlanError> {
        if let Some(known) = self.known.and_then(|known| known.get(path)) {
            return Ok((known.0, Some(known.1)));
        }
        let seen = Seen::read(&mut self.store, path).await?;
        let seen = seen.ok_or(PlanError::Contended)?;
        let found = seen.state()?;
        Ok((seen, found))
    }

    /// Locks znodes for one request in path order, among them those that were waited for since the
    /// batch began. Waits only while the batch has no other request.
    pub(super) async fn lock_all(&mut self, mut paths: BTreeSet<&str>) -> Result<(), PlanError> {
        let waited_for = self.waited_for.clone();
        if self.is_empty() {
            self.release_all().await?;
            paths.extend(waited_for.iter().map(String::as_str));
        }
        for path in paths {
            self.lock(path).await?;
        }
        Ok(())
    }

    /// Locks one more znode for a request that holds locks after it in path order.
    pub(super) async fn lock_another(
        &mut self,
        path: &str,
    ) -> Result<Option<NodeState>, PlanError> {
        if self.is_optimistic() || self.held.contains_key(path) {
            return self.lock(path).await;
        }
        let locking = self.locking;
        let next = Some(self.len());
        match locking.try_lock(&mut self.store, path, &self.lock).await? {
            Some(found) => {
                hold(&mut self.held, path, (None, found.clone()), next);
                Ok(found)
            }
            None if self.is_empty() => {
                self.wait_for(path).await?;
                Err(PlanError::Waited)
            }
            None => Err(PlanError::Contended),
        }
    }

    /// Releases all locks and waits for this one, so that locks are taken in path order.
    ///
    /// The next plan may not touch this znode. [`Batch::install`] and [`Batch::release`] unlock
    /// every held znode in any case.
    async fn wait_for(&mut self, path: &str) -> Result<(), PlanError> {
        self.release_all().await?;
        self.waited_for.insert(path.to_owned());
        let locking = self.locking;
        let found = locking.lock(&mut self.store, path, &self.lock).await?;
        hold(&mut self.held, path, (None, found), None);
        Ok(())
    }

    /// The znodes that a refusal with this id touches. It changes only their last update id.
    fn touched_by_refusal(&self, id: UpdateId) -> Vec<Touched> {
        let seen = self
            .held
            .iter()
            .filter(|(_, held)| held.planned_by == Some(self.len()));
        let mark = |(path, held): (&String, &Held)| {
            let state = held.becomes.clone()?;
            Some(Touched {
                path: path.clone(),
                follows: Some(state.last),
                becomes: Some(NodeState { last: id, ..state }),
            })
        };
        seen.filter_map(mark).collect()
    }

    /// Adds to the znodes that a session's end touches the other znodes that it was planned from.
    pub(super) fn touch_planned_from(&self, touched: &mut Vec<Touched>) {
        if self
            .locking
            .mutant
            .breaks(Broken::EndsBeforeForeignDeletions)
        {
            return;
        }
        let is_touched: BTreeSet<&str> = touched
            .iter()
            .map(|touched| touched.path.as_str())
            .collect();
        let mut marks = self.touched_by_refusal(self.next_id());
        marks.retain(|mark| !is_touched.contains(mark.path.as_str()));
        touched.append(&mut marks);
        touched.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    }

    /// Drops the plan of the next request, which changes nothing.
    pub(super) async fn drop_plan(&mut self) -> Result<()> {
        if self.is_empty() {
            return self.release_all().await;
        }
        self.forget_planned_from();
        Ok(())
    }

    /// Maintains the index of znodes that end by themselves, for a request that is planned to touch
    /// `touched`. New candidates are entered before the decision: a superfluous entry is checked,
    /// but a missing one cannot be found. The entries of deleted candidates are removed after it.
    ///
    /// Only the znode's lock excludes a writer that meanwhile removes the new entry, because the
    /// znode is no candidate yet. So an optimistic batch leaves such requests to one with locks.
    pub(super) async fn index_expiring(&mut self, touched: &[Touched]) -> Result<(), PlanError> {
        for Touched { path, becomes, .. } in touched {
            let before = self.held.get(path).and_then(|held| held.becomes.as_ref());
            let before = before.and_then(NodeState::due_ms);
            let after = becomes.as_ref().map(NodeState::due_ms);
            let is_candidate = before.or(after.flatten()).is_some();
            if is_candidate && self.is_optimistic() && !self.breaks(Broken::IndexesWithoutLocks) {
                return Err(PlanError::Contended);
            }
            match after {
                Some(Some(due_ms))
                    if before.is_none_or(|before| due_ms < before)
                        && !self.breaks(Broken::IndexesWhenDecided) =>
                {
                    expiring::add(&mut self.store, path, due_ms).await?;
                }
                None if before.is_some() => {
                    if let Some(version) = expiring::version(&mut self.store, path).await? {
                        self.expiring.insert(path.clone(), version);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Forgets which znodes the next request was planned from, so that it touches none of them.
    pub(super) fn forget_planned_from(&mut self) {
        self.held
            .values_mut()
            .for_each(|held| held.planned_by = None);
    }

    pub(super) fn add(
        &mut self,
        submitted: &Submitted,
        time_ms: i64,
        outcome: Result<(Effect, Vec<Touched>), Refusal>,
    ) {
        let id = self.next_id();
        let (outcome, touched) = match outcome {
            Ok((effect, touched)) => (Ok(effect), touched),
            Err(Refusal { error, part }) => {
                let outcome = match part {
                    Some((failed, parts)) => Ok(Effect::MultiFailed {
                        failed,
                        parts,
                        error,
                    }),
                    None => Err(error),
                };
                (outcome, self.touched_by_refusal(id))
            }
        };
        let foreign_ephemerals = self.record_deleted(outcome.as_ref().ok());
        self.closes |= matches!(outcome, Ok(Effect::Close { .. }));
        for touched in &touched {
            let held = self
                .held
                .get_mut(&touched.path)
                .expect("a plan locks the znodes that it touches");
            (held.becomes, held.is_touched) = (touched.becomes.clone(), true);
        }
        let decided = Decided {
            id,
            incarnation: self.store.incarnation(),
            fence: self.lock.holder.fence,
            locks: self.lock.holder.request.sequence,
            attach: self.attach,
            request: submitted.request,
            time_ms,
            temporaries: submitted.operation.temporary_objects(),
            outcome,
            touched,
            foreign_ephemerals,
        };
        self.request = self.request.max(submitted.request);
        self.bytes_len += size::decided_len(&decided);
        self.decided.push(decided);
    }

    /// Records the ephemerals of the session that an effect deletes. Returns those of other
    /// sessions as [`Decided::foreign_ephemerals`]. Only a client's deletes remove such ephemerals.
    fn record_deleted(&mut self, effect: Option<&Effect>) -> Vec<(UpdateId, u32)> {
        let deleted = effect.map_or(Vec::new(), Effect::deleted);
        let mut foreign_ephemerals = Vec::new();
        for (place, path) in deleted.into_iter().enumerate() {
            let held = self.held.get(path).and_then(|held| held.becomes.as_ref());
            let Some(create) = held.and_then(NodeState::owner) else {
                if held.is_none() {
                    // An earlier part of the multi created it, perhaps as an ephemeral.
                    self.deleted.push((self.next_id(), path.clone()));
                }
                continue;
            };
            let is_own = create.session == self.lock.holder.request.session;
            if is_own
                || self
                    .locking
                    .mutant
                    .breaks(Broken::DropsIndexEntriesWhenDecided)
            {
                self.deleted.push((create, path.clone()));
            } else {
                foreign_ephemerals.push((create, place as u32));
            }
        }
        foreign_ephemerals
    }

    /// Decides the batch in the session's row, and if it is optimistic also installs its states.
    pub(super) async fn decide(&mut self, row: &Row) -> Result<Together> {
        let encoded = |decided| encode_sized(decided, size::decided_len(decided));
        let decision = Decision {
            request: self.request,
            closes: self.closes,
            outcomes: self.decided.iter().map(encoded).collect(),
        };
        self.outcomes.clone_from(&decision.outcomes);
        if !self.is_optimistic() {
            let decided = session::decide(&mut self.store, row, decision).await?;
            return Ok(Together::Row(decided));
        }
        let (updates, installed) = self.installed();
        let decided = session::decide_with(&mut self.store, row, decision, updates).await;
        let is_done = matches!(&decided, Ok(Together::Row(Transition::Done(_))));
        self.remember(is_done.then_some(installed));
        decided
    }

    /// Whether a transaction may decide and apply the batch. The end of a session has too many
    /// parts.
    pub(super) fn may_be_direct(&self) -> bool {
        !self.closes
    }

    /// Decides an optimistic batch and applies it in the same transaction.
    pub(super) async fn apply_directly(
        &mut self,
        distributor: &Distributor,
        rows: &[RowDecision<'_>],
    ) -> Result<Directly> {
        let (updates, installed) = self.installed();
        let direct = Direct {
            rows,
            decided: &self.decided,
            installed: updates,
            planned_on: &self.store,
        };
        let applied = distributor.apply_directly(direct).await;
        match &applied {
            Ok(Directly::Applied(_)) => self.remember(Some(installed)),
            Ok(Directly::Unfit) => {}
            Ok(Directly::Conflict) | Err(_) => self.remember(None),
        }
        applied
    }

    /// The updates that install the states of an optimistic batch, if these are as they were read.
    /// Also returns the row that each installs, if any.
    fn installed(&self) -> (Vec<Update>, Vec<Option<Seen>>) {
        let is_halved = self.breaks(Broken::InstallsHalfOfADecision);
        let mut updates = Vec::with_capacity(self.held.len());
        let mut installed = Vec::with_capacity(self.held.len());
        for (place, (path, held)) in self.held.iter().enumerate() {
            let seen = held.seen.as_ref().expect("an optimistic batch reads");
            let is_left_out = is_halved && self.held.len() > 2 && place % 2 == 1;
            if held.is_touched && !is_left_out {
                let row = held.becomes.as_ref().map_or(Seen::MISSING, Seen::of);
                updates.push(seen.install(path, &row));
                installed.push(Some(row));
            } else {
                updates.push(seen.check(path));
                installed.push(None);
            }
        }
        if self.breaks(Broken::DecidesOnOutdatedStates) {
            let conditions = updates.iter_mut().map(|update| &mut update.condition);
            conditions.for_each(|condition| *condition = Condition::Always);
        }
        (updates, installed)
    }

    /// Remembers the rows that it installed. None if it is uncertain what they are like now.
    fn remember(&self, installed: Option<Vec<Option<Seen>>>) {
        let Some(known) = self.known else {
            return;
        };
        let Some(installed) = installed else {
            return known.forget(self.held.keys());
        };
        let rows = self.held.iter().zip(installed);
        known.set(rows.filter_map(|((path, held), row)| Some((path, row?, held.becomes.as_ref()))));
    }

    /// Installs the decided states and unlocks. Returns the outcomes to push.
    ///
    /// This also removes the index entries of the session's own deleted ephemerals, because the
    /// session's end follows all its updates anyway. The distributor removes the entries of other
    /// sessions once the deletions are applied. A crash before this leaves entries that the
    /// session's end checks and removes.
    pub(super) async fn install(mut self) -> Result<(Vec<Bytes>, TrackedStore)> {
        if !self.is_optimistic() {
            self.remember(None);
        }
        let is_optimistic = self.is_optimistic();
        let store = &mut self.store;
        for (create, path) in &self.deleted {
            ephemerals::remove(store, *create, path).await?;
        }
        for (path, version) in &self.expiring {
            let held = self.held.get(path);
            if held.is_some_and(|held| held.is_touched && held.becomes.is_none()) {
                expiring::replace(store, path, *version, None).await?;
            }
        }
        if self.locking.mutant.breaks(Broken::IndexesWhenDecided) {
            for (path, held) in &self.held {
                if let Some(due_ms) = held.becomes.as_ref().and_then(NodeState::due_ms) {
                    expiring::add(store, path, due_ms).await?;
                }
            }
        }
        if is_optimistic {
            return Ok((self.outcomes, self.store));
        }
        let is_halved = self.locking.mutant.breaks(Broken::InstallsHalfOfADecision);
        for (place, (path, held)) in self.held.iter().enumerate() {
            let is_left_out = is_halved && self.held.len() > 2 && place % 2 == 1;
            if held.is_touched && !is_left_out {
                node::install(store, path, &self.lock, held.becomes.as_ref()).await?;
            } else {
                node::unlock(store, path, &self.lock, held.found.as_ref()).await?;
            }
        }
        Ok((self.outcomes, self.store))
    }

    /// Releases all locks. Nothing was decided under them, and nothing will be.
    pub(super) async fn release(mut self) -> Result<TrackedStore> {
        self.release_all().await?;
        Ok(self.store)
    }

    /// Releases all locks to take others.
    pub(super) async fn release_all(&mut self) -> Result<()> {
        for (path, held) in std::mem::take(&mut self.held) {
            if held.seen.is_some() {
                continue;
            }
            node::unlock(&mut self.store, &path, &self.lock, held.found.as_ref()).await?;
        }
        Ok(())
    }
}

/// The request after those that `row` has decided.
fn next_holder(row: &Row) -> Holder {
    Holder {
        request: UpdateId {
            session: row.session,
            sequence: row.sequence + 1,
        },
        fence: row.fence,
    }
}

fn hold(
    held: &mut BTreeMap<String, Held>,
    path: &str,
    (seen, found): (Option<Seen>, Option<NodeState>),
    planned_by: Option<usize>,
) {
    held.insert(
        path.to_owned(),
        Held {
            seen,
            becomes: found.clone(),
            found,
            is_touched: false,
            planned_by,
        },
    );
}
