//! The gateway: opens and resumes sessions for the clients of one process.
//!
//! One conditional write creates a session's row, or raises its attach number to resume it. The
//! client then sends a first request, numbered like every other, that changes nothing. Once it is
//! answered, all requests queued before it are applied, and this process's view has reached it
//! (rule C-6).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use ports::Result;

use crate::{
    client::{Attached, Client},
    dependency::TrackedStore,
    error::ConnectError,
    heartbeat,
    model::{Connect, Connection, Password, SessionId, Sizes, Zxid},
    storage::{
        ephemerals,
        session::{self, Transition},
    },
    tail::Tail,
};

/// Attempts to find an unused session id. With good randomness the first one succeeds.
const ID_ATTEMPTS_MAX: u32 = 8;

/// One process's view of the tree. It creates clients.
#[derive(Debug, Clone)]
pub struct Gateway {
    pub(crate) tail: Arc<Tail>,
}

impl Gateway {
    pub(crate) fn new(tail: Arc<Tail>) -> Self {
        Self { tail }
    }

    /// The last zxid whose answers and events this process may send.
    pub fn applied(&self) -> Zxid {
        self.tail.durable()
    }

    /// The numbers of connected clients and armed watches in this process.
    pub fn counts(&self) -> (usize, usize) {
        self.tail.counts()
    }

    /// The size of the tree.
    pub async fn sizes(&self) -> Result<Sizes> {
        self.tail.region.sizes().await
    }

    /// The shortest and the longest timeout of a session.
    pub fn session_timeouts(&self) -> (Duration, Duration) {
        let config = &self.tail.env.config;
        (config.session_timeout_min, config.session_timeout_max)
    }

    /// The paths that each client of this process watches, other than for children alone.
    pub fn watched_paths(&self) -> BTreeMap<SessionId, Vec<String>> {
        self.tail.watched_paths()
    }

    /// All clients' sessions with the paths of their ephemerals. It reads every session's row and
    /// index, so it is for people who ask.
    pub async fn sessions(&self) -> Result<BTreeMap<SessionId, Vec<String>>> {
        let (mut store, mut sessions) = (self.tail.env.system(), BTreeMap::new());
        for shard in session::ALL_SHARDS {
            let mut pages = session::Rows::of(shard);
            while let Some(rows) = pages.next_page(&mut store).await? {
                for session in rows.iter().map(|row| row.session) {
                    if !session.is_members() && session != SessionId::SYSTEM {
                        let paths = ephemerals::first(&mut store, session, usize::MAX).await?;
                        sessions.insert(session, paths);
                    }
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(sessions)
    }

    /// Opens or resumes a session. Returns once the client may read everything decided before. A
    /// caller may drop the future at any time: a session without a connection ends at its timeout.
    ///
    /// Errors: [`ConnectError::Expired`] if the session does not exist, has ended, or has another
    /// password; [`ConnectError::ClientAhead`] if the client has seen a zxid that this process has
    /// not reached; [`ConnectError::Store`] if a store fails or this process has no position in the
    /// log.
    pub fn connect(&self, connect: Connect) -> BoxFuture<'_, Result<Client, ConnectError>> {
        Box::pin(async move {
            let config = &self.tail.env.config;
            let (cursor, _) = self.tail.region.cursor().await?.value;
            if connect.last_zxid_seen > cursor.zxid {
                return Err(ConnectError::ClientAhead {
                    client: connect.last_zxid_seen.0,
                    server: cursor.zxid.0,
                });
            }
            let timeout = connect
                .timeout
                .clamp(config.session_timeout_min, config.session_timeout_max);
            let attached = self
                .attach(timeout, connect.resume, SessionId::of_client)
                .await?;
            // The row is written before the timer is armed, because the heartbeat disarms itself
            // only if it finds no row.
            heartbeat::arm(&self.tail.env).await?;
            self.let_in(attached).await
        })
    }

    pub(crate) async fn attach(
        &self,
        timeout: Duration,
        resume: Option<(SessionId, Password)>,
        id: fn(u64) -> SessionId,
    ) -> Result<Attached, ConnectError> {
        let parts = &self.tail.env.parts;
        // The lease counts from before the write that grants it (rule C-6).
        let asked_at = parts.clock.monotonic();
        let incarnation = parts.queue.point().incarnation;
        let mut store = self.tail.env.system();
        let (session, password, attach, renewals) = match resume {
            None => {
                let (session, password) = self.open(&mut store, timeout, id).await?;
                (session, password, 1, 0)
            }
            Some((session, password)) => {
                match session::attach(&mut store, session, password, timeout).await? {
                    Transition::Done(row) => (session, password, row.attach, row.renewals),
                    Transition::Refused(_) => return Err(ConnectError::Expired),
                }
            }
        };
        Ok(Attached {
            connection: Connection { session, attach },
            password,
            timeout,
            asked_at,
            renewals,
            store,
            incarnation,
        })
    }

    pub(crate) async fn let_in(&self, attached: Attached) -> Result<Client, ConnectError> {
        let mut client = Client::new(self.tail.clone(), attached);
        client.first_request().await?;
        Ok(client)
    }

    async fn open(
        &self,
        store: &mut TrackedStore,
        timeout: Duration,
        id: fn(u64) -> SessionId,
    ) -> Result<(SessionId, Password)> {
        let entropy = &self.tail.env.parts.entropy;
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&entropy.next_u64().to_be_bytes());
        secret[8..].copy_from_slice(&entropy.next_u64().to_be_bytes());
        for _ in 0..ID_ATTEMPTS_MAX {
            let session = id(entropy.next_u64());
            if session::create(store, session, Password(secret), timeout).await? {
                return Ok((session, Password(secret)));
            }
        }
        Err(ports::Error::unavailable("find an unused session id"))
    }
}

#[cfg(test)]
mod tests;
