//! Node rows: a znode's state in the system store, and the timed lock on it.
//!
//! A row holds the installed state. While a writer works on the znode, it also holds a lock that
//! names the writer's request (rule C-1). Nothing is decided here. A writer that finds a lock past
//! its time reads the row of the session that the lock names. If the request is decided there, it
//! installs the outcome. If not, it fences the request out. Only then does it take the lock. A row
//! with neither state nor lock does not exist.
//!
//! Invariant: a lock with the fencing number under which its request was decided has not been
//! installed yet. Installing and unlocking are one write, and a writer locks before it decides.
//!
//! A lock need not be durable to be held. Work under a lock depends on it and is refused if the
//! store lost the lock ([`crate::dependency`]).
//!
//! The timed lock is FaaSKeeper's (section 2.2), with its drift allowance of 2 s. Two machines'
//! clocks measure the time: the clock of the lock's holder and the clock of the waiter. Safety does
//! not depend on these clocks, because breaking a lock first fences its holder out. The allowance
//! only lets a live holder finish. If a waiter's clock is ahead of the holder's by at most the
//! allowance, the holder keeps the lock for at least [`LockOptions::hold_max`] of true time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Clock, Condition, Entropy, Item, Key, KeyValue, Monotonic, Result, Timestamp, Update,
    key_value::{Action, Outcome, Test},
};
use primitives::{Backoff, Mutant};

use crate::{
    broken::Broken,
    config::{Config, LockOptions},
    dependency::Dependency,
    records::{Holder, NodeState, decode, encode},
    storage::{
        keys,
        session::{Sessions, Transition},
    },
};

const STATE: &str = "state";
const LOCK: &str = "lock";
const LOCKED_AT: &str = "locked_at_ms";

/// A waiter adds the time for which it has seen the same holder, divided by this, to its retry
/// delay,
const PATIENCE_PART: u32 = 4;

/// but at most this.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// The lock value that a holder writes into rows, encoded once for all of them.
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

    /// The lock's holder.
    pub fn holder(&self) -> Holder {
        self.holder
    }
}

/// The result of an attempt to lock a row.
enum Attempt {
    /// The caller holds the lock. The znode's state.
    Locked(Option<NodeState>),
    /// Another holder has the lock. The row, if the store returned it.
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
    pub(crate) mutant: Mutant<Broken>,
}

impl Nodes {
    /// The rows in `system`. `clock` and `entropy` time the retries.
    pub fn new(
        system: Arc<dyn KeyValue>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        config: &Config,
    ) -> Self {
        Self {
            sessions: Sessions::new(system.clone()),
            system,
            clock,
            entropy,
            options: config.locks,
            mutant: config.mutant,
        }
    }

    /// Locks the row of `path` with `lock` and returns the znode's state. Waits while another
    /// holder has the lock.
    pub async fn lock(
        &self,
        path: &str,
        lock: &Lock,
        dependency: &mut Dependency,
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
            let item = match self.attempt(path, lock, dependency).await? {
                Attempt::Locked(state) => return Ok(state),
                Attempt::Held(item) => item,
            };
            let Some(item) = item else { continue };
            let Some(found) = item.bytes(LOCK) else {
                continue;
            };
            let other: Holder = decode(found, "a lock")?;
            if self.may_break(&item, other, lock.holder) {
                self.break_lock(path, other, dependency).await?;
                continue;
            }
            let now = self.clock.monotonic();
            let since = watched
                .filter(|(same, _)| *same == other)
                .map_or(now, |(_, since)| since);
            watched = Some((other, since));
            // A holder that kept the lock for long is probably dead, and each early retry costs a
            // write.
            let patience = (now.since(since) / PATIENCE_PART).min(PATIENCE_MAX);
            let delay = delays.next_delay(&*self.entropy).unwrap_or(longest);
            self.clock.sleep(delay + patience).await;
        }
    }

    /// Locks the row without waiting. Returns `None` if another holder has the lock.
    pub async fn try_lock(
        &self,
        path: &str,
        lock: &Lock,
        dependency: &mut Dependency,
    ) -> Result<Option<Option<NodeState>>> {
        match self.attempt(path, lock, dependency).await? {
            Attempt::Locked(state) => Ok(Some(state)),
            Attempt::Held(_) => Ok(None),
        }
    }

    async fn attempt(
        &self,
        path: &str,
        lock: &Lock,
        dependency: &mut Dependency,
    ) -> Result<Attempt> {
        let free = Condition::attribute(LOCK, Test::Absent);
        match self
            .update(self.locking(path, lock).when(free), dependency)
            .await?
        {
            Outcome::Done(item) => state_of(item.as_ref()).map(Attempt::Locked),
            Outcome::Conflict(Some(item)) if item.bytes(LOCK) == Some(&lock.encoded) => {
                state_of(Some(&item)).map(Attempt::Locked)
            }
            Outcome::Conflict(item) => Ok(Attempt::Held(item)),
        }
    }

    /// Whether a znode exists at `path`. The read takes no lock, so the answer may be outdated on
    /// return.
    pub async fn is_there(&self, path: &str, dependency: &mut Dependency) -> Result<bool> {
        let row = self.read(path, dependency).await?;
        Ok(row.is_some_and(|row| row.bytes(STATE).is_some()))
    }

    /// Whether `path` has neither a znode nor a lock, under which one may be created. While the
    /// caller holds the lock of the parent this stays true, because creating a znode requires that
    /// lock.
    pub async fn is_vacant(&self, path: &str, dependency: &mut Dependency) -> Result<bool> {
        let row = self.read(path, dependency).await?;
        Ok(row.is_none_or(|row| row.bytes(STATE).is_none() && row.bytes(LOCK).is_none()))
    }

    async fn read(&self, path: &str, dependency: &mut Dependency) -> Result<Option<Arc<Item>>> {
        dependency.get(&*self.system, &key(path)).await
    }

    /// Unlocks the row of `path` and leaves its state unchanged.
    pub async fn unlock(
        &self,
        path: &str,
        lock: &Lock,
        state: Option<NodeState>,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let update = match state {
            Some(_) => Update::modify(
                key(path),
                vec![Action::unset(LOCK), Action::unset(LOCKED_AT)],
            ),
            None => Update::delete(key(path)),
        };
        self.update(update.when(held_by(lock)), dependency)
            .await
            .map(|_| ())
    }

    /// Installs the state decided under `lock` and unlocks the row. Does nothing if the state is
    /// installed already.
    pub async fn install(
        &self,
        path: &str,
        lock: &Lock,
        becomes: Option<&NodeState>,
        dependency: &mut Dependency,
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
        self.update(update.when(held_by(lock)), dependency)
            .await
            .map(|_| ())
    }

    /// Creates the row of a built-in znode if it does not exist.
    pub async fn put_if_absent(&self, path: &str, state: NodeState) -> Result<()> {
        let update = Update::modify(key(path), vec![Action::set(STATE, encode(&state))])
            .when(Condition::Absent);
        self.system.update(update).await.map(|_| ())
    }

    async fn update(&self, update: Update, dependency: &mut Dependency) -> Result<Outcome> {
        dependency.update(&*self.system, update).await
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

    /// Whether the lock of `other` is past its time, or was left by an earlier writer of the
    /// session that `holder` writes for.
    fn may_break(&self, item: &Item, other: Holder, holder: Holder) -> bool {
        if other.request.session == holder.request.session && other.fence < holder.fence {
            return true;
        }
        let locked_at = Timestamp(item.integer(LOCKED_AT).unwrap_or_default() as u64);
        let allowed = self.options.hold_max + self.options.drift_allowance;
        u128::from(self.clock.now().ms_since(locked_at)) > allowed.as_millis()
    }

    /// Frees the row of `path` from a lock past its time. If the lock's request was decided,
    /// installs its outcome. If not, makes sure that the request is never decided under this lock.
    async fn break_lock(
        &self,
        path: &str,
        holder: Holder,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let lock = Lock::of(holder);
        if self.mutant.breaks(Broken::BreaksLocksUnasked) {
            return self.discard(path, &lock, dependency).await;
        }
        let session = holder.request.session;
        let row = match self
            .sessions
            .fence_out(session, holder.request.sequence, holder.fence, dependency)
            .await?
        {
            Transition::Done(_) | Transition::Refused(None) => {
                return self.discard(path, &lock, dependency).await;
            }
            Transition::Refused(Some(row)) => row,
        };
        let decided = row.decided_under(holder)?;
        let touches = decided.iter().flat_map(|decided| &decided.touched);
        match touches.filter(|touched| touched.path == path).last() {
            Some(last) => {
                self.install(path, &lock, last.becomes.as_ref(), dependency)
                    .await
            }
            None => self.discard(path, &lock, dependency).await,
        }
    }

    /// Removes a lock under which nothing was decided, and leaves the state unchanged.
    async fn discard(&self, path: &str, lock: &Lock, dependency: &mut Dependency) -> Result<()> {
        let current = self.read(path, dependency).await?;
        self.unlock(path, lock, state_of(current.as_ref())?, dependency)
            .await
    }
}

fn key(path: &str) -> Key {
    Key::new(keys::encode("node:", path), [])
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
