//! Calls over the current connection, and the possessions to restore after a reconnect.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout_at},
};
use transactions::{Error, Result, serializable::model::Granted};

use super::{
    Config, Connected,
    held::{Held, Possessions, Undo},
    held_locks::{Ticket, gaps},
    link::{Link, NoAnswer},
};
use crate::wire::{Answer, Call, Fault, Request, SessionKey, VolumeNumber, answer::unexpected};

/// The permits for requests in flight. Each takes one, and one more for each [`PERMIT_BYTES`].
const PERMITS: u32 = 2_048;
/// The bytes of a request that one permit covers.
const PERMIT_BYTES: usize = 32 << 10;
/// The pause before a call is repeated that the server could not serve.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// When a call is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Never: a second time it would fail although the first took effect.
    Never,
    /// After a lost answer.
    AfterLoss,
    /// Also while the server answers that it is not available.
    WhileUnavailable,
}

/// The client side of a session.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) config: Config,
    pub(super) session: SessionKey,
    pub(super) connected: watch::Sender<Connected>,
    link: watch::Sender<Option<Arc<Link>>>,
    /// The reason why there is no connection.
    why: Mutex<Option<Error>>,
    pub(super) possessions: Possessions,
    volumes: AtomicU32,
    room: Semaphore,
}

impl Client {
    pub(super) fn new(config: Config, session: SessionKey, possessions: Possessions) -> Self {
        Self {
            config,
            session,
            connected: watch::Sender::default(),
            link: watch::Sender::default(),
            why: Mutex::default(),
            possessions,
            volumes: AtomicU32::new(0),
            room: Semaphore::new(PERMITS as usize),
        }
    }

    /// The possessions to restore. Callers hold the lock for moments only.
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.possessions.held.lock()
    }

    /// A number for a volume, which is used once.
    pub(super) fn volume_number(&self) -> VolumeNumber {
        VolumeNumber(self.volumes.fetch_add(1, Ordering::Relaxed))
    }

    /// Calls go over `link` from now on.
    pub(super) fn connects(&self, link: Arc<Link>) {
        self.link.send_replace(Some(link));
        self.connected
            .send_modify(|state| state.is_connected = true);
    }

    /// Calls wait for a connection from now on.
    pub(super) fn disconnects(&self) {
        self.link.send_replace(None);
        self.connected
            .send_modify(|state| state.is_connected = false);
    }

    /// Notes why there is no connection.
    pub(super) fn failed(&self, error: Error) {
        *self.why.lock() = Some(error);
    }

    /// The connection, if there is one.
    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        self.link.borrow().clone()
    }

    /// The connection, once there is one.
    async fn link(&self) -> Arc<Link> {
        if let Some(link) = self.link_now() {
            return link;
        }
        let mut changes = self.link.subscribe();
        loop {
            if let Some(link) = changes.borrow_and_update().clone() {
                return link;
            }
            if changes.changed().await.is_err() {
                // This client has the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends a request, again if that is safe and needed. Errors: those of the call; or
    /// `Unavailable` after the longest wait.
    pub(super) async fn call(&self, request: &Request, repeat: Repeat) -> Result<Answer> {
        let deadline = Instant::now() + self.config.wait_max;
        let mut last = None;
        let answered = timeout_at(deadline, self.call_repeatedly(request, repeat, &mut last));
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(last.unwrap_or_else(|| self.no_answer())),
        }
    }

    async fn call_repeatedly(
        &self,
        request: &Request,
        repeat: Repeat,
        last: &mut Option<Error>,
    ) -> Result<Answer> {
        let _room = self.room.acquire_many(permits(request)).await;
        let mut pause = PAUSE;
        loop {
            match self.link().await.request(request).await {
                Ok(Answer::Failed(Fault::Unavailable(why)))
                    if repeat == Repeat::WhileUnavailable =>
                {
                    *last = Some(Error::Unavailable(why.into()));
                    sleep(pause).await;
                    pause = PAUSE_MAX.min(pause * 2);
                }
                Ok(Answer::Failed(fault)) => return Err(fault.into()),
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::TooLong) => {
                    return Err(Error::TooLarge("a request has at most 16 MiB"));
                }
                Err(NoAnswer::Lost) if repeat == Repeat::Never => {
                    let why =
                        "the connection ended before the answer; look whether the call took effect";
                    return Err(Error::Unavailable(why.into()));
                }
                // The link is replaced by the task that reads it.
                Err(NoAnswer::Lost | NoAnswer::NotSent) => tokio::task::yield_now().await,
            }
        }
    }

    /// The error of a call that got no answer in time.
    fn no_answer(&self) -> Error {
        if self.link_now().is_some() {
            let why = format!("the server did not answer for {:?}", self.config.wait_max);
            return Error::Unavailable(why.into());
        }
        let why = self.why.lock().clone();
        why.unwrap_or_else(|| Error::Unavailable("there is no connection to the server".into()))
    }

    async fn link_in_time(&self) -> Result<Arc<Link>> {
        let deadline = Instant::now() + self.config.wait_max;
        timeout_at(deadline, self.link())
            .await
            .map_err(|_| self.no_answer())
    }
}

/// Takes, tests or frees a lock. It may wait as long as it likes while there is a server.
pub(super) async fn lock(client: &Client, ticket: Ticket) -> Result<Granted> {
    let mut lost = LostAttempt {
        client,
        ticket: &ticket,
        is_lost: false,
    };
    loop {
        let link = client.link_in_time().await?;
        match link.lock(&ticket).await {
            Ok(answer) => {
                lost.is_lost = false;
                return match answer {
                    Answer::Granted(granted) => Ok(granted),
                    Answer::Failed(fault) => Err(fault.into()),
                    _ => Err(unexpected()),
                };
            }
            Err(NoAnswer::TooLong) => return Err(Error::TooLarge("a request has at most 16 MiB")),
            Err(NoAnswer::NotSent) => tokio::task::yield_now().await,
            Err(NoAnswer::Lost) => lost.is_lost = true,
        }
    }
}

/// The answer to a lock was lost. If its call ends before it is repeated, a grant is undone.
struct LostAttempt<'a> {
    client: &'a Client,
    ticket: &'a Ticket,
    is_lost: bool,
}

impl Drop for LostAttempt<'_> {
    fn drop(&mut self) {
        if self.is_lost {
            self.client.possessions.undo_unknown(self.ticket);
        }
    }
}

/// Gives back locks whose calls were dropped, until the session ends. The order leaves no moment in
/// which an owner has less than before.
pub(super) async fn undo_all(client: &Client, mut undos: mpsc::Receiver<Undo>) {
    while let Some(Undo { ticket, before }) = undos.recv().await {
        // During a grace period it may wait, while the owner frees its locks.
        let known = || client.possessions.held.lock().locks.on(&ticket);
        let before = before.unwrap_or_else(known);
        let gaps = gaps(ticket.lock.bytes, &before);
        let kept = before.into_iter().map(|piece| ticket.with(piece));
        let freed = gaps.into_iter().map(|bytes| ticket.unlocking(bytes));
        for ticket in kept.chain(freed) {
            if let Err(error) = lock(client, ticket).await {
                tracing::warn!(%error, "a lock stays until the session ends");
            }
        }
    }
}

fn permits(request: &Request) -> u32 {
    let bytes = match request {
        Request::On(_, Call::Stage(_, _, writes)) => writes.len(),
        Request::On(_, Call::Commit(proposal) | Call::CommitLeased(_, proposal)) => {
            proposal.bytes_len()
        }
        _ => 0,
    };
    PERMITS.min(1 + (bytes / PERMIT_BYTES) as u32)
}
