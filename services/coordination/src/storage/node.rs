//! Node rows: a znode's state in the system store, and the timed lock on it.
//!
//! A row holds the installed state. While a writer works on the znode under locks, the row also
//! holds a lock that names the writer's request (rule C-1). A writer without locks changes the row
//! in the transaction of its decision, if it has no lock and its state is as read ([`Seen`]).
//!
//! Nothing is decided here. A writer that waits for a lock reads the row of the session that the
//! lock names. It breaks the lock once that row shows that the lock is over: the request is
//! decided, or the holder is fenced out. It also breaks a lock past its time. In each case it
//! installs the outcome if the request is decided, and otherwise fences the request out. Only then
//! does it take the lock. A row with neither state nor lock does not exist.
//!
//! A dead holder is fenced out when its message is delivered again, unless a waiter has broken a
//! lock past its time before. Either step ends the waits for all locks of its session, so waiters
//! need no list of dead writers.
//!
//! Invariant: a lock with the fencing number under which its request was decided has not been
//! installed yet. Installing and unlocking are one write, and the writer locked before it decided.
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
    key_value::{Action, Outcome, Test, Value},
};
use primitives::{Backoff, Mutant};

use crate::{
    broken::Broken,
    config::{Config, LockOptions},
    dependency::TrackedStore,
    records::{Holder, NodeState, decode, encode},
    storage::{
        keys,
        session::{self, Transition},
    },
};

const STATE: &str = "state";
const LOCK: &str = "lock";
const LOCKED_AT: &str = "locked_at_ms";

/// A waiter that has seen the same holder for this long also reads the row of the holder's session
/// before each retry. A living holder is usually faster, and its waiters save these reads.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// A waiter adds the time for which it has seen the same holder, divided by this, to its retry
/// delay,
const PATIENCE_PART: u32 = 4;

/// but at most this.
const PATIENCE_MAX: Duration = Duration::from_millis(200);

/// The lock value that a holder writes into rows, encoded once for all of them.
#[derive(Debug, Clone)]
pub struct Lock {
    pub holder: Holder,
    encoded: Bytes,
}

impl Lock {
    pub fn of(holder: Holder) -> Self {
        Self {
            holder,
            encoded: encode(&holder),
        }
    }
}

/// The result of an attempt to lock a row: the znode's state, or the row if another holder has the
/// lock and the store returned the row.
type Attempt = std::result::Result<Option<NodeState>, Option<Arc<Item>>>;

#[derive(Debug, Clone)]
pub struct Locking {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: LockOptions,
    pub(crate) mutant: Mutant<Broken>,
}

impl Locking {
    /// Measures times with `clock`, and spreads retries with `entropy`.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, config: &Config) -> Self {
        Self {
            clock,
            entropy,
            options: config.locks,
            mutant: config.mutant,
        }
    }

    /// Whether writers first try without locks.
    pub fn is_optimistic(&self) -> bool {
        self.options.is_optimistic
    }

    /// Locks the row of `path` with `lock` and returns the znode's state. Waits while another
    /// holder has the lock.
    pub async fn lock(
        &self,
        store: &mut TrackedStore,
        path: &str,
        lock: &Lock,
    ) -> Result<Option<NodeState>> {
        let longest = self.options.wait_max;
        let mut delays = Backoff {
            first: self.options.wait_min,
            longest,
            attempts_max: u32::MAX,
        }
        .delays();
        let mut watched: Option<(Holder, Monotonic)> = None;
        loop {
            let item = match self.attempt(store, path, lock).await? {
                Ok(state) => return Ok(state),
                Err(item) => item,
            };
            let Some(item) = item else { continue };
            let Some(found) = item.bytes(LOCK) else {
                continue;
            };
            let other: Holder = decode(found, "a lock")?;
            if self.may_break(&item, other, lock.holder) {
                self.break_lock(store, path, other).await?;
                continue;
            }
            let now = self.clock.monotonic();
            let since = watched
                .filter(|(same, _)| *same == other)
                .map_or(now, |(_, since)| since);
            watched = Some((other, since));
            let seen_for = now.since(since);
            if seen_for >= LOOK_AFTER && self.is_over(store, other).await? {
                self.break_lock(store, path, other).await?;
                continue;
            }
            // A holder that kept the lock for long is probably dead, and each early retry costs a
            // write.
            let patience = (seen_for / PATIENCE_PART).min(PATIENCE_MAX);
            let delay = delays.next_delay(&*self.entropy).unwrap_or(longest);
            self.clock.sleep(delay + patience).await;
        }
    }

    /// Locks the row without waiting. Returns `None` if another holder has the lock.
    pub async fn try_lock(
        &self,
        store: &mut TrackedStore,
        path: &str,
        lock: &Lock,
    ) -> Result<Option<Option<NodeState>>> {
        Ok(self.attempt(store, path, lock).await?.ok())
    }

    async fn attempt(&self, store: &mut TrackedStore, path: &str, lock: &Lock) -> Result<Attempt> {
        let locked = vec![
            Action::set(LOCK, lock.encoded.clone()),
            Action::set_integer(LOCKED_AT, self.clock.now().0 as i64),
        ];
        let free = Condition::attribute(LOCK, Test::Absent);
        match store
            .update(Update::modify(key(path), locked).when(free))
            .await?
        {
            Outcome::Done(item) => state_of(item.as_ref()).map(Ok),
            Outcome::Conflict(Some(item)) if item.bytes(LOCK) == Some(&lock.encoded) => {
                state_of(Some(&item)).map(Ok)
            }
            Outcome::Conflict(item) => Ok(Err(item)),
        }
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

    /// Whether nothing more will be decided under the lock of `other`.
    async fn is_over(&self, store: &mut TrackedStore, other: Holder) -> Result<bool> {
        if self.mutant.breaks(Broken::WaitsForDeadWriters) {
            return Ok(false);
        }
        let row = session::get(store, other.request.session).await?;
        Ok(row.is_none_or(|row| !row.may_decide(other)))
    }

    /// Frees the row of `path` from a lock that is over or past its time. If the lock's request was
    /// decided, installs its outcome. If not, makes sure that the request is never decided under
    /// this lock.
    async fn break_lock(&self, store: &mut TrackedStore, path: &str, holder: Holder) -> Result<()> {
        let lock = Lock::of(holder);
        if !self.mutant.breaks(Broken::BreaksLocksUnasked)
            && let Transition::Refused(Some(row)) = session::fence_out(store, holder).await?
        {
            let decided = row.decided_under(holder)?;
            let mut touches = decided.iter().flat_map(|decided| &decided.touched);
            if let Some(last) = touches.rfind(|touched| touched.path == path) {
                return install(store, path, &lock, last.becomes.as_ref()).await;
            }
        }
        // Nothing was decided under it, so the state stays as it is.
        let current = read(store, path).await?;
        unlock(store, path, &lock, state_of(current.as_ref())?.as_ref()).await
    }
}

/// A row without a lock, as an optimistic writer read it. Its encoded state names its last update,
/// so equal bytes mean that the znode has not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen(Option<Bytes>);

impl Seen {
    /// A missing row.
    pub const MISSING: Self = Self(None);
}

impl Seen {
    /// The row of `path`. None if it is locked.
    pub async fn read(store: &mut TrackedStore, path: &str) -> Result<Option<Self>> {
        let row = read(store, path).await?;
        let Some(row) = row else {
            return Ok(Some(Self(None)));
        };
        Ok(row
            .bytes(LOCK)
            .is_none()
            .then(|| Self(row.bytes(STATE).cloned())))
    }

    /// A row with this state and without a lock.
    pub fn of(state: &NodeState) -> Self {
        Self(Some(encode(state)))
    }

    /// The state of its znode.
    pub fn state(&self) -> Result<Option<NodeState>> {
        let state = self.0.as_ref();
        state
            .map(|bytes| decode(bytes, "a znode's state"))
            .transpose()
    }

    /// Makes the row at `path` like `becomes`, if it is as it was read.
    pub fn install(&self, path: &str, becomes: &Self) -> Update {
        let update = match &becomes.0 {
            Some(state) => {
                let state = Value::Bytes(state.clone());
                Update::put(key(path), vec![(STATE.into(), state)])
            }
            None => Update::delete(key(path)),
        };
        update.when(self.is_unchanged())
    }

    /// Its length in bytes.
    pub fn bytes_len(&self) -> usize {
        self.0.as_ref().map_or(0, Bytes::len)
    }

    /// Checks that the row at `path` is as it was read.
    pub fn check(&self, path: &str) -> Update {
        Update::check(key(path), self.is_unchanged())
    }

    fn is_unchanged(&self) -> Condition {
        match &self.0 {
            None => Condition::Absent,
            Some(state) => Condition::All(vec![
                Condition::attribute(STATE, Test::is(state.clone())),
                Condition::attribute(LOCK, Test::Absent),
            ]),
        }
    }
}

/// Whether a znode exists at `path`. The read takes no lock, so the answer may be outdated on
/// return.
pub async fn is_there(store: &mut TrackedStore, path: &str) -> Result<bool> {
    let row = read(store, path).await?;
    Ok(row.is_some_and(|row| row.bytes(STATE).is_some()))
}

/// Whether `path` has neither a znode nor a lock, under which one may be created. While the caller
/// holds the lock of the parent this stays true, because creating a znode requires that lock.
pub async fn is_vacant(store: &mut TrackedStore, path: &str) -> Result<bool> {
    let row = read(store, path).await?;
    Ok(row.is_none_or(|row| row.bytes(STATE).is_none() && row.bytes(LOCK).is_none()))
}

async fn read(store: &mut TrackedStore, path: &str) -> Result<Option<Arc<Item>>> {
    store.get(&key(path)).await
}

/// Unlocks the row of `path` and leaves its state unchanged. `state` is what the caller read.
pub async fn unlock(
    store: &mut TrackedStore,
    path: &str,
    lock: &Lock,
    state: Option<&NodeState>,
) -> Result<()> {
    // Since this was read, the holder may have released the lock and taken it again. In between,
    // another writer may have created or deleted the znode.
    let (change, as_read) = match state {
        Some(_) => (Some(Vec::new()), Test::Exists),
        None => (None, Test::Absent),
    };
    let as_read = vec![Condition::attribute(STATE, as_read)];
    free(store, path, lock, change, as_read).await
}

/// Installs the state decided under `lock` and unlocks the row. Does nothing if the state is
/// installed already.
pub async fn install(
    store: &mut TrackedStore,
    path: &str,
    lock: &Lock,
    becomes: Option<&NodeState>,
) -> Result<()> {
    let change = becomes.map(|state| vec![Action::set(STATE, encode(state))]);
    free(store, path, lock, change, Vec::new()).await
}

/// Unlocks a row with this change, or removes it if there is none. Does nothing unless it has the
/// lock and meets `conditions`.
async fn free(
    store: &mut TrackedStore,
    path: &str,
    lock: &Lock,
    change: Option<Vec<Action>>,
    mut conditions: Vec<Condition>,
) -> Result<()> {
    let update = match change {
        Some(mut actions) => {
            actions.extend([Action::unset(LOCK), Action::unset(LOCKED_AT)]);
            Update::modify(key(path), actions)
        }
        None => Update::delete(key(path)),
    };
    conditions.push(Condition::attribute(LOCK, Test::is(lock.encoded.clone())));
    let update = update.when(Condition::All(conditions));
    store.update(update).await.map(|_| ())
}

/// Creates the row of a built-in znode if it does not exist.
pub async fn put_if_absent(store: &dyn KeyValue, path: &str, state: NodeState) -> Result<()> {
    let state = vec![Action::set(STATE, encode(&state))];
    let update = Update::modify(key(path), state).when(Condition::Absent);
    store.update(update).await.map(|_| ())
}

fn key(path: &str) -> Key {
    keys::within("node:", path, &[])
}

fn state_of(item: Option<&Arc<Item>>) -> Result<Option<NodeState>> {
    item.and_then(|item| item.bytes(STATE))
        .map(|bytes: &Bytes| decode(bytes, "a znode's state"))
        .transpose()
}

#[cfg(test)]
mod tests;
