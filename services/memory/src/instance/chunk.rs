//! A chunk in the memory of an instance, from its reservation to its removal.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use ports::{Error, Result};
use tokio::sync::oneshot;

use super::{
    Dead, Instance,
    link::{Freed, Lane},
};
use crate::function::{Call, ChunkId, Outcome, PAGE_BYTES};

/// The space of a chunk. Dropping it frees the space.
pub(super) struct Piece {
    instance: Arc<Instance>,
    id: ChunkId,
    bytes: u64,
    space: Space,
    /// Dropped once its space is free.
    waits: Option<oneshot::Sender<()>>,
}

enum Space {
    /// The instance may have reserved it, or may do so later.
    Expected,
    Refused,
    At(u64),
}

impl Piece {
    /// The space of a chunk that is about to be reserved.
    pub(super) fn expected(instance: &Arc<Instance>, id: ChunkId, bytes: u64) -> Self {
        Self {
            instance: Arc::clone(instance),
            id,
            bytes,
            space: Space::Expected,
            waits: None,
        }
    }

    pub(super) fn reserved(mut self, offset: u64) -> Slot {
        self.space = Space::At(offset);
        Slot(self)
    }

    pub(super) fn refused(&mut self) {
        self.space = Space::Refused;
    }

    /// All calls for a chunk take one lane, so that they arrive in order.
    pub(super) fn lane(&self) -> Lane {
        Lane::of(self.bytes)
    }

    /// The place in the region of `bytes` bytes at `offset` of the chunk.
    fn place(&self, offset: u64, bytes: usize) -> Result<u64> {
        let end = offset.checked_add(bytes as u64);
        match self.space {
            // The region refuses a place outside of it.
            Space::At(from) if end.is_some_and(|end| end <= self.bytes) => {
                Ok(from.saturating_add(offset))
            }
            _ => Err(Error::invalid(format!(
                "access {bytes} bytes at {offset} of a chunk of {} bytes",
                self.bytes
            ))),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let pages = self.bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let range = match self.space {
            Space::Expected => None,
            Space::Refused => return,
            Space::At(offset) => pages.map(|bytes| (offset, bytes)),
        };
        let freed = Freed {
            id: self.id,
            range,
            waits: self.waits.take(),
        };
        self.instance.link.free(self.lane(), freed);
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece")
            .field("instance", &self.instance.id())
            .field("id", &self.id)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Reserved space for a chunk, to be written. Dropping it frees the space.
#[derive(Debug)]
pub struct Slot(Piece);

impl Slot {
    /// Copies `bytes` into the chunk, from `offset` on.
    ///
    /// Errors: `Invalid` if they lie outside of the chunk; `Unavailable` if the instance is dead.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let place = self.0.place(offset, bytes.len())?;
        self.0.instance.link.region()?.write(place, bytes)
    }

    /// Tells the instance that the chunk is whole.
    pub async fn seal(self) -> Result<HeldChunk, Dead> {
        let link = &self.0.instance.link;
        if link.call(self.0.lane(), Call::Seal(self.0.id)).await? == Outcome::Done {
            return Ok(HeldChunk(Arc::new(self.0)));
        }
        link.end();
        Err(Dead)
    }
}

/// A whole chunk in the memory of an instance. It is removed after the last clone is dropped.
#[derive(Debug, Clone)]
pub struct HeldChunk(Arc<Piece>);

impl HeldChunk {
    /// Copies the bytes from `offset` of the chunk on into `buffer`.
    ///
    /// Errors: `Invalid` if they lie outside of the chunk; `Unavailable` if the instance is dead.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = self.0.place(offset, buffer.len())?;
        self.0.instance.link.region()?.read(place, buffer)
    }

    /// The `length` bytes from `offset` of the chunk on, without a copy where the provider can. They
    /// keep the chunk: its space is not used again before they are dropped.
    ///
    /// Errors: as [`Self::read`].
    pub fn share(&self, offset: u64, length: usize) -> Result<Bytes> {
        let place = self.0.place(offset, length)?;
        let bytes = self.0.instance.link.region()?.share(place, length)?;
        let chunk = self.clone();
        Ok(Bytes::from_owner(Shared {
            bytes,
            _chunk: chunk,
        }))
    }

    /// The instance.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.0.instance
    }

    /// The size of the chunk.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Drops this clone. If it is the last one, returns once the space is free.
    pub(crate) async fn removed(self) {
        if let Some(mut piece) = Arc::into_inner(self.0) {
            let (sender, removed) = oneshot::channel();
            piece.waits = Some(sender);
            drop(piece);
            // It is dropped, not sent.
            let _ = removed.await;
        }
    }
}

/// Bytes of a chunk, which keep it.
struct Shared {
    /// Dropped before the chunk, whose removal changes them.
    bytes: Bytes,
    _chunk: HeldChunk,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
