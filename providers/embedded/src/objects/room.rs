//! Whether the disk has room for the last refused object.
//!
//! The status reads this figure on threads that must not wait for the disk. After a refusal a task
//! therefore asks the disk repeatedly, until it has room or an object was written.
//!
//! The free bytes of a file system say nothing about a quota. If they suffice, the task also
//! allocates the bytes of the object for a moment.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use ports::objects::{ObjectError, is_for_want_of_room};

use super::root::Root;
use crate::storage::Storage;

/// How long the task waits before it asks the disk again.
const PAUSE: Duration = Duration::from_secs(1);

/// The file that is allocated for a moment. It is named like a staged one, so that the next start
/// removes it after a crash. The local store begins at number one.
const TRIAL: &str = "room#0";

/// The room for objects.
#[derive(Debug)]
pub(super) struct Room {
    root: Arc<Root>,
    storage: Arc<dyn Storage>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The size of the last refused object; none if one was written since, or has room now.
    refused_bytes: Option<u64>,
    /// Whether a task asks the disk.
    is_asking: bool,
}

impl Room {
    pub(super) fn new(root: Arc<Root>, storage: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self {
            root,
            storage,
            state: Mutex::default(),
        })
    }

    /// Whether the disk had no room for the last refused object, and still has none.
    pub(super) fn is_refusing(&self) -> bool {
        self.state.lock().refused_bytes.is_some()
    }

    /// Notes the result of a put of `bytes`.
    pub(super) fn note<T>(self: &Arc<Self>, result: &Result<T, ObjectError>, bytes: u64) {
        let mut state = self.state.lock();
        match result {
            Ok(_) => state.refused_bytes = None,
            Err(error) if is_for_want_of_room(error) => {
                if state.refused_bytes.replace(bytes).is_none() {
                    tracing::warn!(%error, bytes, "the disk has no room for an object");
                }
                if !std::mem::replace(&mut state.is_asking, true) {
                    tokio::spawn(ask(Arc::downgrade(self)));
                }
            }
            Err(_) => {}
        }
    }

    /// Asks the disk whether `bytes` fit.
    fn fits(&self, bytes: u64) -> bool {
        let free = self.storage.free_bytes(self.root.path());
        if self.root.check().is_err() || !free.is_ok_and(|free| free >= bytes) {
            return false;
        }
        let path = self.root.path().join(TRIAL);
        let trial = self.storage.open(&path);
        let allocated = trial.and_then(|file| file.allocate(bytes.max(1)));
        self.storage.remove(&path).is_ok() && allocated.is_ok()
    }
}

async fn ask(room: Weak<Room>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        let Some(room) = room.upgrade() else { return };
        let refused = room.state.lock().refused_bytes;
        let asked = Arc::clone(&room);
        let fits =
            tokio::task::spawn_blocking(move || refused.is_none_or(|bytes| asked.fits(bytes)));
        let has_room = fits.await.unwrap_or(false);
        let mut state = room.state.lock();
        // Another object may have been refused meanwhile.
        if has_room && state.refused_bytes == refused {
            *state = State::default();
            return;
        }
    }
}
