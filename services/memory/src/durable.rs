//! Fragments in the object store: the durable copy. A distant store has a buffer before it, which takes
//! what is written ([`mod@crate::buffer`]).
//!
//! One object per fragment, so that a PUT costs one request and one sync, not twelve. It holds all
//! chunks, so that a damaged unit is repaired, and so that each chunk is read back by itself.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use ports::{
    metering::function_memory::FunctionMemoryMeter,
    objects::{
        MultipartUpload, ObjectError, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    },
};
use tokio::task::JoinHandle;

use crate::{
    Result,
    buffer::{Buffer, Room},
    fragment::{Fragment, FragmentName, SegmentId},
    stored_name::{failed, path},
};

/// The parts of one fragment that are on their way to the store at a time.
const PARTS_MAX: usize = 4;

/// The fragments of one object store.
#[derive(Debug, Clone)]
pub(crate) struct DurableFragments {
    /// Where fragments are written: the object store, or the buffer before it.
    objects: Arc<dyn ObjectStore>,
    buffer: Option<Arc<Buffer>>,
    meter: Arc<FunctionMemoryMeter>,
    /// The least id of a segment of this start. Older ones are not metered.
    first: SegmentId,
}

impl DurableFragments {
    pub(crate) fn new(
        objects: Arc<dyn ObjectStore>,
        buffer: Option<Arc<Buffer>>,
        meter: Arc<FunctionMemoryMeter>,
        first: SegmentId,
    ) -> Self {
        let files = buffer.as_ref().map(|buffer| Arc::clone(buffer.files()));
        Self {
            objects: files.unwrap_or(objects),
            buffer,
            meter,
            first,
        }
    }

    /// The buffer before a distant store.
    pub(crate) fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.buffer.as_ref()
    }

    /// Begins to store a fragment. Waits while the buffer is full, for a bounded time.
    pub(crate) async fn begin(&self, fragment: Fragment) -> Result<Storing> {
        let room = match &self.buffer {
            Some(buffer) => Some(buffer.reserve(fragment.stored_bytes()).await?),
            None => None,
        };
        let upload = if fragment.stripes() > 1 {
            let begun = self.objects.put_multipart(&path(fragment.name)).await;
            Some(begun.map_err(|error| failed("store", fragment.name, error))?)
        } else {
            None
        };
        Ok(Storing {
            objects: Arc::clone(&self.objects),
            meter: Arc::clone(&self.meter),
            bytes: fragment.stored_bytes(),
            name: fragment.name,
            room,
            upload,
            whole: Bytes::new(),
            parts: VecDeque::new(),
        })
    }

    /// Whether the fragment is known to be stored.
    pub(crate) async fn has(&self, name: FragmentName) -> bool {
        match &self.buffer {
            Some(buffer) => buffer.has(name).await,
            None => self.objects.head(&path(name)).await.is_ok(),
        }
    }

    /// The bytes `range` of the stored object.
    pub(crate) async fn read(&self, name: FragmentName, range: Range<u64>) -> Result<Bytes> {
        if self.buffer.is_some() {
            let read = self.read_ranges(name, &[range]).await?;
            return Ok(read.into_iter().next().unwrap_or_default());
        }
        let read = self.objects.get_range(&path(name), range).await;
        read.map_err(|error| failed("read", name, error))
    }

    /// Several ranges of the stored object.
    pub(crate) async fn read_ranges(
        &self,
        name: FragmentName,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let read = match &self.buffer {
            Some(buffer) => buffer.read(name, ranges).await,
            None => self.objects.get_ranges(&path(name), ranges).await,
        };
        read.map_err(|error| failed("read", name, error))
    }

    /// Deletes the stored object, if it is there. After an error the caller deletes it again.
    pub(crate) async fn delete(&self, fragment: Fragment) -> Result<()> {
        if let Some(buffer) = &self.buffer {
            buffer.delete(fragment.name).await?;
        } else {
            match self.objects.delete(&path(fragment.name)).await {
                Ok(()) => {}
                Err(ObjectError::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(failed("delete", fragment.name, error)),
            }
        }
        if fragment.name.segment >= self.first {
            self.meter.deleted(fragment.stored_bytes());
        }
        Ok(())
    }
}

/// A fragment that is being stored. Dropping it stores nothing.
pub(crate) struct Storing {
    objects: Arc<dyn ObjectStore>,
    meter: Arc<FunctionMemoryMeter>,
    /// With parity and checksums.
    bytes: u64,
    name: FragmentName,
    /// In the buffer.
    room: Option<Room>,
    /// Of more than one stripe.
    upload: Option<Box<dyn MultipartUpload>>,
    /// Of one stripe.
    whole: Bytes,
    parts: VecDeque<JoinHandle<Result<(), ObjectError>>>,
}

impl Storing {
    /// Stores the next stripe; waits while too many are on their way.
    pub(crate) async fn put(&mut self, stripe: Bytes) -> Result<()> {
        let Some(upload) = &mut self.upload else {
            self.whole = stripe;
            return Ok(());
        };
        self.parts
            .push_back(tokio::spawn(upload.put_part(stripe.into())));
        while self.parts.len() > PARTS_MAX {
            self.settle().await?;
        }
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        let Some(part) = self.parts.pop_front() else {
            return Ok(());
        };
        let done = part.await.unwrap_or_else(|error| {
            Err(ObjectError::Generic {
                store: "part",
                source: Box::new(error),
            })
        });
        done.map_err(|error| failed("store a part of", self.name, error))
    }

    /// Ends. The fragment is durable now.
    pub(crate) async fn finish(mut self) -> Result<()> {
        while !self.parts.is_empty() {
            self.settle().await?;
        }
        let put = if let Some(upload) = &mut self.upload {
            upload.complete().await
        } else {
            let options = PutOptions::from(PutMode::Create);
            let whole = std::mem::take(&mut self.whole).into();
            let path = path(self.name);
            self.objects.put_opts(&path, whole, options).await
        };
        put.map_err(|error| failed("store", self.name, error))?;
        if let Some(room) = self.room.take() {
            room.fill(self.name);
        }
        self.meter.stored(self.bytes);
        Ok(())
    }

    /// Removes the parts that were stored.
    pub(crate) async fn abort(mut self) {
        while let Some(part) = self.parts.pop_front() {
            let _ = part.await;
        }
        if let Some(upload) = &mut self.upload {
            // The store never shows the rest (O5), and removes it at its next start.
            let _ = upload.abort().await;
        }
    }
}
