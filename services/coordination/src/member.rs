//! Members: the sessions that processes on one store keep to detect each other's failure.
//!
//! A process whose death must be noticed soon keeps a session of its own. The process is a client
//! of this service, with a timeout shorter than any granted to clients and a separate shard. It
//! renews its session with one write every quarter of the timeout. After each renewal it scans the
//! shard once and checks the other members. A dead member is therefore expired by the remaining
//! ones within its timeout and two renewals, and no function has to run for it. An idle member
//! makes two calls per renewal (promise C7).
//!
//! The scan serves two more purposes. If a member's row changed by more than a renewal, another
//! process may be distributing, so this process reads the log. And a process takes its timers with
//! it, including the heartbeat that its clients depend on. A member that notices a death therefore
//! arms its own heartbeat.
//!
//! Invariants
//! - A member is never expired before its lease has run out on its own clock. The lease counts from
//!   before the renewal was sent, the silence from when that renewal or a later one was seen.
//! - A late run did not observe the time before it, so all silence is counted from zero.
//!
//! From FaaSKeeper, section 4.6. Its heartbeat is a function that is billed per run; a process that
//! runs anyway does not need it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ports::{Monotonic, Result};

use crate::{
    Client,
    dependency::TrackedStore,
    error::{ConnectError, Ended},
    gateway::Gateway,
    heartbeat::{
        self, failure_detector,
        last_heartbeat::{LastHeartbeats, Timing},
    },
    model::{Identity, Output, Password, Request, SessionId},
    storage::session::{MEMBER_SHARD, RENEWALS_PER_TIMEOUT, Row, State},
    tail::Tail,
};

/// The silence after which a member counts as dead.
pub const MEMBER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a member renews its session and checks the others.
pub const RENEWAL_PERIOD: Duration =
    Duration::from_millis(MEMBER_TIMEOUT.as_millis() as u64 / RENEWALS_PER_TIMEOUT as u64);

/// The part of a row that changes by more than renewals.
type Progress = (State, u64, u64);

/// This process as a member. When it is dropped, the others detect its absence.
#[derive(Debug)]
pub struct Member {
    tail: Arc<Tail>,
    client: Client,
    /// The observations of the last check of the others. None before the first, or if the last was
    /// in another incarnation of the store.
    heartbeats: Option<LastHeartbeats>,
    others: BTreeMap<SessionId, Progress>,
}

impl Gateway {
    /// Opens a session for this process, or resumes it after its connection ended. Every ACL
    /// permits what it does.
    pub async fn connect_member(
        &self,
        resume: Option<(SessionId, Password)>,
    ) -> Result<Member, ConnectError> {
        let attached = self
            .attach(MEMBER_TIMEOUT, resume, SessionId::of_member)
            .await?;
        let mut client = self.let_in(attached).await?;
        client.add_identities(&[Identity {
            scheme: "super".to_owned(),
            id: String::new(),
        }]);
        Ok(Member {
            tail: self.tail.clone(),
            client,
            heartbeats: None,
            others: BTreeMap::new(),
        })
    }
}

impl Member {
    /// The session and password with which the process can resume.
    pub fn resume(&self) -> (SessionId, Password) {
        (self.client.session(), self.client.password())
    }

    /// Until when this process is certainly a member, on its own clock.
    pub fn lease_until(&self) -> Monotonic {
        self.client.lease_until()
    }

    /// Takes the next request. Its reply carries the same `tag`.
    pub fn submit(&mut self, tag: i32, request: Request) {
        self.client.submit(tag, request);
    }

    /// Executes pending requests, renews the session if that is due, and then checks the other
    /// members. Not cancellation safe: run it to its end.
    pub async fn pump(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        let before = self.client.lease_until();
        self.client.note_activity();
        self.client.pump(outputs).await?;
        self.client.note_activity();
        if self.client.lease_until() != before
            && let Err(error) = self.check_others().await
        {
            tracing::debug!(%error, "could not check the other members");
        }
        Ok(())
    }

    /// Returns once [`Member::pump`] has something to do. Cancellation safe.
    pub async fn wait(&mut self) {
        self.client.wait().await;
    }

    async fn check_others(&mut self) -> Result<()> {
        let timing = Timing {
            period: RENEWAL_PERIOD,
            clocks_apart_max: Duration::ZERO,
        };
        let env = &self.tail.env;
        let mut store = TrackedStore::now(env.parts.system.clone());
        let now = failure_detector::moment(env);
        let is_good = |heartbeats: &LastHeartbeats| {
            heartbeats.incarnation == store.incarnation() && heartbeats.are_fresh(now, timing)
        };
        let before = self
            .heartbeats
            .take()
            .filter(is_good)
            .unwrap_or_else(|| LastHeartbeats::first(now, store.incarnation()));
        let mut heartbeats = before.next(now);
        let checked =
            failure_detector::check_shard(env, &mut store, MEMBER_SHARD, &before, &mut heartbeats);
        let rows = match checked.await {
            Ok(rows) => rows,
            Err(error) => {
                // The failed check observed nothing, so the earlier observations stay valid.
                self.heartbeats = Some(before);
                return Err(error);
            }
        };
        self.heartbeats = Some(heartbeats);
        let progress = |row: &Row| (row.state, row.sequence, row.applied);
        let now_there: BTreeMap<_, _> = rows
            .iter()
            .map(|row| (row.session, progress(row)))
            .collect();
        if now_there != self.others {
            self.tail.poll_soon();
        }
        let is_left = |session: &SessionId| {
            now_there
                .get(session)
                .is_some_and(|(state, _, _)| *state == State::Open)
        };
        if !self.others.keys().all(is_left) {
            heartbeat::arm(&self.tail.env).await?;
        }
        self.others = now_there;
        Ok(())
    }
}
