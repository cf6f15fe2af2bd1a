//! Members: the sessions that processes on one store have among themselves.
//!
//! A process that is to be missed soon after its death keeps a session of its own: a client of this service like others,
//! but for a shorter timeout than any client is granted, in a shard apart. It renews that session by one write a quarter
//! of its timeout, and after each renewal goes through the shard once and judges the others. So who is gone is condemned
//! within its timeout and two renewals by whoever is left, and no function has to run for it: a member that has nothing
//! else to do makes two calls per renewal (promise C7).
//!
//! That scan brings two more things. What changes in the rows of members, besides renewals, has been or is about to be
//! distributed, perhaps elsewhere: so the log is looked at. And with a process its timers are gone, the heartbeat's too,
//! on which the clients it had depend: whoever misses it arms its own.
//!
//! Invariants
//! - Nobody condemns a member before its lease has run out on its own clock: the lease counts from before a renewal was
//!   sent, the silence from when that renewal, or a later one, was seen.
//! - A run that comes late has not witnessed what was before it: silence begins anew then.
//!
//! From FaaSKeeper, section 4.6, whose heartbeat is a function that is billed per run; a process that runs anyway need not
//! be asked by one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ports::{Monotonic, Result};

use crate::{
    Client,
    client::Shared,
    error::{ConnectError, Ended},
    gateway::Gateway,
    heartbeat::{
        self,
        failure_detector::Judge,
        last_heartbeat::{Notes, Pace},
    },
    model::{Output, Password, Request, SessionId},
    queue_names,
    storage::session::{MEMBERS, RENEWALS_PER_TIMEOUT, Row, State},
};

/// How long a member is silent before it is taken for gone.
pub const MEMBER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it renews its session and looks at the others.
pub const RENEWAL_PERIOD: Duration =
    Duration::from_millis(MEMBER_TIMEOUT.as_millis() as u64 / RENEWALS_PER_TIMEOUT as u64);

/// What a row says besides renewals.
type Progress = (State, u64, u64);

/// This process as a member. Dropping it leaves it to the others to miss it.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    client: Client,
    judge: Judge,
    /// What the last look at the others came to; none before the first, and when it was in another start of the store.
    notes: Option<Notes>,
    others: BTreeMap<SessionId, Progress>,
}

impl Gateway {
    /// Opens a session for this process, or takes it over again after a connection of it has ended.
    ///
    /// Errors: as [`Gateway::connect`].
    pub async fn connect_member(
        &self,
        resume: Option<(SessionId, Password)>,
    ) -> Result<Member, ConnectError> {
        let shared = Arc::clone(&self.shared);
        let client = self.attach_member(MEMBER_TIMEOUT, resume).await?;
        let judge = Judge {
            sessions: shared.sessions.clone(),
            queue: Arc::clone(&shared.queue),
            clock: Arc::clone(&shared.clock),
            broken: shared.config.broken,
        };
        Ok(Member {
            shared,
            client,
            judge,
            notes: None,
            others: BTreeMap::new(),
        })
    }
}

impl Member {
    /// What to come back with.
    pub fn resume(&self) -> (SessionId, Password) {
        (self.client.session(), self.client.password())
    }

    /// Until when this process may count on being a member, by its own clock.
    pub fn lease_until(&self) -> Monotonic {
        self.client.lease_until()
    }

    /// Takes the next request; `tag` comes back with its reply.
    pub fn submit(&mut self, tag: i32, request: Request) {
        self.client.submit(tag, request);
    }

    /// Executes what may be executed, renews the session where that is due, and looks at the others after that. Not
    /// cancellation safe: run it to its end.
    pub async fn pump(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        let before = self.client.lease_until();
        self.client.is_here();
        self.client.pump(outputs).await?;
        self.client.is_here();
        if self.client.lease_until() != before
            && let Err(error) = self.look_at_others().await
        {
            tracing::debug!(%error, "the other members could not be looked at");
        }
        Ok(())
    }

    /// Returns once [`Member::pump`] has something to do. Cancellation safe.
    pub async fn wait(&mut self) {
        self.client.wait().await;
    }

    async fn look_at_others(&mut self) -> Result<()> {
        let pace = Pace {
            period: RENEWAL_PERIOD,
            clocks_apart_max: Duration::ZERO,
        };
        let mut basis = self.judge.sessions.basis();
        let now = self.judge.moment();
        let is_good = |notes: &Notes| {
            notes.incarnation() == basis.incarnation() && notes.are_fresh(now, pace)
        };
        let before = self
            .notes
            .take()
            .filter(is_good)
            .unwrap_or_else(|| Notes::first(now, basis.incarnation()));
        let mut notes = before.next(now);
        let rows = match self
            .judge
            .judge(MEMBERS, &before, &mut notes, &mut basis)
            .await
        {
            Ok(rows) => rows,
            Err(error) => {
                // It has seen nothing, and takes nothing from what the one before it knew.
                self.notes = Some(before);
                return Err(error);
            }
        };
        self.notes = Some(notes);
        let progress = |row: &Row| (row.state, row.sequence, row.applied);
        let now_there: BTreeMap<_, _> = rows
            .iter()
            .map(|(session, row)| (*session, progress(row)))
            .collect();
        if now_there != self.others {
            self.shared.tail.expect();
        }
        let is_left = |session: &SessionId| {
            now_there
                .get(session)
                .is_some_and(|(state, _, _)| *state == State::Open)
        };
        if !self.others.keys().all(is_left) {
            let period = heartbeat::period(&self.shared.config);
            self.shared
                .functions
                .arm_timer(queue_names::HEARTBEAT, period)
                .await?;
        }
        self.others = now_there;
        Ok(())
    }
}
