//! Fragments in the object store: the durable copy.
//!
//! One object per fragment, so that a PUT costs one request and one sync, not twelve. It holds all
//! chunks, so that a damaged unit is repaired, and so that each chunk is read back by itself.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use ports::{
    metering::function_memory::FunctionMemoryMeter,
    objects::{
        self, MultipartUpload, ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode,
        PutOptions,
    },
};
use tokio::task::JoinHandle;

use crate::{
    Result,
    fragment::{Fragment, FragmentName, SegmentId},
};

/// The parts of one fragment that are on their way to the store at a time.
const PARTS_MAX: usize = 4;

/// The fragments of one object store.
#[derive(Debug, Clone)]
pub(crate) struct DurableFragments {
    objects: Arc<dyn ObjectStore>,
    meter: Arc<FunctionMemoryMeter>,
    /// The least id of a segment of this start. Older ones are not metered.
    first: SegmentId,
}

fn path(name: FragmentName) -> ObjectPath {
    // Folders by the last digits, which are random. The first are the time.
    let segment = format!("{:032x}", name.segment.0);
    format!("memory/{}/{segment}-{}", &segment[30..], name.index).into()
}

fn failed(attempted: &str, name: FragmentName, cause: ObjectError) -> crate::Error {
    let attempted = format!("{attempted} {}", path(name));
    objects::failed(attempted, cause).into()
}

impl DurableFragments {
    pub(crate) fn new(
        objects: Arc<dyn ObjectStore>,
        meter: Arc<FunctionMemoryMeter>,
        first: SegmentId,
    ) -> Self {
        Self {
            objects,
            meter,
            first,
        }
    }

    /// Begins to store a fragment.
    pub(crate) async fn begin(&self, fragment: Fragment) -> Result<Storing> {
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
            upload,
            whole: Bytes::new(),
            parts: VecDeque::new(),
        })
    }

    /// Whether the fragment is known to be stored.
    pub(crate) async fn has(&self, name: FragmentName) -> bool {
        self.objects.head(&path(name)).await.is_ok()
    }

    /// The bytes `range` of the stored object.
    pub(crate) async fn read(&self, name: FragmentName, range: Range<u64>) -> Result<Bytes> {
        let read = self.objects.get_range(&path(name), range).await;
        read.map_err(|error| failed("read", name, error))
    }

    /// Several ranges of the stored object.
    pub(crate) async fn read_ranges(
        &self,
        name: FragmentName,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let read = self.objects.get_ranges(&path(name), ranges).await;
        read.map_err(|error| failed("read", name, error))
    }

    /// Deletes the stored object, if it is there.
    pub(crate) async fn delete(&self, fragment: Fragment) -> Result<()> {
        match self.objects.delete(&path(fragment.name)).await {
            Ok(()) => {
                if fragment.name.segment >= self.first {
                    self.meter.deleted(fragment.stored_bytes());
                }
                Ok(())
            }
            Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("delete", fragment.name, error)),
        }
    }
}

/// A fragment that is being stored. Dropping it stores nothing.
pub(crate) struct Storing {
    objects: Arc<dyn ObjectStore>,
    meter: Arc<FunctionMemoryMeter>,
    /// With parity and checksums.
    bytes: u64,
    name: FragmentName,
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
