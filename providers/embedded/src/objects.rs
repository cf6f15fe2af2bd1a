//! Objects as files under the data directory, synced with their names (O1).
//!
//! A name that is found may be in the page cache alone: the writer may have died or failed before
//! the name was durable, or may still be at work.
//!
//! Invariants
//! - A caller that checks for an object, or learns from a put that it exists, may depend on it
//!   (O2): its name and those of the directories above it are synced first.
//! - The directories above an object are synced before a put of it is acknowledged, once in a
//!   start. The local store syncs only directories that it created itself.
//! - A background walk syncs the names that earlier starts left. Until it ends, a read syncs the
//!   name of its object too.
//! - In a directory whose sync has failed in this start, no object is reported to exist, and no put
//!   is acknowledged.
//! - While the path of the objects leads to another directory or to none, no put is acknowledged,
//!   and no object is reported missing ([`mod@root`]).
//!
//! Nothing depends on a list alone, so lists do not wait for the walk. Copies have no
//! callers, and are left to the local store.
//!
//! Files meet a full disk by themselves, independent of the journal's reserve ([`mod@room`]).
//! Deletions keep files that a backup reads ([`mod@hold`]).

use std::{fmt, fs, io, ops::Range, path::Path, sync::Arc, thread};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult, UploadPart, local::LocalFileSystem,
};
use ports::objects::{
    self, ObjectError, ObjectLimits, ObjectPath, ObjectStore, PutOptions, PutPayload,
};

use self::{
    durable_names::{DurableNames, Staged},
    early_sync::EarlySync,
    room::Room,
    root::Root,
};
use crate::{
    error::OpenError,
    storage::{Storage, make_directory},
};

mod durable_names;
mod early_sync;
mod hold;
mod room;
mod root;

pub(crate) use self::{durable_names::Writers, hold::Hold};

type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// The limits of objects in files. The local store reads them in pieces of 8 KiB.
pub const OBJECT_LIMITS: ObjectLimits = ObjectLimits {
    object_bytes_max: u64::MAX,
    takes_parts: true,
    piece_bytes_max: 8 << 10,
};

/// Objects as files in a directory. Clones share it.
#[derive(Debug, Clone)]
pub struct ObjectDirectory {
    files: LocalFileSystem,
    names: Arc<DurableNames>,
    root: Arc<Root>,
    /// Whether names are not synced: a broken variant for tests.
    trusts_names: bool,
    /// Whether deletions ignore a hold: a broken variant for tests.
    releases_deleted: bool,
    room: Arc<Room>,
}

/// Opens the objects in `directory`, and creates it if it is missing.
pub(crate) fn open(
    directory: &Path,
    storage: Arc<dyn Storage>,
    writers: Writers,
) -> Result<ObjectDirectory, OpenError> {
    let attempted = || format!("make {}", directory.display());
    make_directory(&*storage, directory).map_err(OpenError::making(directory))?;
    let files = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    // The same path as the local store uses.
    let root = fs::canonicalize(directory)
        .and_then(Root::open)
        .map(Arc::new)
        .map_err(OpenError::io(attempted()))?;
    let path = root.path().to_owned();
    let names = Arc::new(DurableNames::new(path, Arc::clone(&storage), writers));
    let walk = {
        let names = Arc::clone(&names);
        thread::Builder::new()
            .name("objects".into())
            // Everything else that holds the names belongs to open objects.
            .spawn(move || names.sweep(&|| Arc::strong_count(&names) > 1))
    };
    walk.map_err(OpenError::io(format!(
        "walk through {}",
        directory.display()
    )))?;
    let files = files.with_fsync(true);
    Ok(ObjectDirectory {
        files,
        names,
        room: Room::new(Arc::clone(&root), storage),
        root,
        trusts_names: false,
        releases_deleted: false,
    })
}

impl ObjectDirectory {
    /// Breaks O1: objects are acknowledged before they and their names are synced.
    pub(crate) fn acknowledging_before_sync(self) -> Self {
        Self {
            files: self.files.with_fsync(false),
            trusts_names: true,
            ..self
        }
    }

    /// Breaks the promise of backups: objects are deleted although a backup reads them.
    pub(crate) fn releasing_deleted(self) -> Self {
        Self {
            releases_deleted: true,
            ..self
        }
    }

    /// The port.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.clone())
    }

    /// Whether the disk had no room for the last refused object, and still has none. Does not wait
    /// for the disk.
    pub fn is_full(&self) -> bool {
        self.room.is_refusing()
    }

    /// Checks that the directory is still the one that was opened, and not the empty mount point
    /// that a lost mount leaves.
    pub async fn check(&self) -> Result<()> {
        self.blocking(|objects| objects.root.check()).await
    }

    /// Whether the last check found another directory or none. Puts and failed reads check too.
    pub fn is_missing(&self) -> bool {
        self.root.is_missing()
    }

    /// The result of `get`. An object counts as missing only if the root was there before and after
    /// the read.
    async fn present<T, F>(&self, get: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match get().await {
            Err(ObjectError::NotFound { .. }) => {}
            answered => return answered,
        }
        self.check().await?;
        let again = get().await;
        if let Err(ObjectError::NotFound { .. }) = again {
            self.check().await?;
        }
        again
    }

    async fn put_named(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check().await?;
        let staged = self.names.begin(&self.files.path_to_filesystem(path)?);
        let result = self.files.put_opts(path, payload, options).await;
        drop(staged);
        self.settle(path, result).await
    }

    /// The result of a put, once the store may report it: an object with this path is durable under
    /// its name, and lies in the directory that was opened.
    async fn settle(&self, path: &ObjectPath, result: Result<PutResult>) -> Result<PutResult> {
        let file = self.files.path_to_filesystem(path)?;
        match &result {
            Ok(_) if self.names.are_known_above(&file) => {
                self.names.check(&file).map_err(failed)?;
            }
            Ok(_) => self.sync_names(path, DurableNames::sync_above).await?,
            Err(ObjectError::AlreadyExists { .. }) => {
                self.sync_names(path, DurableNames::sync).await?;
            }
            Err(error) => {
                if let Some(cause) = objects::io_error_of(error) {
                    self.names.note_failed_put(&file, cause);
                }
                return result;
            }
        }
        self.blocking(move |objects| objects.root.check_for(&file))
            .await?;
        result
    }

    async fn sync_names(
        &self,
        path: &ObjectPath,
        sync: impl FnOnce(&DurableNames, &Path) -> io::Result<()> + Send + 'static,
    ) -> Result<()> {
        if self.trusts_names {
            return Ok(());
        }
        let file = self.files.path_to_filesystem(path)?;
        self.blocking(move |objects| sync(&objects.names, &file))
            .await
    }

    /// Keeps the content of an object for a backup in progress, before it is deleted.
    async fn keep_for_backup(&self, path: &ObjectPath) -> Result<()> {
        if !self.names.held.is_on() || self.releases_deleted {
            return Ok(());
        }
        let file = self.files.path_to_filesystem(path)?;
        self.blocking(move |objects| objects.names.held.keep(&file))
            .await
    }

    async fn blocking(
        &self,
        act: impl FnOnce(&Self) -> io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let objects = self.clone();
        let done = tokio::task::spawn_blocking(move || act(&objects)).await;
        done.map_err(io::Error::other).flatten().map_err(failed)
    }
}

/// An upload in parts. Its completion is acknowledged like a put (O5).
#[derive(Debug)]
struct Upload {
    parts: Box<dyn MultipartUpload>,
    path: ObjectPath,
    objects: ObjectDirectory,
    early_sync: EarlySync,
    _staged: Staged,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        let (room, bytes) = (Arc::clone(&self.objects.room), part.content_length() as u64);
        let early_sync = self.early_sync.clone();
        let put = self.parts.put_part(part);
        Box::pin(async move {
            let result = put.await;
            room.note(&result, bytes);
            if result.is_ok() {
                early_sync.written(bytes);
            }
            result
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.objects.check().await?;
        let result = self.parts.complete().await;
        self.objects.settle(&self.path, result).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.abort().await
    }
}

fn failed(source: io::Error) -> ObjectError {
    ObjectError::Generic {
        store: "disk",
        source: Box::new(source),
    }
}

impl fmt::Display for ObjectDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.files, f)
    }
}

#[async_trait]
impl ObjectStore for ObjectDirectory {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        let result = self.put_named(path, payload, options).await;
        self.room.note(&result, bytes);
        result
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check().await?;
        let file = self.files.path_to_filesystem(path)?;
        Ok(Box::new(Upload {
            _staged: self.names.begin(&file),
            parts: self.files.put_multipart_opts(path, options).await?,
            early_sync: EarlySync::begin(&file),
            path: path.clone(),
            objects: self.clone(),
        }))
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let is_asked_for = options.head;
        let result = self
            .present(|| self.files.get_opts(path, options.clone()))
            .await?;
        if is_asked_for || !self.names.is_swept() {
            self.sync_names(path, DurableNames::sync).await?;
        }
        Ok(result)
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = self.present(|| self.files.get_ranges(path, ranges)).await?;
        if !self.names.is_swept() {
            self.sync_names(path, DurableNames::sync).await?;
        }
        Ok(result)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let objects = self.clone();
        let kept = paths.then(move |path| {
            let objects = objects.clone();
            async move {
                let path = path?;
                objects.keep_for_backup(&path).await?;
                Ok(path)
            }
        });
        let objects = self.clone();
        let deleted = self.files.delete_stream(kept.boxed()).then(move |deleted| {
            let objects = objects.clone();
            async move {
                if let Err(ObjectError::NotFound { .. }) = deleted {
                    objects.check().await?;
                }
                deleted
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        // A list may show the content of another directory, but then it ends with an error.
        let objects = self.clone();
        let checked = stream::once(async move { objects.check().await });
        let failed = checked.filter_map(async |checked| checked.err().map(Err));
        self.files.list(prefix).chain(failed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let listed = self.files.list_with_delimiter(prefix).await?;
        self.check().await?;
        Ok(listed)
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        let _staged = self.names.begin(&self.files.path_to_filesystem(to)?);
        self.files.copy_opts(from, to, options).await
    }
}
