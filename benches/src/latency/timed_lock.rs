//! The timed lock of FaaSKeeper's section 2.2, as far as the benchmark measures it.
//!
//! The lock is three attributes of the item that it protects, so taking it and releasing it are one
//! conditional update each. It is free without a timestamp, and expired once its timestamp is too
//! old. Where the paper compares the timestamp of a release, we compare a token, because two
//! holders can take the lock in the same millisecond.

use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Key, Receipt, Result, Timestamp, Update,
    key_value::{Action, Outcome, SharedKeyValue, Test},
};

/// The largest difference between the clocks of two holders.
const DRIFT_MS_MAX: u64 = 2_000;

/// When the holder took the lock, by its own clock.
const SINCE: &str = "lock_since";
/// The owner that the holder named.
const OWNER: &str = "lock_owner";
/// The number of the last holder.
const TOKEN: &str = "lock_token";

/// The settings of one kind of lock.
pub(super) struct TimedLock {
    key_value: SharedKeyValue,
    hold_ms_max: u64,
}

/// A lock that was taken.
pub(super) struct Held {
    key: Key,
    token: i64,
    /// The point of taking it.
    pub(super) point: DurabilityPoint,
}

impl TimedLock {
    /// Locks with a holding time of at most `hold_ms_max`.
    pub(super) fn new(key_value: SharedKeyValue, hold_ms_max: u64) -> Self {
        Self {
            key_value,
            hold_ms_max,
        }
    }

    /// Takes the lock on `key` if it is free, expired, or already the owner's. None: another owner
    /// holds it.
    pub(super) async fn acquire(
        &self,
        key: &Key,
        owner: &Bytes,
        now: Timestamp,
    ) -> Result<Option<Held>> {
        let hold_ms_max = self.hold_ms_max.saturating_add(DRIFT_MS_MAX);
        let expired_before = (now.0 as i64).saturating_sub_unsigned(hold_ms_max);
        let can_take = Condition::Any(vec![
            Condition::attribute(SINCE, Test::Absent),
            Condition::attribute(OWNER, Test::is(owner.clone())),
            Condition::attribute(SINCE, Test::Below(expired_before)),
        ]);
        let actions = vec![
            Action::set_integer(SINCE, now.0 as i64),
            Action::set(OWNER, owner.clone()),
            Action::Add(TOKEN.into(), 1),
        ];
        let update = Update::modify(key.clone(), actions).when(can_take);
        let updated = self.key_value.update(update).await?;
        let Outcome::Done(Some(item)) = updated.outcome else {
            return Ok(None);
        };
        Ok(item.integer(TOKEN).map(|token| Held {
            key: key.clone(),
            token,
            point: updated.receipt.point,
        }))
    }

    /// Releases the lock. None: the caller no longer held it.
    pub(super) async fn release(&self, held: &Held) -> Result<Option<Receipt>> {
        let guard = Condition::All(vec![
            Condition::attribute(TOKEN, Test::is_integer(held.token)),
            Condition::attribute(SINCE, Test::Exists),
        ]);
        let actions = vec![Action::unset(SINCE), Action::unset(OWNER)];
        // A store that has lost the lock gives its token to another owner, so the guard alone is
        // not enough (D4).
        let update = Update::modify(held.key.clone(), actions)
            .when(guard)
            .depends_on(held.point);
        let updated = self.key_value.update(update).await?;
        Ok(matches!(updated.outcome, Outcome::Done(_)).then_some(updated.receipt))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ports::{Key, Timestamp};
    use simulated::World;

    use super::{DRIFT_MS_MAX, TimedLock};

    const HOLD_MS: u64 = 5_000;

    #[test]
    fn a_lock_has_one_holder_and_each_step_is_one_call() {
        simulated::run(async {
            let world = World::new(1);
            let (lock, key) = (
                TimedLock::new(world.key_value(), HOLD_MS),
                Key::new("locks", "a"),
            );
            let take = async |owner: &'static str, ms| {
                let owner = Bytes::from_static(owner.as_bytes());
                let taken = lock.acquire(&key, &owner, Timestamp(ms)).await;
                taken.expect("a calm world")
            };
            let release = async |held| lock.release(held).await.expect("a calm world").is_some();
            let first = take("a", 0).await.expect("it is free");
            assert!(take("b", HOLD_MS + DRIFT_MS_MAX).await.is_none(), "held");
            let second = take("b", HOLD_MS + DRIFT_MS_MAX + 1).await;
            let second = second.expect("it has expired");
            assert!(!release(&first).await, "it has a successor");
            assert!(release(&second).await && !release(&second).await, "once");
            assert_eq!(world.port_calls(), 6);
        });
    }
}
