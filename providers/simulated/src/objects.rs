//! Objects in memory. A put that returned is durable: a crash of the store does not affect objects.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, UploadPart, memory::InMemory, path::Path,
};
use ports::objects::ObjectLimits;

use crate::{call::Kind, cloud::Cloud};

/// Objects are read in pieces of this size, as from a disk (O6).
const PIECE_BYTES: usize = 64 << 10;

/// The limits of a world's objects.
pub(crate) const LIMITS: ObjectLimits = ObjectLimits {
    object_bytes_max: u64::MAX,
    takes_parts: true,
    piece_bytes_max: PIECE_BYTES,
};

/// The object store of a world: the in-memory store of `object_store`, with the faults of every
/// port.
#[derive(Debug, Clone)]
pub struct SimulatedObjects {
    cloud: Arc<Cloud>,
    objects: Arc<InMemory>,
    is_full: Arc<AtomicBool>,
}

impl SimulatedObjects {
    pub(crate) fn new(cloud: Arc<Cloud>) -> Self {
        Self {
            cloud,
            objects: Arc::default(),
            is_full: Arc::default(),
        }
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Imitates a disk that is so full that it cannot even tell whether an object exists.
    fn check_room(&self) -> Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            let source = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::Generic {
                store: "simulated",
                source: Box::new(source),
            });
        }
        Ok(())
    }

    /// Performs `request` with faults before and after it.
    async fn pass<T>(
        &self,
        operation: &'static str,
        subject: String,
        kind: Kind,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let call = self
            .cloud
            .begin_call(operation, subject)
            .await
            .map_err(unavailable)?;
        match request.await {
            Ok(value) => self
                .cloud
                .end_call(call, kind, Ok(value), |_| "done".into())
                .await
                .map_err(unavailable),
            Err(error) => {
                let text = trace_error(&error);
                // An error of the object store is an answer too; only the caller's death may still
                // strike.
                self.cloud
                    .end_call(call, Kind::Reads, Ok(()), |()| text.into())
                    .await
                    .map_err(unavailable)?;
                Err(error)
            }
        }
    }
}

/// The same bytes in memory of their own. As with every other store, a caller may reuse the buffers of
/// a put that returned.
fn copied(payload: &PutPayload) -> PutPayload {
    let mut copy = Vec::with_capacity(payload.content_length());
    payload
        .iter()
        .for_each(|bytes| copy.extend_from_slice(bytes));
    copy.into()
}

#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    objects: SimulatedObjects,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        match self.objects.check_room() {
            Ok(()) => self.upload.put_part(copied(&part)),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// The same object, in pieces of [`PIECE_BYTES`].
fn in_pieces(found: GetResult) -> GetResult {
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let pieces = found.into_stream().map_ok(|mut whole| {
        let pieces = std::iter::from_fn(move || {
            let next = whole.split_to(whole.len().min(PIECE_BYTES));
            (!next.is_empty()).then_some(Ok(next))
        });
        stream::iter(pieces)
    });
    GetResult {
        payload: GetResultPayload::Stream(pieces.try_flatten().boxed()),
        meta,
        range,
        attributes,
        extensions,
    }
}

fn unavailable(error: ports::Error) -> Error {
    Error::Generic {
        store: "simulated",
        source: Box::new(error),
    }
}

fn trace_error(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "not found",
        Error::AlreadyExists { .. } => "already exists",
        _ => "failed",
    }
}

impl fmt::Display for SimulatedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated objects")
    }
}

#[async_trait]
impl ObjectStore for SimulatedObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let call = async {
            self.check_room()?;
            self.objects
                .put_opts(location, copied(&payload), opts)
                .await
        };
        self.pass("put_object", location.to_string(), Kind::Changes, call)
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let call = async {
            let upload = self.objects.put_multipart_opts(location, opts).await?;
            let objects = self.clone();
            Ok(Box::new(Upload { upload, objects }) as Box<dyn MultipartUpload>)
        };
        self.pass(
            "put_object_in_parts",
            location.to_string(),
            Kind::Changes,
            call,
        )
        .await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let call = self.objects.get_opts(location, options);
        self.pass("get_object", location.to_string(), Kind::Reads, call)
            .await
            .map(in_pieces)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let call = self.objects.get_ranges(location, ranges);
        self.pass("get_object", location.to_string(), Kind::Reads, call)
            .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Path| {
            let this = this.clone();
            async move {
                let one = futures_util::stream::iter([Ok(location.clone())]).boxed();
                let call = this.objects.delete_stream(one).try_collect::<Vec<_>>();
                this.pass("delete_object", location.to_string(), Kind::Changes, call)
                    .await?;
                Ok(location)
            }
        };
        locations.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let page = async move {
            let subject = prefix.as_ref().map(Path::to_string).unwrap_or_default();
            let call = this.objects.list(prefix.as_ref()).try_collect::<Vec<_>>();
            let objects = this
                .pass("list_objects", subject, Kind::Reads, call)
                .await?;
            Ok::<_, Error>(futures_util::stream::iter(objects.into_iter().map(Ok)))
        };
        futures_util::stream::once(page).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let subject = prefix.map(Path::to_string).unwrap_or_default();
        let call = self.objects.list_with_delimiter(prefix);
        self.pass("list_objects", subject, Kind::Reads, call).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let call = self.objects.copy_opts(from, to, options);
        self.pass(
            "copy_object",
            format!("{from} to {to}"),
            Kind::Changes,
            call,
        )
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let call = self.objects.rename_opts(from, to, options);
        self.pass(
            "rename_object",
            format!("{from} to {to}"),
            Kind::Changes,
            call,
        )
        .await
    }
}
