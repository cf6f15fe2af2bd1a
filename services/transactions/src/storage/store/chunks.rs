//! Chunks: values too long for a version item.
//!
//! Invariants
//! - Chunks are stored under their attempt and write, so no two values share one, and none is ever
//!   rewritten with other bytes.
//! - They are announced in a log before the first of them is written, because they cannot be listed
//!   otherwise.
//! - They are confirmed before the version item that names them is sent (rule P6), and deleted
//!   before it.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{
    Update,
    key_value::{Name, Value},
};

use crate::{
    Error, Result,
    model::{Attempt, Located},
    storage::{
        layout,
        records::{Place, Write},
    },
};

use super::{Store, corrupt};

/// The bytes of a chunk.
const VALUE: &str = "value";

/// Chunks of one value written, read or deleted at a time.
const CHUNKS_AT_ONCE: usize = 8;

impl Place {
    /// Where a value goes: into its item up to `inline_bytes_max`, else into chunks of at most
    /// `chunk_bytes_max`.
    pub(crate) fn of(
        value: Option<&Bytes>,
        inline_bytes_max: usize,
        chunk_bytes_max: usize,
    ) -> Self {
        let Some(value) = value else {
            return Self::Gone;
        };
        let bytes = value.len() as u32;
        if value.len() <= inline_bytes_max {
            return Self::Inline { bytes };
        }
        let chunks = value.len().div_ceil(chunk_bytes_max) as u32;
        Self::Chunks {
            bytes,
            chunks,
            crc: crc32fast::hash(value),
        }
    }
}

impl Store {
    /// Writes the chunks of `value`, if it goes into chunks.
    pub(crate) async fn put_chunks(
        &self,
        attempt: Attempt,
        write: &Write,
        value: &Bytes,
    ) -> Result<()> {
        let chunks = write.place.chunks() as usize;
        // As many as were announced, of equal length except for the last.
        let chunk_bytes = value.len().div_ceil(chunks.max(1));
        let puts = (0..chunks).map(|chunk| {
            let (start, end) = (
                chunk * chunk_bytes,
                ((chunk + 1) * chunk_bytes).min(value.len()),
            );
            let part = value.slice(start.min(end)..end);
            let attributes = vec![(Name::from(VALUE), Value::Bytes(part))];
            Ok(Update::put(
                layout::chunk(attempt, write.write, chunk as u32),
                attributes,
            ))
        });
        let put = |update| async move {
            // The remaining space is reserved for others (rule P6), and may have shrunk since the
            // value was accepted.
            if !self.key_value().has_room() {
                return Err(Error::NoRoom);
            }
            self.update(update).await.map(drop)
        };
        stream::iter(puts)
            .try_for_each_concurrent(CHUNKS_AT_ONCE, put)
            .await
    }

    /// A value from its chunks; `None` if at least one of them is missing.
    pub(crate) async fn chunked_value(
        &self,
        attempt: Attempt,
        write: &Write,
    ) -> Result<Option<Bytes>> {
        let Place::Chunks { bytes, chunks, crc } = write.place else {
            return Ok(None);
        };
        let mut value = BytesMut::with_capacity(bytes as usize);
        let keys = (0..chunks).map(|chunk| layout::chunk(attempt, write.write, chunk));
        let reads = stream::iter(keys).map(|key| async move { self.get(&key).await });
        let mut reads = reads.buffered(CHUNKS_AT_ONCE);
        while let Some(read) = reads.try_next().await? {
            let Some(item) = read.value else {
                return Ok(None);
            };
            value.extend_from_slice(item.bytes(VALUE).ok_or_else(|| corrupt("a chunk"))?);
        }
        if value.len() != bytes as usize || crc32fast::hash(&value) != crc {
            return Err(Error::Corrupt(
                format!("a value of {attempt} is not what was written").into(),
            ));
        }
        Ok(Some(value.freeze()))
    }

    /// Deletes the chunks of a write, if it has any.
    pub(crate) async fn delete_chunks(
        &self,
        attempt: Attempt,
        write: u32,
        chunks: u32,
    ) -> Result<()> {
        let deletions =
            (0..chunks).map(|chunk| Ok(Update::delete(layout::chunk(attempt, write, chunk))));
        let delete = |update| async move { self.finish(&update).await.map(drop) };
        stream::iter(deletions)
            .try_for_each_concurrent(CHUNKS_AT_ONCE, delete)
            .await
    }

    /// Deletes the data of an uncommitted write: its chunks, then the version that names them. Its
    /// bytes in a pack are dead from now on.
    pub(crate) async fn delete_written(&self, attempt: Attempt, write: &Write) -> Result<()> {
        self.delete_chunks(attempt, write.write, write.place.chunks())
            .await?;
        let packed = match write.place {
            Place::Packed { .. } => self
                .version(&write.key, attempt)
                .await?
                .and_then(|item| item.packed),
            Place::Inline { .. } | Place::Chunks { .. } | Place::Gone => None,
        };
        self.delete_version(&write.key, attempt).await?;
        if let Some(Located { pack, .. }) = packed {
            self.free(pack, write.value_bytes());
        }
        Ok(())
    }
}
