//! Node rows: a znode's state in the system store, and the timed lock on it.
//!
//! A row holds the installed state and, while a writer works on it, a lock naming the request it works for
//! (rule C-1). Nothing is decided here: whoever finds a lock that has outlived its time looks into the row
//! of the session it names. There it finds the outcome and installs it, or finds none and dooms the
//! request; only then does it take the lock. A row without state and lock does not exist.
//!
//! Invariant: a lock that carries the fencing number under which its request was decided has not been
//! installed yet, because installing and unlocking are one write, and a writer locks before it decides.
//!
//! A lock need not be durable to be held: whoever works under it rests on it, and is refused where the store has lost
//! it ([`crate::basis`]).
//!
//! The timed lock is FaaSKeeper's (section 2.2), with the drift allowance of 2 s. The time is by two machines' clocks: the one's
//! that took the lock and the one's that waits. Nothing that is decided rests on it, whatever clocks say, since whoever breaks
//! a lock first shuts its holder out; the allowance is there to let a living one finish: none is shut out before
//! [`LockOptions::hold_max`] of true time by a clock that is ahead of its own by no more than that.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Clock, Condition, Entropy, Item, Key, KeyValue, Monotonic, Result, Timestamp, Update,
    key_value::{Action, Outcome, Read, Test},
};
use primitives::Backoff;
use serde::{Deserialize, Serialize};

use crate::{
    basis::Basis,
    broken::Broken,
    config::Config,
    keys,
    records::{NodeState, UpdateId, decode, encode},
    session::{Moved, Sessions},
};

const STATE: &str = "state";
const LOCK: &str = "lock";
const LOCKED_AT: &str = "locked_at_ms";

/// A lock that one holder has been seen to keep is looked at again after this part of that time at the earliest,
const PATIENCE_PART: u32 = 4;

/// and after this at the latest.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Whose lock it is: the request, the first of those that are decided together, and the fencing number of the
/// writer that works for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The request that would be decided.
    pub request: UpdateId,
    /// The writer's fencing number.
    pub fence: u64,
}

/// What a holder writes into the rows that it locks, encoded once for all of them.
#[derive(Debug, Clone)]
pub struct Lock {
    holder: Holder,
    encoded: Bytes,
}

impl Lock {
    /// The lock of `holder`.
    pub fn of(holder: Holder) -> Self {
        Self {
            holder,
            encoded: encode(&holder),
        }
    }

    /// Whose it is.
    pub fn holder(&self) -> Holder {
        self.holder
    }
}

/// How locks wait and expire.
#[derive(Debug, Clone, Copy)]
pub struct LockOptions {
    /// How long a writer may hold a lock before others ask what became of it.
    pub hold_max: Duration,
    /// How far functions' clocks may be apart (the paper: 2 s).
    pub drift_allowance: Duration,
    /// The first wait for a lock that is held.
    pub wait_min: Duration,
    /// The longest wait between two attempts.
    pub wait_max: Duration,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            hold_max: Duration::from_secs(5),
            drift_allowance: Duration::from_secs(2),
            wait_min: Duration::from_micros(200),
            wait_max: Duration::from_millis(100),
        }
    }
}

/// What came of trying to lock a row.
enum Attempt {
    /// It is locked for the one who tried; the znode's state.
    Locked(Option<NodeState>),
    /// Another holds it: the row, if the store gave it.
    Held(Option<Arc<Item>>),
}

/// The node rows of one system store.
#[derive(Debug, Clone)]
pub struct Nodes {
    system: Arc<dyn KeyValue>,
    sessions: Sessions,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: LockOptions,
    broken: Option<Broken>,
}

impl Nodes {
    /// The rows in `system`; waits by `clock` and `entropy`.
    pub fn new(
        system: Arc<dyn KeyValue>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        config: &Config,
    ) -> Self {
        let (options, broken) = (config.locks, config.broken);
        Self {
            sessions: Sessions::new(system.clone()),
            system,
            clock,
            entropy,
            options,
            broken,
        }
    }

    /// Locks the row of `path` by `lock` and returns its state; waits while another holds it.
    pub async fn lock(
        &self,
        path: &str,
        lock: &Lock,
        basis: &mut Basis,
    ) -> Result<Option<NodeState>> {
        let LockOptions {
            wait_min: first,
            wait_max: longest,
            ..
        } = self.options;
        let mut delays = Backoff {
            first,
            longest,
            attempts_max: u32::MAX,
        }
        .delays();
        let mut watched: Option<(Holder, Monotonic)> = None;
        loop {
            let item = match self.attempt(path, lock, basis).await? {
                Attempt::Locked(state) => return Ok(state),
                Attempt::Held(item) => item,
            };
            let Some(item) = item else { continue };
            let Some(found) = item.bytes(LOCK) else {
                continue;
            };
            let other: Holder = decode(found, "a lock")?;
            if self.may_break(&item, other, lock.holder) {
                self.break_lock(path, other, basis).await?;
                continue;
            }
            let now = self.clock.monotonic();
            let since = watched
                .filter(|(same, _)| *same == other)
                .map_or(now, |(_, since)| since);
            watched = Some((other, since));
            // Whoever has kept it for long is likely dead, and looking again soon is a write in vain.
            let patience = (now.since(since) / PATIENCE_PART).min(PATIENCE_MAX);
            let delay = delays.next_delay(&*self.entropy).unwrap_or(longest);
            self.clock.sleep(delay + patience).await;
        }
    }

    /// The same without waiting: none if another holds it.
    pub async fn try_lock(
        &self,
        path: &str,
        lock: &Lock,
        basis: &mut Basis,
    ) -> Result<Option<Option<NodeState>>> {
        match self.attempt(path, lock, basis).await? {
            Attempt::Locked(state) => Ok(Some(state)),
            Attempt::Held(_) => Ok(None),
        }
    }

    async fn attempt(&self, path: &str, lock: &Lock, basis: &mut Basis) -> Result<Attempt> {
        let free = Condition::attribute(LOCK, Test::Absent);
        match self
            .update(self.locking(path, lock).when(free), basis)
            .await?
        {
            Outcome::Done(item) => state_of(item.as_ref()).map(Attempt::Locked),
            Outcome::Conflict(Some(item)) if item.bytes(LOCK) == Some(&lock.encoded) => {
                state_of(Some(&item)).map(Attempt::Locked)
            }
            Outcome::Conflict(item) => Ok(Attempt::Held(item)),
        }
    }

    /// Whether there is a znode at `path`, without locking it: it may have gone by the time this is known.
    pub async fn is_there(&self, path: &str, basis: &mut Basis) -> Result<bool> {
        let row = self.read(path, basis).await?;
        Ok(row.is_some_and(|row| row.bytes(STATE).is_some()))
    }

    /// Whether there is neither a znode at `path` nor a lock, under which there may come to be one. For whoever holds the
    /// lock of its parent it stays so, since nobody makes a znode without that.
    pub async fn is_vacant(&self, path: &str, basis: &mut Basis) -> Result<bool> {
        let row = self.read(path, basis).await?;
        Ok(row.is_none_or(|row| row.bytes(STATE).is_none() && row.bytes(LOCK).is_none()))
    }

    async fn read(&self, path: &str, basis: &mut Basis) -> Result<Option<Arc<Item>>> {
        let Read { value: row, point } = self.system.get(&key(path)).await?;
        basis.seen(point)?;
        Ok(row)
    }

    /// The rule that is dropped, if one is.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Gives the row of `path` back as it was.
    pub async fn unlock(
        &self,
        path: &str,
        lock: &Lock,
        state: Option<NodeState>,
        basis: &mut Basis,
    ) -> Result<()> {
        let update = match state {
            Some(_) => Update::modify(
                key(path),
                vec![Action::unset(LOCK), Action::unset(LOCKED_AT)],
            ),
            None => Update::delete(key(path)),
        };
        self.update(update.when(held_by(lock)), basis)
            .await
            .map(|_| ())
    }

    /// Installs what was decided under `lock` for a znode, and unlocks it; nothing if it is
    /// installed already.
    pub async fn install(
        &self,
        path: &str,
        lock: &Lock,
        becomes: Option<&NodeState>,
        basis: &mut Basis,
    ) -> Result<()> {
        let update = match becomes {
            Some(state) => {
                let state = Action::set(STATE, encode(state));
                Update::modify(
                    key(path),
                    vec![state, Action::unset(LOCK), Action::unset(LOCKED_AT)],
                )
            }
            None => Update::delete(key(path)),
        };
        self.update(update.when(held_by(lock)), basis)
            .await
            .map(|_| ())
    }

    /// Makes the row of a znode that is part of the service, if it is not there.
    pub async fn put_if_absent(&self, path: &str, state: NodeState) -> Result<()> {
        let update = Update::modify(key(path), vec![Action::set(STATE, encode(&state))])
            .when(Condition::Absent);
        self.system.update(update).await.map(|_| ())
    }

    async fn update(&self, update: Update, basis: &mut Basis) -> Result<Outcome> {
        let updated = self.system.update(update.depends_on(basis.point())).await?;
        basis.seen(updated.receipt.point)?;
        Ok(updated.outcome)
    }

    fn locking(&self, path: &str, lock: &Lock) -> Update {
        let now = self.clock.now().0 as i64;
        Update::modify(
            key(path),
            vec![
                Action::set(LOCK, lock.encoded.clone()),
                Action::set_integer(LOCKED_AT, now),
            ],
        )
    }

    /// Whether the lock of `other` has outlived its time, or is left from an earlier writer of the session
    /// that `holder` now writes for.
    fn may_break(&self, item: &Item, other: Holder, holder: Holder) -> bool {
        if other.request.session == holder.request.session && other.fence < holder.fence {
            return true;
        }
        let locked_at = Timestamp(item.integer(LOCKED_AT).unwrap_or_default() as u64);
        let allowed = self.options.hold_max + self.options.drift_allowance;
        u128::from(self.clock.now().ms_since(locked_at)) > allowed.as_millis()
    }

    /// Frees the row of `path` from a lock that has outlived its time: installs what its request was decided
    /// to be, or makes sure that it never will be decided under this lock.
    async fn break_lock(&self, path: &str, holder: Holder, basis: &mut Basis) -> Result<()> {
        let lock = Lock::of(holder);
        if self.broken == Some(Broken::BreaksLocksUnasked) {
            return self.discard(path, &lock, basis).await;
        }
        let session = holder.request.session;
        let row = match self
            .sessions
            .doom(session, holder.request.sequence, holder.fence, basis)
            .await?
        {
            Moved::Done(_) | Moved::Refused(None) => return self.discard(path, &lock, basis).await,
            Moved::Refused(Some(row)) => row,
        };
        let decided = row.decided_under(holder)?;
        let touches = decided.iter().flat_map(|decided| &decided.touched);
        match touches.filter(|touched| touched.path == path).last() {
            Some(last) => {
                self.install(path, &lock, last.becomes.as_ref(), basis)
                    .await
            }
            None => self.discard(path, &lock, basis).await,
        }
    }

    /// Removes a lock whose request was not decided under it, leaving the state as it is.
    async fn discard(&self, path: &str, lock: &Lock, basis: &mut Basis) -> Result<()> {
        let current = self.read(path, basis).await?;
        self.unlock(path, lock, state_of(current.as_ref())?, basis)
            .await
    }
}

fn key(path: &str) -> Key {
    Key::new(keys::of("node:", path), [])
}

fn held_by(lock: &Lock) -> Condition {
    Condition::attribute(LOCK, Test::is(lock.encoded.clone()))
}

fn state_of(item: Option<&Arc<Item>>) -> Result<Option<NodeState>> {
    item.and_then(|item| item.bytes(STATE))
        .map(|bytes: &Bytes| decode(bytes, "a znode's state"))
        .transpose()
}

#[cfg(test)]
mod tests;
