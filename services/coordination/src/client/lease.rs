//! The lease under which a client acts for its session (rule C-6).
//!
//! The client renews the session's row while its peer is active, at most [`RENEWALS_PER_TIMEOUT`]
//! times per timeout. It counts the lease from before each renewal was sent, and stops answering
//! when the lease runs out. The row may therefore lag behind the peer's last message by one renewal
//! period. The failure detector allows for this, because the process may die after it received that
//! message.
//!
//! When a peer disconnects, the client renews once more. It then records that the peer has been
//! silent since that renewal, and for how long before it. It does the same for a connected peer
//! that sends nothing for two periods. Then the row is exact, and the session ends one timeout
//! after its peer's last message. A peer that pings like ZooKeeper's clients, three times per
//! timeout, does not cause this extra write.
//!
//! Invariants
//! - A request is executed within a renewal period of the renewal before it, or after a renewal
//!   that is made for it.
//! - A record of silence refers to one renewal. From then on the lease also counts from the peer's
//!   last message, so it runs out before a detector that reads the record can expire the session.

use std::{future::Future, pin::Pin, time::Duration};

use ports::Monotonic;

use super::Client;
use crate::{
    broken::Broken,
    error::Ended,
    model::Connection,
    storage::session::{self, RENEWALS_PER_TIMEOUT, Transition},
};

/// A peer that sent nothing for this many renewal periods is recorded as silent.
const SILENT_PERIODS: u32 = 2;

/// How long a client may act for its session, and whether its peer has been active.
pub(super) struct Lease {
    pub(super) renewed_at: Monotonic,
    /// The renewal count in the row.
    renewals: i64,
    /// The peer sent something since the last renewal.
    is_peer_active: bool,
    /// The peer sent something since the last check of the lease.
    pub(super) has_activity: bool,
    /// When the peer's last message was noticed, as of the last check of the lease.
    active_at: Monotonic,
    /// The peer is recorded as silent since the last renewal.
    is_recorded_silent: bool,
    /// Fires when a renewal or a record may be due. It persists across calls of `wait`.
    timer: Option<Timer>,
}

struct Timer {
    due: Monotonic,
    fires: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Lease {
    /// A lease that was requested at `renewed_at` as renewal number `renewals`, with the peer's
    /// last message at `active_at`.
    pub(super) fn granted(renewed_at: Monotonic, active_at: Monotonic, renewals: i64) -> Self {
        Self {
            renewed_at,
            renewals,
            is_peer_active: false,
            has_activity: false,
            active_at,
            is_recorded_silent: false,
            timer: None,
        }
    }

    /// Records at `now` whether the peer sent something.
    fn update_activity(&mut self, now: Monotonic) {
        if std::mem::take(&mut self.has_activity) {
            (self.is_peer_active, self.active_at) = (true, now);
        }
    }

    /// Returns once a renewal or a record may be due. Cancellation safe.
    pub(super) async fn timer_fires(&mut self) {
        match &mut self.timer {
            Some(timer) => (&mut timer.fires).await,
            None => std::future::pending().await,
        }
        self.timer = None;
    }
}

impl Client {
    /// Counts the peer as active although it sent no request, unless it is closing.
    pub(crate) fn note_activity(&mut self) {
        self.lease.has_activity |= !self.is_closing;
    }

    /// Counts the peer as active while it reads earlier answers and the front end does not read
    /// from it. Not cancellation safe.
    pub async fn keep_alive(&mut self) -> Result<(), Ended> {
        self.note_activity();
        self.keep_lease().await
    }

    /// Ends the connection of a peer that left or is being disconnected. The session then ends one
    /// timeout after its peer's last message. A renewal that was not due yet is made now; if it
    /// fails, only this session's timeout is affected.
    pub async fn disconnect(&mut self) {
        let now = self.tail.env.parts.clock.monotonic();
        if self.is_closing || now >= self.lease_until() {
            return;
        }
        self.lease.update_activity(now);
        if self.lease.is_peer_active {
            match self.renew().await {
                Ok(Transition::Done(row)) => {
                    self.lease = Lease::granted(now, self.lease.active_at, row.renewals);
                }
                Ok(Transition::Refused(_)) => return,
                Err(error) => {
                    tracing::debug!(session = ?self.session(), %error, "could not renew a session on disconnect");
                    return;
                }
            }
        }
        self.record_silence().await;
    }

    /// When the lease runs out unless it is renewed.
    pub(crate) fn lease_until(&self) -> Monotonic {
        self.lease.renewed_at + self.attached.timeout
    }

    /// Renews the lease if that is due. Fails if it has run out.
    pub(super) async fn keep_lease(&mut self) -> Result<(), Ended> {
        let now = self.tail.env.parts.clock.monotonic();
        if now >= self.lease_until() {
            return Err(Ended::LeaseLost);
        }
        self.lease.update_activity(now);
        if self.lease_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        if !self.lease.is_peer_active {
            self.record_silence().await;
            let has_expired = self.tail.env.parts.clock.monotonic() >= self.lease_until();
            return if has_expired {
                Err(Ended::LeaseLost)
            } else {
                Ok(())
            };
        }
        if self.tail.env.parts.queue.point().incarnation != self.attached.incarnation {
            // Earlier requests may be lost, and only the peer can send them again.
            return Err(ports::Error::unavailable(
                "wait for answers from a store that has restarted",
            )
            .into());
        }
        match self.renew().await? {
            Transition::Done(row) => {
                if self.sent > 0 {
                    // A slow answer may have been missed if no other client makes this process read
                    // the log.
                    self.tail.poll_soon();
                }
                let is_late = self.tail.env.breaks(Broken::CountsLeasesFromTheirAnswer);
                let renewed_at = if is_late {
                    self.tail.env.parts.clock.monotonic()
                } else {
                    now
                };
                self.lease = Lease::granted(renewed_at, self.lease.active_at, row.renewals);
                Ok(())
            }
            Transition::Refused(Some(row)) if row.attach != self.attached.connection.attach => {
                Err(Ended::Moved)
            }
            // Closed by this client's own request, whose answer is on its way.
            Transition::Refused(_) if self.is_closing => {
                self.lease.is_peer_active = false;
                Ok(())
            }
            Transition::Refused(_) => Err(Ended::Expired),
        }
    }

    async fn renew(&mut self) -> Result<Transition, ports::Error> {
        let Connection { session, attach } = self.attached.connection;
        let store = &mut self.attached.store;
        match session::renew(store, session, attach).await? {
            Transition::Refused(Some(row))
                if self.tail.env.breaks(Broken::RenewsForItsReplacement) =>
            {
                session::renew(store, session, row.attach).await
            }
            renewed => Ok(renewed),
        }
    }

    /// Records once that the peer has been silent since the last renewal, and for how long before
    /// it. If the write fails, the session ends somewhat later.
    async fn record_silence(&mut self) {
        if std::mem::replace(&mut self.lease.is_recorded_silent, true) {
            return;
        }
        let Lease {
            renewed_at,
            active_at,
            renewals,
            ..
        } = self.lease;
        let before = renewed_at.since(active_at);
        self.lease.renewed_at = renewed_at.min(active_at);
        let Connection { session, attach } = self.attached.connection;
        let store = &mut self.attached.store;
        let said = session::record_silence(store, session, attach, renewals, before).await;
        if let Err(error) = said {
            tracing::debug!(?session, %error, "could not record a session as silent");
        }
    }

    pub(super) fn lease_has_run_out(&self) -> bool {
        self.tail.env.parts.clock.monotonic() >= self.lease_until()
            && !self.tail.env.breaks(Broken::AnswersAfterItsLease)
    }

    pub(super) fn set_lease_timer(&mut self) {
        let due = self.lease_due();
        if self.lease.timer.as_ref().map(|timer| timer.due) == due {
            return;
        }
        let clock = &self.tail.env.parts.clock;
        self.lease.timer = due.map(|due| {
            let clock = clock.clone();
            Timer {
                due,
                fires: Box::pin(async move { clock.sleep(due.since(clock.monotonic())).await }),
            }
        });
    }

    /// When the lease must be renewed or its peer recorded as silent. `None` if neither is due
    /// before the peer's next message.
    fn lease_due(&self) -> Option<Monotonic> {
        let Lease {
            renewed_at,
            is_peer_active,
            has_activity,
            is_recorded_silent,
            ..
        } = self.lease;
        if is_peer_active || has_activity {
            return Some(renewed_at + self.renewal_period());
        }
        let is_silent = !is_recorded_silent && !self.is_closing;
        is_silent.then(|| renewed_at + self.renewal_period() * SILENT_PERIODS)
    }

    fn renewal_period(&self) -> Duration {
        self.attached.timeout / RENEWALS_PER_TIMEOUT
    }
}
