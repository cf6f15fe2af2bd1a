//! The timed lock: an item that one holder may change, for a limited time.
//!
//! The lock is three attributes of the item it protects, so that taking it, writing under it and giving it
//! back are one conditional update each. It is free if no timestamp is there, and expired if its timestamp
//! is older than `hold_ms_max` and [`DRIFT_MS_MAX`] by the clock of who asks. Expiry is about waiting, never
//! about safety: clocks lie, and a holder may be paused right before its write. Safety is the token, which
//! every write under the lock is conditional on, and that the store still has the lock (promise D4): one that has gone
//! back gives the same token again.
//!
//! Invariants
//! - The token never goes down; releasing the lock keeps it. So an item with a lock must not be deleted while
//!   tokens of it are about: services leave a tombstone.
//! - `lock_since` and `lock_owner` are there or absent together.
//!
//! From FaaSKeeper, section 2.2, which compares the timestamp where we compare the token: two functions can
//! hold the same millisecond, and a timestamp can go back.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use ports::{
    Condition, Error, Item, Key, Receipt, Result, Timestamp, Update,
    key_value::{Action, Operation, Outcome, SharedKeyValue, Test},
};
use serde::{Deserialize, Serialize};

/// How much the clocks of two functions may differ before somebody waits less than it should (S1).
pub const DRIFT_MS_MAX: u64 = 2_000;

/// When the holder took it, by its own clock.
const SINCE: &str = "lock_since";
/// Who the holder said it is.
const OWNER: &str = "lock_owner";
/// The token of the last holder.
const TOKEN: &str = "lock_token";

/// The fencing token: grows with each holder of a lock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Token(pub u64);

/// How locks of one kind behave. The same for everybody who uses them.
#[derive(Debug, Clone)]
pub struct TimedLock {
    key_value: SharedKeyValue,
    hold_ms_max: u64,
}

/// A lock that was taken. Outside the store, use it only once its point is durable (rule P5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The item.
    pub key: Key,
    /// What guards the holder's writes.
    pub token: Token,
    /// The item as it was when the lock was taken, right after it.
    pub item: Arc<Item>,
    /// What taking it cost and where it stands.
    pub receipt: Receipt,
}

/// Who has a lock.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who it said it is.
    pub owner: Bytes,
    /// Its token.
    pub token: Token,
    /// When it took the lock, by its own clock.
    pub since: Timestamp,
}

/// How an acquisition ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The lock is the caller's.
    Held(Held),
    /// Another has it. The item as it is comes along.
    Busy(Holder, Arc<Item>),
}

/// How an update under a lock ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded {
    /// It was applied.
    Done {
        /// The item after it.
        item: Option<Arc<Item>>,
        /// What it cost and where it stands.
        receipt: Receipt,
    },
    /// The lock was no longer the caller's; nothing changed. The item as it is, and what asking cost.
    LostLock(Option<Arc<Item>>, Receipt),
}

impl TimedLock {
    /// Locks that are held for at most `hold_ms_max`.
    pub fn new(key_value: SharedKeyValue, hold_ms_max: u64) -> Self {
        Self {
            key_value,
            hold_ms_max,
        }
    }

    /// Takes the lock on `key` if it is free, expired, or the owner's already (S5); the item is made if it
    /// is not there. `now` is the caller's clock, `owner` names the caller: it is what others find.
    pub async fn acquire(&self, key: &Key, owner: &Bytes, now: Timestamp) -> Result<Acquired> {
        let expired = Condition::attribute(SINCE, Test::Below(self.expired_before(now)));
        self.take(
            key,
            owner,
            now,
            Condition::Any(vec![free(), owned_by(owner), expired]),
        )
        .await
    }

    /// The same, but leaves an expired lock alone: for who must first decide what becomes of its holder.
    pub async fn acquire_free(&self, key: &Key, owner: &Bytes, now: Timestamp) -> Result<Acquired> {
        self.take(
            key,
            owner,
            now,
            Condition::Any(vec![free(), owned_by(owner)]),
        )
        .await
    }

    /// Takes the lock from `holder`, whose fate the caller has decided: only if nobody else took it since.
    pub async fn take_over(
        &self,
        key: &Key,
        holder: &Holder,
        owner: &Bytes,
        now: Timestamp,
    ) -> Result<Acquired> {
        let unchanged = Condition::attribute(TOKEN, Test::is_integer(holder.token.0 as i64));
        self.take(
            key,
            owner,
            now,
            Condition::Any(vec![free(), owned_by(owner), unchanged]),
        )
        .await
    }

    /// Whether `holder` has had the lock for longer than it may, by the clock that says `now`.
    pub fn is_expired(&self, holder: &Holder, now: Timestamp) -> bool {
        (holder.since.0 as i64) < self.expired_before(now)
    }

    /// Applies `actions` to the locked item if the lock is still the caller's (S3). With an operation, a
    /// repeat is recognised as done, also under a later lock, or none.
    ///
    /// Errors: `Lost`, and nothing changed, if the store has lost the lock; so for [`TimedLock::release`].
    ///
    /// # Panics
    /// If an action touches the attributes of the lock.
    pub async fn update(
        &self,
        held: &Held,
        actions: Vec<Action>,
        operation: Option<Operation>,
    ) -> Result<Guarded> {
        assert!(
            !actions.iter().any(touches_lock),
            "a guarded update leaves the lock itself alone"
        );
        self.guarded(held, actions, operation).await
    }

    /// Applies `actions`, which may be none, and gives the lock back, in one step (S3).
    ///
    /// A repeat is recognised as done by the token, as long as nobody has taken the lock since; after that
    /// it is answered as lost, like one that never happened. It takes no operation: one that was remembered
    /// from an earlier acquisition would leave the lock held. What must be recognised for longer is an
    /// [`TimedLock::update`] of its own before.
    ///
    /// # Panics
    /// If an action touches the attributes of the lock.
    pub async fn release(&self, held: &Held, mut actions: Vec<Action>) -> Result<Guarded> {
        assert!(
            !actions.iter().any(touches_lock),
            "a guarded update leaves the lock itself alone"
        );
        actions.extend(Held::unlocking());
        let guarded = self.guarded(held, actions, None).await?;
        match guarded {
            // Only its holder gives a lock back: an earlier attempt of this release has.
            Guarded::LostLock(Some(item), receipt)
                if token_of(&item) == Some(held.token) && Holder::of(&item).is_none() =>
            {
                Ok(Guarded::Done {
                    item: Some(item),
                    receipt,
                })
            }
            guarded => Ok(guarded),
        }
    }

    /// Timestamps before this one have expired at `now`.
    fn expired_before(&self, now: Timestamp) -> i64 {
        (now.0 as i64).saturating_sub_unsigned(self.hold_ms_max.saturating_add(DRIFT_MS_MAX))
    }

    async fn take(
        &self,
        key: &Key,
        owner: &Bytes,
        now: Timestamp,
        condition: Condition,
    ) -> Result<Acquired> {
        let actions = vec![
            Action::set_integer(SINCE, now.0 as i64),
            Action::set(OWNER, owner.clone()),
            Action::Add(TOKEN.into(), 1),
        ];
        let updated = self
            .key_value
            .update(Update::modify(key.clone(), actions).when(condition))
            .await?;
        match updated.outcome {
            Outcome::Done(Some(item)) => {
                let token = token_of(&item).ok_or_else(|| not_a_lock(key))?;
                Ok(Acquired::Held(Held {
                    key: key.clone(),
                    token,
                    item,
                    receipt: updated.receipt,
                }))
            }
            Outcome::Conflict(Some(item)) => {
                let holder = Holder::of(&item).ok_or_else(|| not_a_lock(key))?;
                Ok(Acquired::Busy(holder, item))
            }
            Outcome::Done(None) | Outcome::Conflict(None) => Err(not_a_lock(key)),
        }
    }

    async fn guarded(
        &self,
        held: &Held,
        actions: Vec<Action>,
        operation: Option<Operation>,
    ) -> Result<Guarded> {
        let update = Update {
            operation,
            ..Update::modify(held.key.clone(), actions).when(held.guard())
        };
        // A store that has lost the lock gives its token to somebody else: the guard alone cannot tell them apart.
        let updated = self
            .key_value
            .update(update.resting_on(held.receipt.point))
            .await?;
        Ok(match updated.outcome {
            Outcome::Done(item) => Guarded::Done {
                item,
                receipt: updated.receipt,
            },
            Outcome::Conflict(item) => Guarded::LostLock(item, updated.receipt),
        })
    }
}

impl Held {
    /// Holds while the lock is the holder's: for updates of its own making, in transactions for example. They have to
    /// rest on the point of [`Held::receipt`] too.
    pub fn guard(&self) -> Condition {
        Condition::All(vec![
            Condition::attribute(TOKEN, Test::is_integer(self.token.0 as i64)),
            Condition::attribute(SINCE, Test::Exists),
        ])
    }

    /// What gives a lock back, to be applied under [`Held::guard`].
    pub fn unlocking() -> [Action; 2] {
        [Action::unset(SINCE), Action::unset(OWNER)]
    }
}

impl Holder {
    /// Who holds the lock on an item, if anybody does.
    pub fn of(item: &Item) -> Option<Self> {
        let since = Timestamp(u64::try_from(item.integer(SINCE)?).ok()?);
        Some(Self {
            owner: item.bytes(OWNER)?.clone(),
            token: token_of(item)?,
            since,
        })
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner,
            token,
            since,
        } = self;
        write!(
            f,
            "{} with token {} since {}",
            owner.escape_ascii(),
            token.0,
            since.0
        )
    }
}

fn free() -> Condition {
    Condition::attribute(SINCE, Test::Absent)
}

fn owned_by(owner: &Bytes) -> Condition {
    Condition::attribute(OWNER, Test::is(owner.clone()))
}

fn token_of(item: &Item) -> Option<Token> {
    u64::try_from(item.integer(TOKEN)?).ok().map(Token)
}

fn touches_lock(action: &Action) -> bool {
    let (Action::Set(name, _)
    | Action::Add(name, _)
    | Action::Append(name, _)
    | Action::RemoveFirst(name, _)
    | Action::RemoveElements(name, _)
    | Action::Unset(name)) = action;
    [SINCE, OWNER, TOKEN].contains(&name.as_str())
}

fn not_a_lock(key: &Key) -> Error {
    Error::corrupt(format!("read the lock on {key:?}"))
}
