//! Requests of one session that are decided together: their locks and their outcomes.
//!
//! Waiting requests share writes that cost the same for one as for many. A znode is locked and
//! installed once for all requests that touch it, and one write of the session's row decides them
//! all. Every lock names the first request of the batch. A writer that meets a lock therefore finds
//! all of them in the outbox, or fences all of them out.
//!
//! Invariants
//! - A batch never waits for a lock while it holds locks of another request, because waiting
//!   writers could deadlock. When a request meets a held lock, the batch ends before that request.
//!   The request then waits with only its own locks, taken in path order.
//! - A batch is decided completely or not at all.
//! - A batch is decided, installed and unlocked only while the store still has the state that it
//!   was planned from, in particular the locks.

mod ancestor_lock;
mod size;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ports::{Result, key_value::Version};

use crate::{
    Error,
    broken::Broken,
    dependency::TrackedStore,
    records::{Decided, Effect, Holder, NodeState, Submitted, Touched, UpdateId, encode_sized},
    storage::{
        ephemerals, expiring,
        node::{self, Lock, Locking},
        session::{Decision, Row},
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

/// A znode locked for the batch.
#[derive(Debug)]
struct Held {
    /// The state when it was locked.
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
    /// The decision depends on everything observed here, in particular the locks.
    pub(super) store: TrackedStore,
    /// The store with the quotas to enforce, if any.
    pub(super) quotas: Option<&'writer UserStore>,
    attach: u64,
    held: BTreeMap<String, Held>,
    pub(super) decision: Decision,
    /// The encoded length of its outcomes, in bytes.
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
        let request = UpdateId {
            session: row.session,
            sequence: row.sequence + 1,
        };
        Self {
            locking,
            lock: Lock::of(Holder {
                request,
                fence: row.fence,
            }),
            store,
            quotas: None,
            attach: row.attach,
            held: BTreeMap::new(),
            decision: Decision {
                request: row.request,
                ..Decision::default()
            },
            bytes_len: 0,
            deleted: Vec::new(),
            expiring: BTreeMap::new(),
            waited_for: BTreeSet::new(),
        }
    }

    pub(super) fn breaks(&self, rule: Broken) -> bool {
        self.locking.mutant.breaks(rule)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.decision.outcomes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.decision.outcomes.len()
    }

    pub(super) fn next_id(&self) -> UpdateId {
        let first = self.lock.holder.request;
        UpdateId {
            sequence: first.sequence + self.len() as u64,
            ..first
        }
    }

    /// Locks a znode once for the whole batch. Returns the state that the batch has given it so
    /// far.
    pub(super) async fn lock(&mut self, path: &str) -> Result<Option<NodeState>, PlanError> {
        let next = Some(self.len());
        if let Some(held) = self.held.get_mut(path) {
            held.planned_by = next;
            return Ok(held.becomes.clone());
        }
        let found = if self.is_empty() {
            self.locking.lock(&mut self.store, path, &self.lock).await?
        } else {
            self.locking
                .try_lock(&mut self.store, path, &self.lock)
                .await?
                .ok_or(PlanError::Contended)?
        };
        hold(&mut self.held, path, found.clone(), next);
        Ok(found)
    }

    /// Locks znodes for one request in path order, among them those that were waited for since the
    /// batch began. Waits only while the batch has no other request.
    pub(super) async fn lock_all(&mut self, mut paths: BTreeSet<String>) -> Result<(), PlanError> {
        if self.is_empty() {
            self.release_all().await?;
            paths.extend(self.waited_for.iter().cloned());
        }
        for path in &paths {
            self.lock(path).await?;
        }
        Ok(())
    }

    /// Locks one more znode for a request that holds locks after it in path order.
    pub(super) async fn lock_another(
        &mut self,
        path: &str,
    ) -> Result<Option<NodeState>, PlanError> {
        if self.held.contains_key(path) {
            return self.lock(path).await;
        }
        let locking = self.locking;
        let next = Some(self.len());
        match locking.try_lock(&mut self.store, path, &self.lock).await? {
            Some(found) => {
                hold(&mut self.held, path, found.clone(), next);
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
        hold(&mut self.held, path, found, None);
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
    pub(super) async fn index_expiring(&mut self, touched: &[Touched]) -> Result<()> {
        for Touched { path, becomes, .. } in touched {
            let before = self.held.get(path).and_then(|held| held.becomes.as_ref());
            let before = before.and_then(NodeState::due_ms);
            match becomes.as_ref().map(NodeState::due_ms) {
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
        self.decision.closes |= matches!(outcome, Ok(Effect::Close { .. }));
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
        let touched_len: usize = decided
            .touched
            .iter()
            .map(|touched| 48 + touched.path.len())
            .sum();
        let encoded = encode_sized(&decided, 96 + submitted.operation.bytes_len() + touched_len);
        self.decision.request = self.decision.request.max(submitted.request);
        self.bytes_len += encoded.len();
        self.decision.outcomes.push(encoded);
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

    /// Installs the decided states and unlocks. Returns the outcomes to push.
    ///
    /// This also removes the index entries of the session's own deleted ephemerals, because the
    /// session's end follows all its updates anyway. The distributor removes the entries of other
    /// sessions once the deletions are applied. A crash before this leaves entries that the
    /// session's end checks and removes.
    pub(super) async fn install(mut self) -> Result<(Vec<Bytes>, TrackedStore)> {
        let store = &mut self.store;
        for (create, path) in &self.deleted {
            ephemerals::remove(store, *create, path).await?;
        }
        let is_halved = self.locking.mutant.breaks(Broken::InstallsHalfOfADecision);
        for (place, (path, held)) in self.held.iter().enumerate() {
            if held.is_touched
                && held.becomes.is_none()
                && let Some(version) = self.expiring.get(path)
            {
                expiring::replace(store, path, *version, None).await?;
            }
            if self.locking.mutant.breaks(Broken::IndexesWhenDecided)
                && let Some(due_ms) = held.becomes.as_ref().and_then(NodeState::due_ms)
            {
                expiring::add(store, path, due_ms).await?;
            }
            let is_left_out = is_halved && self.held.len() > 2 && place % 2 == 1;
            if held.is_touched && !is_left_out {
                node::install(store, path, &self.lock, held.becomes.as_ref()).await?;
            } else {
                node::unlock(store, path, &self.lock, held.found.as_ref()).await?;
            }
        }
        Ok((self.decision.outcomes, self.store))
    }

    /// Releases all locks. Nothing was decided under them, and nothing will be.
    pub(super) async fn release(mut self) -> Result<TrackedStore> {
        self.release_all().await?;
        Ok(self.store)
    }

    /// Releases all locks to take others.
    pub(super) async fn release_all(&mut self) -> Result<()> {
        for (path, held) in std::mem::take(&mut self.held) {
            node::unlock(&mut self.store, &path, &self.lock, held.found.as_ref()).await?;
        }
        Ok(())
    }
}

fn hold(
    held: &mut BTreeMap<String, Held>,
    path: &str,
    found: Option<NodeState>,
    planned_by: Option<usize>,
) {
    held.insert(
        path.to_owned(),
        Held {
            becomes: found.clone(),
            found,
            is_touched: false,
            planned_by,
        },
    );
}

/// Installs requests that were decided together under the same locks, in case their writer died
/// before it did. Installed states stay unchanged.
pub(crate) async fn install(store: &mut TrackedStore, together: &[Decided]) -> Result<()> {
    let Some(first) = together.first() else {
        return Ok(());
    };
    let lock = Lock::of(first.holder());
    let touched = together.iter().flat_map(|decided| &decided.touched);
    let last: BTreeMap<&str, &Touched> = touched
        .map(|touched| (touched.path.as_str(), touched))
        .collect();
    for (path, touched) in last {
        node::install(store, path, &lock, touched.becomes.as_ref()).await?;
    }
    Ok(())
}

pub(crate) async fn install_outbox(store: &mut TrackedStore, row: &Row) -> Result<()> {
    let decided = row.outbox_decoded()?;
    for together in decided.chunk_by(|one, next| one.holder() == next.holder()) {
        install(store, together).await?;
    }
    Ok(())
}
