//! Read leases: grants, recalls, and the leases that an earlier epoch may have granted.
//!
//! A proposal recalls the leases on the groups that it writes, and waits for that before it is
//! ordered. The installed state notes, before the first session is known, that its epoch may grant
//! leases. A successor that finds the note lets no proposal write until they are over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use ports::{Monotonic, Read};
use primitives::Epoch;
use tokio::sync::{Notify, OnceCell};

use super::Volume;
use crate::{
    Result,
    broken::Broken,
    context::Context,
    serializable::{
        lease_table::{Held, LeaseTable, Noted},
        model::{At, KEYS_MAX, Key, LEASE, LEASE_POLL, Leased, Recall, SessionId, Write},
    },
};

/// Clocks of clients may be slower by 5 percent.
const MARGIN: Duration = Duration::from_millis(100);

/// The leases of a volume.
#[derive(Debug)]
pub(super) struct Leases {
    table: Mutex<LeaseTable>,
    /// Leases were recalled.
    recalled: Notify,
    /// Leases have ended.
    ended: Notify,
    /// That this epoch may grant leases is stored.
    is_noted: OnceCell<()>,
    /// The same, or it is about to be stored.
    may_grant: AtomicBool,
    /// No proposal writes before: leases of earlier epochs may not be over.
    writes_from: Option<Monotonic>,
}

/// A proposal that is not decided yet. Meanwhile the groups that it writes are not granted.
#[derive(Debug)]
pub(super) struct Writing {
    leases: Arc<Leases>,
    noted: Noted,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.leases.table.lock().end(&self.noted);
    }
}

impl Leases {
    /// Those of a new epoch; `may_have` tells whether an earlier one may have granted some.
    pub(super) fn new(context: &Context, epoch: Epoch, may_have: bool) -> Arc<Self> {
        let waits = may_have && !context.breaks(Broken::ForgetsLeasesOfPredecessor);
        Arc::new(Self {
            table: Mutex::new(LeaseTable::new(epoch, context.config.mutant)),
            recalled: Notify::new(),
            ended: Notify::new(),
            is_noted: OnceCell::new(),
            may_grant: AtomicBool::new(false),
            writes_from: waits.then(|| context.clock.monotonic() + LEASE + MARGIN),
        })
    }

    /// Whether there may be leases, those of earlier epochs included.
    pub(super) fn may_have_any(&self, now: Monotonic) -> bool {
        let have_ended = self.writes_from.is_none_or(|from| now >= from);
        !have_ended || self.may_grant.load(Ordering::SeqCst)
    }
}

impl Volume {
    /// Reads at the tail, after it has granted leases on groups of `keys`.
    pub(crate) async fn get_leased(
        &self,
        session: SessionId,
        keys: &[Key],
    ) -> Result<Read<Leased>> {
        self.check()?;
        let now = self.context.clock.monotonic();
        let some = keys.iter().take(KEYS_MAX);
        let granted = self.leases.table.lock().grant(session, some, now);
        let Read { value, point } = self.get_many(At::Tail, keys).await?;
        let value = Leased {
            values: value,
            groups: self.leases.table.lock().still_held(session, granted),
        };
        Ok(Read { value, point })
    }

    /// Waits for a recall. The call renews the leases of the session.
    pub(crate) async fn recalled(
        &self,
        session: SessionId,
        acknowledged: u64,
    ) -> Result<Read<Recall>> {
        self.check()?;
        let leases = &self.leases;
        let arrived = self.context.clock.monotonic();
        let is_known = leases.table.lock().renew(session, acknowledged, arrived);
        leases.ended.notify_waiters();
        if !is_known {
            leases.is_noted.get_or_try_init(|| self.note()).await?;
            let now = self.context.clock.monotonic();
            if !leases.table.lock().register(session, now) {
                // A client that asks again and again would cost the more.
                self.context.clock.sleep(LEASE_POLL).await;
            }
        }
        loop {
            let mut recalled = std::pin::pin!(leases.recalled.notified());
            // From here on no recall is missed.
            recalled.as_mut().enable();
            self.check()?;
            // Read first, so that a recall for a later slot is told as well.
            let visible = {
                let state = self.state();
                state.answer(state.visible)
            };
            let told = leases.table.lock().told(session);
            let waited = self.context.clock.monotonic().since(arrived);
            if told.has_lapsed || !told.groups.is_empty() || waited >= LEASE_POLL {
                let Read { value, point } = visible;
                let value = Recall {
                    number: told.number,
                    groups: told.groups,
                    has_lapsed: told.has_lapsed,
                    visible: value,
                };
                return Ok(Read { value, point });
            }
            tokio::select! {
                biased;
                () = recalled => {}
                () = self.context.clock.sleep(LEASE_POLL.saturating_sub(waited)) => {}
            }
        }
    }

    /// Drops the leases of a session.
    pub(super) fn end_leases(&self, session: SessionId) {
        self.leases.table.lock().end_session(session);
        self.leases.ended.notify_waiters();
    }

    /// Recalls all leases of others than `own` on what a proposal writes, and returns once none is
    /// in its way. Until the result is dropped, none is granted. `None`: it writes nothing.
    pub(super) async fn recall(
        &self,
        writes: &[Write],
        own: Option<SessionId>,
    ) -> Result<Option<Writing>> {
        if writes.is_empty() {
            return Ok(None);
        }
        let now = self.context.clock.monotonic();
        if let Some(from) = self.leases.writes_from
            && now < from
        {
            self.context.clock.sleep(from.since(now)).await;
            self.check()?;
        }
        let now = self.context.clock.monotonic();
        let (noted, held) = self.leases.table.lock().begin(writes, own, now);
        let writing = Writing {
            leases: Arc::clone(&self.leases),
            noted,
        };
        if !held.is_empty() {
            self.leases.recalled.notify_waiters();
            if !self.context.breaks(Broken::AnswersBeforeRecall) {
                for lease in held {
                    self.ends(lease).await;
                }
            }
            self.check()?;
        }
        Ok(Some(writing))
    }

    /// Returns once a lease has ended.
    async fn ends(&self, lease: Held) {
        loop {
            let mut ended = std::pin::pin!(self.leases.ended.notified());
            ended.as_mut().enable();
            let now = self.context.clock.monotonic();
            if self.leases.table.lock().is_over(&lease, now) {
                return;
            }
            tokio::select! {
                biased;
                () = ended => {}
                () = self.context.clock.sleep(lease.until.since(now)) => {}
            }
        }
    }

    /// Stores that this epoch may grant leases. Errors: `Unavailable`, also if there is a later
    /// epoch.
    async fn note(&self) -> Result<()> {
        self.leases.may_grant.store(true, Ordering::SeqCst);
        self.set_installed(|_| {}).await?;
        self.store.externalize(self.store.basis()).await
    }
}
