//! Under what a client speaks for its session (rule C-6).
//!
//! It renews the session's row while its peer is active, at most [`RENEWALS_PER_TIMEOUT`] times a timeout, counts the lease from
//! before each renewal was sent, and falls silent when it runs out. So the row may be behind what the peer said last, by a
//! renewal period: whoever judges it allows for that, as the process may have died with what it had heard.
//!
//! A peer that goes costs one more renewal, and it is said that nobody was heard since, and for how long before it; so it is of
//! one that stays and says nothing for two periods. Then the row is exact, and the session ends as soon as its timeout is over
//! from its peer's last word. One that pings as ZooKeeper's clients do, three times a timeout, costs no such word.
//!
//! Invariants
//! - A request is executed within a renewal period of the renewal before it, or behind one that is made for it.
//! - That nobody was heard since a renewal is said of that renewal alone. From then on the lease counts from the last word, too:
//!   it runs out before anybody who believes that judges the session.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use ports::Monotonic;

use super::Client;
use crate::{
    broken::Broken,
    error::Ended,
    storage::session::{Moved, RENEWALS_PER_TIMEOUT},
};

/// A peer that has said nothing for so many renewal periods is said to be silent.
const SILENT_PERIODS: u32 = 2;

/// How long a client may speak, and what its peer has said meanwhile.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) renewed_at: Monotonic,
    /// As the row counts them.
    renewals: i64,
    /// Its peer was heard since then.
    is_peer_active: bool,
    /// It was heard since the lease was looked at.
    pub(super) has_spoken: bool,
    /// When it was heard last, as far as the lease was looked at since.
    heard_at: Monotonic,
    /// It was said that nobody was heard since.
    is_said_silent: bool,
    /// Fires when something may be due; kept over calls of `wait`.
    timer: Option<Timer>,
}

struct Timer {
    due: Monotonic,
    fires: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Lease {
    /// Asked for at `renewed_at`, by the last of so many renewals, where the peer was heard last at `heard_at`.
    pub(super) fn granted(renewed_at: Monotonic, heard_at: Monotonic, renewals: i64) -> Self {
        let (is_peer_active, has_spoken, is_said_silent) = (false, false, false);
        Self {
            renewed_at,
            renewals,
            is_peer_active,
            has_spoken,
            heard_at,
            is_said_silent,
            timer: None,
        }
    }

    /// Notes at `now` whether the peer was heard.
    fn look(&mut self, now: Monotonic) {
        if std::mem::take(&mut self.has_spoken) {
            (self.is_peer_active, self.heard_at) = (true, now);
        }
    }

    /// Returns once something may be due. Cancellation safe.
    pub(super) async fn timer_fires(&mut self) {
        match &mut self.timer {
            Some(timer) => (&mut timer.fires).await,
            None => std::future::pending().await,
        }
        self.timer = None;
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.due)
    }
}

impl Client {
    /// Its peer is there, also if it asks for nothing; not one that is about to go.
    pub(crate) fn is_here(&mut self) {
        self.lease.has_spoken |= !self.is_closing;
    }

    /// Its peer reads what it was sent before, and is not read from meanwhile: it is there. Not cancellation safe.
    pub async fn takes_answers(&mut self) -> Result<(), Ended> {
        self.is_here();
        self.keep_lease().await
    }

    /// Its peer has gone, or is sent away: the session has its timeout from when it was last heard of, and ends soon after. A
    /// renewal that was not due yet is made now. One that fails is the peer's loss alone.
    pub async fn leave(&mut self) {
        let now = self.shared.clock.monotonic();
        if self.is_closing || now >= self.lease_until() {
            return;
        }
        self.lease.look(now);
        if self.lease.is_peer_active {
            match self.renew().await {
                Ok(Moved::Done(row)) => {
                    self.lease = Lease::granted(now, self.lease.heard_at, row.renewals);
                }
                Ok(Moved::Refused(_)) => return,
                Err(error) => {
                    tracing::debug!(session = ?self.session, %error, "a session is not renewed by its last request");
                    return;
                }
            }
        }
        self.say_silent().await;
    }

    /// When its lease runs out unless it is renewed before.
    pub(crate) fn lease_until(&self) -> Monotonic {
        self.lease.renewed_at + self.timeout
    }

    /// Renews the lease if that is due, and falls silent if it has run out.
    pub(super) async fn keep_lease(&mut self) -> Result<(), Ended> {
        let now = self.shared.clock.monotonic();
        if now >= self.lease_until() {
            return Err(Ended::LeaseLost);
        }
        self.lease.look(now);
        if self.lease_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        if !self.lease.is_peer_active {
            self.say_silent().await;
            let is_over = self.shared.clock.monotonic() >= self.lease_until();
            return if is_over {
                Err(Ended::LeaseLost)
            } else {
                Ok(())
            };
        }
        if self.shared.queue.point().incarnation != self.incarnation {
            // What was sent before may be lost, and only the peer can ask again.
            return Err(ports::Error::unavailable(
                "wait for answers of a store that has restarted",
            )
            .into());
        }
        match self.renew().await? {
            Moved::Done(row) => {
                if self.sent > 0 {
                    // An answer that takes this long may be forgotten where nobody else looks at the log.
                    self.shared.tail.expect();
                }
                let is_late =
                    self.shared.config.broken == Some(Broken::CountsLeasesFromTheirAnswer);
                let renewed_at = if is_late {
                    self.shared.clock.monotonic()
                } else {
                    now
                };
                self.lease = Lease::granted(renewed_at, self.lease.heard_at, row.renewals);
                Ok(())
            }
            Moved::Refused(Some(row)) if row.attach != self.attach => Err(Ended::Moved),
            // Closed by this client's own request: the answer is on its way.
            Moved::Refused(_) if self.is_closing => {
                self.lease.is_peer_active = false;
                Ok(())
            }
            Moved::Refused(_) => Err(Ended::Expired),
        }
    }

    async fn renew(&mut self) -> Result<Moved, ports::Error> {
        let sessions = &self.shared.sessions;
        let renewed = sessions
            .renew(self.session, self.attach, &mut self.basis)
            .await?;
        match renewed {
            Moved::Refused(Some(row))
                if self.shared.config.broken == Some(Broken::RenewsForWhoeverIsAttached) =>
            {
                sessions
                    .renew(self.session, row.attach, &mut self.basis)
                    .await
            }
            renewed => Ok(renewed),
        }
    }

    /// Says that its peer was not heard since the last renewal, nor for some time before. Once: where that fails, the session
    /// ends somewhat later.
    async fn say_silent(&mut self) {
        if std::mem::replace(&mut self.lease.is_said_silent, true) {
            return;
        }
        let Lease {
            renewed_at,
            heard_at,
            renewals,
            ..
        } = self.lease;
        let before = renewed_at.since(heard_at);
        self.lease.renewed_at = renewed_at.min(heard_at);
        let sessions = &self.shared.sessions;
        let said = sessions
            .say_silent(self.session, self.attach, renewals, before, &mut self.basis)
            .await;
        if let Err(error) = said {
            tracing::debug!(session = ?self.session, %error, "a session is not said to be silent");
        }
    }

    pub(super) fn has_fallen_silent(&self) -> bool {
        self.shared.clock.monotonic() >= self.lease_until()
            && self.shared.config.broken != Some(Broken::AnswersAfterItsLease)
    }

    /// Sets the timer to what will be due next.
    pub(super) fn set_lease_timer(&mut self) {
        let due = self.lease_due();
        if self.lease.timer.as_ref().map(|timer| timer.due) == due {
            return;
        }
        let clock = &self.shared.clock;
        self.lease.timer = due.map(|due| {
            let clock = clock.clone();
            Timer {
                due,
                fires: Box::pin(async move { clock.sleep(due.since(clock.monotonic())).await }),
            }
        });
    }

    /// When the lease is to be renewed, or its peer to be said silent; none: not unless the peer is heard.
    fn lease_due(&self) -> Option<Monotonic> {
        let Lease {
            renewed_at,
            is_peer_active,
            has_spoken,
            is_said_silent,
            ..
        } = self.lease;
        if is_peer_active || has_spoken {
            return Some(renewed_at + self.renewal_period());
        }
        let is_silent = !is_said_silent && !self.is_closing;
        is_silent.then(|| renewed_at + self.renewal_period() * SILENT_PERIODS)
    }

    fn renewal_period(&self) -> Duration {
        self.timeout / RENEWALS_PER_TIMEOUT
    }
}
