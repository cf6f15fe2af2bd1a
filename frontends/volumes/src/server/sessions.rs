//! The sessions of clients, and the locks, holds and leases that end with them.
//!
//! A session is known from its first connection until [`Config::session_grace`] after the end of
//! its last one. While its locks and holds are being ended, it cannot come back: otherwise a hold
//! that it repeats could be ended too.
//!
//! [`Config::session_grace`]: super::Config::session_grace

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::sleep;
use transactions::{
    Error, Result,
    serializable::{VolumeStore, model::SessionId, volumes::VolumeName},
};

use crate::wire::{Refusal, SessionKey};

/// The most volumes and owners that one session has locks or holds of.
const USES_MAX: usize = 10_000;
/// How often the end of a session is tried while the volume is not available.
const ENDS_MAX: u32 = 25;
/// The pause between two attempts.
const END_AGAIN: Duration = Duration::from_millis(200);

/// Where sessions may have locks or holds.
pub(super) type Uses = BTreeMap<(VolumeName, SessionId), Arc<dyn VolumeStore>>;

/// All sessions of a server.
#[derive(Debug)]
pub(super) struct Sessions {
    known: Mutex<BTreeMap<SessionKey, Session>>,
    /// Volumes have lost their locks and holds, and no session may begin yet.
    is_losing: AtomicBool,
    known_max: usize,
}

#[derive(Debug, Default)]
struct Session {
    connections: usize,
    /// How many connections have ended.
    ended: u64,
    is_ending: bool,
    /// Volumes have lost its locks and holds since its last connection began.
    is_lost: bool,
    /// Where it may have locks or holds.
    uses: Uses,
}

impl Sessions {
    /// None, for a server with `connections_max` connections.
    pub(super) fn new(connections_max: usize) -> Self {
        Self {
            known: Mutex::default(),
            is_losing: AtomicBool::new(false),
            known_max: connections_max.saturating_mul(4),
        }
    }

    /// A connection of the session begins. Whether the session was known.
    pub(super) fn enter(&self, key: SessionKey) -> Result<bool, Refusal> {
        let mut known = self.known.lock();
        if self.is_losing.load(Ordering::SeqCst) {
            return Err(Refusal::Ending);
        }
        let is_known = known.contains_key(&key);
        if !is_known && known.len() >= self.known_max {
            return Err(Refusal::TooManyConnections);
        }
        let session = known.entry(key).or_default();
        if session.is_ending {
            return Err(Refusal::Ending);
        }
        session.connections += 1;
        let is_lost = std::mem::take(&mut session.is_lost);
        Ok(is_known && !is_lost)
    }

    /// Notes that `session` may have locks or holds of `volume`. Errors: `TooLarge`.
    pub(super) fn note_use(
        &self,
        key: SessionKey,
        (name, volume): (&VolumeName, &Arc<dyn VolumeStore>),
        session: SessionId,
    ) -> Result<()> {
        let mut known = self.known.lock();
        let uses = &mut known.entry(key).or_default().uses;
        let place = (name.clone(), session);
        if uses.len() >= USES_MAX && !uses.contains_key(&place) {
            let why = "one client process uses at most 10,000 volumes and sessions";
            return Err(Error::TooLarge(why));
        }
        uses.insert(place, Arc::clone(volume));
        Ok(())
    }

    /// Notes that a client ends one of its sessions.
    pub(super) fn forget_use(&self, key: SessionKey, place: &(VolumeName, SessionId)) {
        if let Some(session) = self.known.lock().get_mut(&key) {
            session.uses.remove(place);
        }
    }

    /// A connection of the session ended. Its number, if it was the last and something has to end.
    pub(super) fn leave(&self, key: SessionKey) -> Option<u64> {
        let mut known = self.known.lock();
        let session = known.get_mut(&key)?;
        session.connections -= 1;
        session.ended += 1;
        if session.connections > 0 {
            return None;
        }
        if session.uses.is_empty() {
            known.remove(&key);
            return None;
        }
        Some(session.ended)
    }

    /// Ends the session, unless it has come back since its connection `ended`.
    pub(super) async fn end_if_away(&self, key: SessionKey, ended: u64) {
        let uses = {
            let mut known = self.known.lock();
            let Some(session) = known.get_mut(&key) else {
                return;
            };
            if session.connections > 0 || session.ended != ended || session.is_ending {
                return;
            }
            session.is_ending = true;
            std::mem::take(&mut session.uses)
        };
        end_all(uses).await;
        self.known.lock().remove(&key);
    }

    /// Ends the locks and holds of the session, at its own wish.
    pub(super) async fn end_now(&self, key: SessionKey) {
        let uses = self
            .known
            .lock()
            .get_mut(&key)
            .map(|session| std::mem::take(&mut session.uses));
        end_all(uses.unwrap_or_default()).await;
    }

    /// Volumes have lost their locks and holds. No session begins until [`Self::end_loss`].
    pub(super) fn begin_loss(&self) -> Uses {
        let mut known = self.known.lock();
        self.is_losing.store(true, Ordering::SeqCst);
        let mut uses = Uses::new();
        for session in known.values_mut() {
            session.is_lost = true;
            uses.append(&mut session.uses);
        }
        uses
    }

    /// Sessions may begin again, and restore their locks and holds.
    pub(super) fn end_loss(&self) {
        self.is_losing.store(false, Ordering::SeqCst);
    }

    /// Whether any session may have locks or holds.
    pub(super) fn have_any_use(&self) -> bool {
        let known = self.known.lock();
        known.values().any(|session| !session.uses.is_empty())
    }
}

/// Ends the locks and holds.
pub(super) async fn end_all(uses: Uses) {
    for ((name, session), volume) in uses {
        for attempt in 1.. {
            match volume.end_session(session).await {
                Err(Error::Unavailable(_)) if attempt < ENDS_MAX => sleep(END_AGAIN).await,
                // Its locks and holds are gone with it.
                Ok(()) | Err(Error::NoSuchVolume) => break,
                Err(error) => {
                    tracing::warn!(volume = %name, %error, "cannot end the locks of a client that is gone; a restart of the server ends them");
                    break;
                }
            }
        }
    }
}
