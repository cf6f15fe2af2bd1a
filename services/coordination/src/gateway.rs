//! The gateway: opens and resumes sessions for the clients of one process.
//!
//! One conditional write creates a session's row, or raises its attach number to resume it. The
//! client then sends a first request, numbered like every other, that changes nothing. Once it is
//! answered, all requests queued before it are applied, and this process's view has reached it
//! (rule C-6).

use std::{sync::Arc, time::Duration};

use ports::Result;

use crate::{
    client::{Attached, Client, Shared},
    dependency::Dependency,
    error::ConnectError,
    heartbeat,
    model::{Connect, Password, SessionId, Zxid},
    storage::session::Transition,
};

/// Attempts to find an unused session id. With good randomness the first one succeeds.
const ID_ATTEMPTS_MAX: u32 = 8;

/// One process's view of the tree. It creates clients.
#[derive(Debug, Clone)]
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
}

impl Gateway {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The last zxid whose answers and events this process may send.
    pub fn applied(&self) -> Zxid {
        self.shared.tail.durable()
    }

    /// The numbers of connected clients and armed watches in this process.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.tail.counts()
    }

    /// Opens or resumes a session. Returns once the client may read everything decided before. A
    /// caller may drop the future at any time: a session without a connection ends at its timeout.
    ///
    /// Errors: [`ConnectError::Expired`] if the session does not exist, has ended, or has another
    /// password; [`ConnectError::ClientAhead`] if the client has seen a zxid that this process has
    /// not reached; [`ConnectError::Store`] if a store fails or this process has no position in the
    /// log.
    pub async fn connect(&self, connect: Connect) -> Result<Client, ConnectError> {
        let shared = &self.shared;
        let (cursor, _) = shared.region.cursor().await?.value;
        if connect.last_zxid_seen > cursor.zxid {
            return Err(ConnectError::ClientAhead {
                client: connect.last_zxid_seen.0,
                server: cursor.zxid.0,
            });
        }
        let timeout = connect.timeout.clamp(
            shared.config.session_timeout_min,
            shared.config.session_timeout_max,
        );
        let attached = self
            .attach(timeout, connect.resume, SessionId::of_client)
            .await?;
        // The row is written before the timer is armed, because the heartbeat disarms itself only
        // if it finds no row.
        shared
            .functions
            .arm_timer(
                crate::queue_names::HEARTBEAT,
                heartbeat::period(&shared.config),
            )
            .await?;
        self.let_in(attached).await
    }

    /// Opens or resumes the session of this process, which no heartbeat checks.
    pub(crate) async fn attach_member(
        &self,
        timeout: Duration,
        resume: Option<(SessionId, Password)>,
    ) -> Result<Client, ConnectError> {
        let attached = self.attach(timeout, resume, SessionId::of_member).await?;
        self.let_in(attached).await
    }

    async fn attach(
        &self,
        timeout: Duration,
        resume: Option<(SessionId, Password)>,
        id: fn(u64) -> SessionId,
    ) -> Result<Attached, ConnectError> {
        let shared = &self.shared;
        // The lease counts from before the write that grants it (rule C-6).
        let asked_at = shared.clock.monotonic();
        let incarnation = shared.queue.point().incarnation;
        let mut dependency = Dependency::default();
        let (session, password, attach, renewals) = match resume {
            None => self.open(timeout, id, &mut dependency).await?,
            Some((session, password)) => {
                match shared
                    .sessions
                    .attach(session, password, timeout, &mut dependency)
                    .await?
                {
                    Transition::Done(row) => (session, password, row.attach, row.renewals),
                    Transition::Refused(_) => return Err(ConnectError::Expired),
                }
            }
        };
        Ok(Attached {
            session,
            password,
            attach,
            timeout,
            asked_at,
            renewals,
            dependency,
            incarnation,
        })
    }

    async fn let_in(&self, attached: Attached) -> Result<Client, ConnectError> {
        let mut client = Client::new(self.shared.clone(), attached);
        client.first_request().await?;
        Ok(client)
    }

    async fn open(
        &self,
        timeout: Duration,
        id: fn(u64) -> SessionId,
        dependency: &mut Dependency,
    ) -> Result<(SessionId, Password, u64, i64)> {
        let entropy = &self.shared.entropy;
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&entropy.next_u64().to_be_bytes());
        secret[8..].copy_from_slice(&entropy.next_u64().to_be_bytes());
        for _ in 0..ID_ATTEMPTS_MAX {
            let session = id(entropy.next_u64());
            if self
                .shared
                .sessions
                .create(session, Password(secret), timeout, dependency)
                .await?
            {
                return Ok((session, Password(secret), 1, 0));
            }
        }
        Err(ports::Error::unavailable("find an unused session id"))
    }
}

#[cfg(test)]
mod tests;
