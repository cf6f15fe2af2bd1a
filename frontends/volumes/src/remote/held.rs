//! The possessions that a restarted server has to learn again, and locks to give back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use transactions::serializable::{
    model::{Key, SessionId},
    volumes::VolumeName,
};

use super::held_locks::{HeldLocks, Piece, Ticket};
use crate::wire::VolumeNumber;

/// The most locks that wait to be given back. Others are freed at the end of the session.
const UNDOS_MAX: usize = 1_024;

/// The possessions that a restarted server has to learn again.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) volumes: BTreeMap<VolumeNumber, VolumeName>,
    pub(super) holds: BTreeSet<(VolumeNumber, SessionId, Key)>,
    pub(super) locks: HeldLocks,
}

/// A lock that was granted after its call had been dropped, or may have been.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) ticket: Ticket,
    /// The locks that the owner had on its bytes before. `None`: those that this client knows of
    /// when it gives them back, because the owner may free them until then.
    pub(super) before: Option<Vec<Piece>>,
}

/// The possessions of a session, shared by its calls and its connection.
#[derive(Debug, Clone)]
pub(super) struct Possessions {
    pub(super) held: Arc<Mutex<Held>>,
    undos: mpsc::Sender<Undo>,
}

impl Possessions {
    /// None yet, and the locks that have to be given back.
    pub(super) fn new() -> (Self, mpsc::Receiver<Undo>) {
        let (undos, receiver) = mpsc::channel(UNDOS_MAX);
        let held = Arc::default();
        (Self { held, undos }, receiver)
    }

    /// Gives the owner of `ticket` back the locks that it had `before`.
    pub(super) fn undo(&self, ticket: Ticket, before: Vec<Piece>) {
        self.send(ticket, Some(before));
    }

    /// Gives the owner of `ticket` back the locks that this client knows of.
    pub(super) fn undo_unknown(&self, ticket: &Ticket) {
        self.send(ticket.clone(), None);
    }

    fn send(&self, ticket: Ticket, before: Option<Vec<Piece>>) {
        if self.undos.try_send(Undo { ticket, before }).is_err() {
            tracing::warn!(
                "too many calls of locks were dropped: some locks stay until the session ends"
            );
        }
    }
}
