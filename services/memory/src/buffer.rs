//! The persistent buffer: fragments on a disk of this machine, on their way to a distant object store.
//!
//! ```text
//!  PUT ──▶ buffer: durable, the PUT returns ──▶ the store behind ──▶ no longer in the buffer
//! ```
//!
//! Each name means one immutable fragment, so an order matters within one name alone (M5).
//!
//! Invariants
//! - A fragment leaves the buffer only after the store behind has confirmed its copy, or to be
//!   deleted.
//! - No fragment is deleted while a copy of it is under way.
//! - A request that failed may still take effect later. The collector keeps the pending row of a
//!   deleted fragment until that is over, and then deletes it behind once more (M2).
//! - Until the buffer was listed after a start, nothing is written, copied or deleted, and each read
//!   looks there first.
//!
//! From `infinistore.txt`, section 5.3.2.

mod copying;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Clock, Entropy, LogThrottle, Monotonic,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _},
};
use primitives::{Backoff, Delays, Mutant};
use tokio::sync::Notify;

use crate::{
    Error, Result,
    broken::Broken,
    fragment::{FragmentName, SegmentId},
    stored_name::{failed, path},
};

/// How long a PUT waits for room in the buffer.
const ROOM_WAIT: Duration = Duration::from_secs(20);
/// The time in which a failed request may still take effect. S3 refuses a request that was signed
/// more than 15 minutes ago.
const LATE_MAX: Duration = Duration::from_mins(16);
/// How reads wait for a fragment that the store behind should have.
const READ_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(1),
    attempts_max: 6,
};

/// What the buffer stands on.
#[derive(Debug)]
pub(crate) struct BufferParts {
    /// The buffer's own store: durable, on this machine.
    pub(crate) files: Arc<dyn ObjectStore>,
    /// The store behind.
    pub(crate) behind: Arc<dyn ObjectStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The least id of a segment of this start.
    pub(crate) first: SegmentId,
    pub(crate) bytes_max: u64,
    pub(crate) mutant: Mutant<Broken>,
}

/// The buffer before one object store.
#[derive(Debug)]
pub(crate) struct Buffer {
    parts: BufferParts,
    opened: Monotonic,
    state: Mutex<State>,
    /// A fragment waits for its copy.
    added: Notify,
    /// The buffer has more room.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_listed: bool,
    /// Of the fragments, and of those that are being written.
    bytes: u64,
    fragments: BTreeMap<FragmentName, Buffered>,
    /// In the order of their copies.
    waiting: VecDeque<FragmentName>,
    late: BTreeMap<FragmentName, Late>,
    outage: LogThrottle,
}

/// A fragment in the buffer.
#[derive(Debug, Default)]
struct Buffered {
    bytes: u64,
    is_copying: bool,
    is_deleted: bool,
    /// The store behind may have it, or a part of it.
    was_sent: bool,
}

/// A fragment that may still appear in the store behind.
#[derive(Debug)]
struct Late {
    until: Monotonic,
    is_deleted: bool,
}

/// The bytes and the fragments that wait for their copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waiting {
    pub(crate) bytes: u64,
    pub(crate) fragments: usize,
}

/// Room for a fragment that is being written. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Room {
    buffer: Arc<Buffer>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.buffer.free(self.bytes);
    }
}

impl Room {
    /// The fragment is durable in the buffer: it is copied from now on, and keeps the room.
    pub(crate) fn fill(mut self, name: FragmentName) {
        let bytes = std::mem::take(&mut self.bytes);
        self.buffer.state.lock().add(name, bytes, false);
        self.buffer.added.notify_one();
    }
}

impl State {
    fn add(&mut self, name: FragmentName, bytes: u64, was_sent: bool) {
        let buffered = Buffered {
            bytes,
            was_sent,
            ..Buffered::default()
        };
        self.fragments.insert(name, buffered);
        self.waiting.push_back(name);
    }

    /// A request of the fragment has failed.
    fn note_late(&mut self, name: FragmentName, now: Monotonic) {
        self.late
            .retain(|_, late| late.is_deleted || late.until > now);
        let late = self.late.entry(name).or_insert(Late {
            until: now,
            is_deleted: false,
        });
        late.until = now + LATE_MAX;
    }
}

impl Buffer {
    pub(crate) fn new(parts: BufferParts) -> Arc<Self> {
        Arc::new(Self {
            opened: parts.clock.monotonic(),
            parts,
            state: Mutex::default(),
            added: Notify::new(),
            freed: Notify::new(),
        })
    }

    pub(crate) fn files(&self) -> &Arc<dyn ObjectStore> {
        &self.parts.files
    }

    pub(crate) fn waiting(&self) -> Waiting {
        let state = self.state.lock();
        Waiting {
            bytes: state.bytes,
            fragments: state.fragments.len(),
        }
    }

    /// Takes room for a fragment of `bytes`. Errors: `NoRoom`, if the store behind took too little
    /// meanwhile.
    pub(crate) async fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Room> {
        let waited = self.parts.clock.sleep(ROOM_WAIT);
        tokio::pin!(waited);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.take_room(bytes) {
                return Ok(Room {
                    buffer: Arc::clone(self),
                    bytes,
                });
            }
            tokio::select! {
                biased;
                () = freed => {}
                () = &mut waited => return Err(Error::NoRoom(
                    "the buffer before the object store is full, and the store takes too little at the moment".into(),
                )),
            }
        }
    }

    /// An empty buffer takes a fragment of any size.
    fn take_room(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.bytes == 0 || state.bytes + bytes <= self.parts.bytes_max;
        let has_room = state.is_listed && fits;
        if has_room {
            state.bytes += bytes;
        }
        has_room
    }

    fn free(&self, bytes: u64) {
        self.state.lock().bytes -= bytes;
        self.freed.notify_waiters();
    }

    fn may_have(&self, name: FragmentName) -> bool {
        let state = self.state.lock();
        !state.is_listed || state.fragments.contains_key(&name)
    }

    /// Whether the fragment is known to be here or behind.
    pub(crate) async fn has(&self, name: FragmentName) -> bool {
        let path = path(name);
        let is_here = self.may_have(name) && self.parts.files.head(&path).await.is_ok();
        is_here || self.parts.behind.head(&path).await.is_ok()
    }

    /// Ranges of a fragment that a row names. Reads again while the store behind does not have it
    /// yet.
    pub(crate) async fn read(
        &self,
        name: FragmentName,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, ObjectError> {
        let (path, mut again) = (path(name), self.reads());
        loop {
            if self.may_have(name) {
                match self.parts.files.get_ranges(&path, ranges).await {
                    // It may be behind by now.
                    Err(ObjectError::NotFound { .. }) => {}
                    read => return read,
                }
            }
            match self.parts.behind.get_ranges(&path, ranges).await {
                Err(ObjectError::NotFound { .. }) if self.wait(&mut again).await => {}
                read => return read,
            }
        }
    }

    /// The attempts to read what the store behind should have.
    pub(crate) fn reads(&self) -> Delays {
        let mut backoff = READ_AGAIN;
        if self.parts.mutant.breaks(Broken::ReadsOnce) {
            backoff.attempts_max = 1;
        }
        backoff.delays()
    }

    /// Waits before the next attempt. False: there is none.
    pub(crate) async fn wait(&self, again: &mut Delays) -> bool {
        let Some(delay) = again.next_wait(&*self.parts.entropy) else {
            return false;
        };
        self.parts.clock.sleep(delay).await;
        true
    }

    /// Deletes a fragment here and behind.
    ///
    /// Errors: `Unavailable`, also while a copy of it is under way or may still arrive. Call it again
    /// then.
    pub(crate) async fn delete(&self, name: FragmentName) -> Result<()> {
        let was_sent = self.begin_delete(name)?;
        let path = path(name);
        delete(&*self.parts.files, &path)
            .await
            .map_err(|error| failed("delete", name, error))?;
        self.remove(name);
        if was_sent {
            delete(&*self.parts.behind, &path)
                .await
                .map_err(|error| failed("delete", name, error))?;
        }
        self.end_delete(name)
    }

    /// Whether the store behind may have the fragment.
    fn begin_delete(&self, name: FragmentName) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.is_listed {
            return Err(Error::Unavailable("the buffer is not listed yet".into()));
        }
        let now = self.parts.clock.monotonic();
        if let Some(late) = state.late.get(&name)
            && late.is_deleted
            && late.until > now
        {
            return Err(Error::Unavailable(
                "a copy of a deleted fragment may still arrive".into(),
            ));
        }
        let Some(buffered) = state.fragments.get_mut(&name) else {
            return Ok(true);
        };
        buffered.is_deleted = true;
        if buffered.is_copying && !self.parts.mutant.breaks(Broken::DeletesBesideCopies) {
            return Err(Error::Unavailable("the fragment is being copied".into()));
        }
        Ok(buffered.was_sent)
    }

    /// Both stores have deleted the fragment.
    fn end_delete(&self, name: FragmentName) -> Result<()> {
        let mut state = self.state.lock();
        let now = self.parts.clock.monotonic();
        let earlier = (name.segment < self.parts.first).then_some(self.opened + LATE_MAX);
        let failed = state.late.get(&name).map(|late| late.until);
        let until = earlier.max(failed).filter(|until| *until > now);
        let Some(until) = until.filter(|_| !self.parts.mutant.breaks(Broken::ForgetsLateCopies))
        else {
            state.late.remove(&name);
            return Ok(());
        };
        let is_deleted = true;
        state.late.insert(name, Late { until, is_deleted });
        Err(Error::Unavailable(
            "a copy of a deleted fragment may still arrive".into(),
        ))
    }

    /// The fragment is no longer in the buffer's files.
    fn remove(&self, name: FragmentName) {
        let removed = self.state.lock().fragments.remove(&name);
        if let Some(removed) = removed {
            self.free(removed.bytes);
        }
    }
}

/// Deletes an object, if it is there.
async fn delete(objects: &dyn ObjectStore, path: &ObjectPath) -> Result<(), ObjectError> {
    match objects.delete(path).await {
        Err(ObjectError::NotFound { .. }) => Ok(()),
        deleted => deleted,
    }
}
