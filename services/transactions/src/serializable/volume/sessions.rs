//! Locks and holds of sessions, which are in memory only. A take-over ends them, and leases too.

use std::time::Duration;

use super::Volume;
use crate::{
    Result,
    serializable::model::{Granted, Key, Lock, Owner, SessionId, Wait},
};

/// How often a lock that waits checks that its node still serves.
const CHECK_EVERY: Duration = Duration::from_secs(1);

impl Volume {
    /// Takes, tests or frees a lock.
    pub(crate) async fn lock(&self, owner: Owner, lock: Lock) -> Result<Granted> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // From here on no wake-up is missed.
            freed.as_mut().enable();
            self.check()?;
            let granted = {
                let state = &mut *self.state();
                match lock.wait {
                    Wait::Test => state.locks.test(owner, &lock),
                    _ => state.locks.take(owner, &lock, state.visible),
                }
            };
            if granted != Granted::Yes && lock.wait == Wait::UntilGranted {
                // The node may end meanwhile, and this table with it.
                tokio::select! {
                    biased;
                    () = freed => {}
                    () = self.context.clock.sleep(CHECK_EVERY) => {}
                }
                continue;
            }
            if granted == Granted::Yes && lock.wait != Wait::Test {
                // An unlock frees bytes, and so does an exclusive lock that becomes shared.
                self.freed.notify_waiters();
            }
            return Ok(granted);
        }
    }

    /// Notes that `session` uses `key`.
    pub(crate) fn hold(&self, session: SessionId, key: Key) -> Result<()> {
        self.check()?;
        self.state().holds.insert((key, session));
        Ok(())
    }

    /// Ends a hold.
    pub(crate) fn release(&self, session: SessionId, key: &Key) -> Result<()> {
        self.check()?;
        self.state().holds.remove(&(key.clone(), session));
        Ok(())
    }

    /// Whether any session holds `key`.
    pub(crate) fn is_held(&self, key: &Key) -> Result<bool> {
        self.check()?;
        let first = (key.clone(), SessionId(0));
        let state = self.state();
        let held = state.holds.range(first..).next();
        Ok(held.is_some_and(|(held, _)| held == key))
    }

    /// Ends all locks, holds and leases of `session`.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<()> {
        self.check()?;
        self.end_leases(session);
        let state = &mut *self.state();
        state.locks.end_session(session, state.visible);
        state.holds.retain(|(_, holder)| *holder != session);
        self.freed.notify_waiters();
        Ok(())
    }
}
