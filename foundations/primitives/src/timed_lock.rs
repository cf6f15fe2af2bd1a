//! The timed lock: an item that one holder may change, for a limited time.
//!
//! The lock is three attributes of the item that it protects. Taking it, writing under it and
//! releasing it are therefore one conditional update each. It is free without a timestamp. It is
//! expired if its timestamp is older than `hold_ms_max` plus [`DRIFT_MS_MAX`] by the caller's
//! clock. Expiry limits waiting and is never needed for safety, because clocks are wrong and a
//! holder may be paused right before its write. The token gives safety. Every write under the lock
//! is conditional on the token, and depends on the store still having the lock (promise D4): a
//! store that went back gives out the same token again.
//!
//! Invariants
//! - The token never goes down, and a release keeps it. An item with a lock must therefore not be
//!   deleted while holders use its tokens: services leave a tombstone.
//! - `lock_since` and `lock_owner` are present or absent together.
//!
//! From FaaSKeeper, section 2.2, which compares the timestamp where we compare the token. Two
//! functions can hold the lock in the same millisecond, and a timestamp can go back.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use ports::{
    Condition, Error, Item, Key, Receipt, Result, Timestamp, Update,
    key_value::{Action, Operation, Outcome, SharedKeyValue, Test},
};
use serde::{Deserialize, Serialize};

/// The largest difference between the clocks of two functions that S1 allows for.
pub const DRIFT_MS_MAX: u64 = 2_000;

/// When the holder took the lock, by its own clock.
const SINCE: &str = "lock_since";
/// The owner that the holder named.
const OWNER: &str = "lock_owner";
/// The token of the last holder.
const TOKEN: &str = "lock_token";

/// The fencing token: grows with each holder of a lock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Token(pub u64);

/// The settings of one kind of lock. All users of a lock must agree on them.
#[derive(Debug, Clone)]
pub struct TimedLock {
    key_value: SharedKeyValue,
    hold_ms_max: u64,
}

/// A lock that was taken. Use it outside the store only once its point is durable (rule P5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The item.
    pub key: Key,
    /// The token that guards the holder's writes.
    pub token: Token,
    /// The item right after the lock was taken.
    pub item: Arc<Item>,
    /// The point of taking it.
    pub receipt: Receipt,
}

/// The holder of a lock.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    /// The owner that it named.
    pub owner: Bytes,
    /// Its token.
    pub token: Token,
    /// When it took the lock, by its own clock.
    pub since: Timestamp,
}

/// How an acquisition ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The caller holds the lock.
    Held(Held),
    /// Another owner holds it. Contains the present item.
    Busy(Holder, Arc<Item>),
}

/// How a guarded update ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded {
    /// It was applied.
    Done {
        /// The item after it.
        item: Option<Arc<Item>>,
        /// The point of the update.
        receipt: Receipt,
    },
    /// The caller no longer held the lock, and nothing changed. Contains the present item, and the
    /// receipt of the refusal.
    LostLock(Option<Arc<Item>>, Receipt),
}

impl TimedLock {
    /// Locks with a holding time of at most `hold_ms_max`.
    pub fn new(key_value: SharedKeyValue, hold_ms_max: u64) -> Self {
        Self {
            key_value,
            hold_ms_max,
        }
    }

    /// Takes the lock on `key` if it is free, expired, or already the owner's (S5). Creates the
    /// item if it is missing. `now` is the caller's clock. `owner` names the caller to others.
    pub async fn acquire(&self, key: &Key, owner: &Bytes, now: Timestamp) -> Result<Acquired> {
        let can_take = Condition::Any(vec![
            Condition::attribute(SINCE, Test::Absent),
            Condition::attribute(OWNER, Test::is(owner.clone())),
            Condition::attribute(SINCE, Test::Below(self.expired_before(now))),
        ]);
        let actions = vec![
            Action::set_integer(SINCE, now.0 as i64),
            Action::set(OWNER, owner.clone()),
            Action::Add(TOKEN.into(), 1),
        ];
        let updated = self
            .key_value
            .update(Update::modify(key.clone(), actions).when(can_take))
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

    /// Whether `holder` has held the lock for longer than it may, by a clock that says `now`.
    pub fn is_expired(&self, holder: &Holder, now: Timestamp) -> bool {
        (holder.since.0 as i64) < self.expired_before(now)
    }

    /// Applies `actions` to the locked item if the caller still holds the lock (S3). With an
    /// operation, a repeat is recognised, also under a later lock or none.
    ///
    /// Errors: `Lost`, and nothing changed, if the store has lost the lock. [`TimedLock::release`]
    /// likewise.
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

    /// Applies `actions`, which may be empty, and releases the lock, in one step (S3).
    ///
    /// A repeat is recognised by the token until another owner takes the lock. After that its
    /// answer is `LostLock`, like that of a release that never happened. A release takes no
    /// operation: one remembered from an earlier acquisition would leave the lock held. Callers
    /// that need a longer memory make a [`TimedLock::update`] of its own before.
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
            // Only its holder releases a lock, so an earlier attempt of this release succeeded.
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
        // A store that has lost the lock gives its token to another owner. The guard alone cannot
        // tell them apart.
        let updated = self
            .key_value
            .update(update.depends_on(held.receipt.point))
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
    /// Holds while the lock is the holder's. For updates that the holder makes itself, in
    /// transactions for example. They must also depend on the point of [`Held::receipt`].
    pub fn guard(&self) -> Condition {
        Condition::All(vec![
            Condition::attribute(TOKEN, Test::is_integer(self.token.0 as i64)),
            Condition::attribute(SINCE, Test::Exists),
        ])
    }

    /// The actions that release a lock, to be applied under [`Held::guard`].
    pub fn unlocking() -> [Action; 2] {
        [Action::unset(SINCE), Action::unset(OWNER)]
    }
}

impl Holder {
    /// The holder of the lock on an item, if there is one.
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

fn token_of(item: &Item) -> Option<Token> {
    u64::try_from(item.integer(TOKEN)?).ok().map(Token)
}

fn touches_lock(action: &Action) -> bool {
    [SINCE, OWNER, TOKEN].contains(&action.name().as_str())
}

fn not_a_lock(key: &Key) -> Error {
    Error::corrupt(format!("read the lock on {key:?}"))
}
