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
//! Files meet a full disk by themselves, independent of the journal's reserve. The size of the last
//! refused object is remembered, so that the status reports a disk without room for it.

use std::{
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

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

use self::{durable_names::DurableNames, root::Root};
use crate::{
    error::OpenError,
    storage::{Storage, make_directory},
};

mod durable_names;
mod root;

type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// The limits of objects in files. The local store reads them in pieces of 8 KiB.
pub const OBJECT_LIMITS: ObjectLimits = ObjectLimits {
    object_bytes_max: u64::MAX,
    takes_parts: true,
    piece_bytes_max: 8 << 10,
};

/// The objects of a directory.
#[derive(Debug)]
pub(crate) struct Objects {
    files: LocalFileSystem,
    names: Arc<DurableNames>,
    root: Arc<Root>,
    /// The directories that opening this one created, the lowest first.
    made: Vec<PathBuf>,
    /// Whether names are not synced: a broken variant for tests.
    trusts_names: bool,
    storage: Arc<dyn Storage>,
    /// The size of the last object for which the disk had no room; zero if one was written since.
    refused_bytes: AtomicU64,
}

/// Opens the objects in `directory`, and creates it if it is missing.
pub(crate) fn open(directory: &Path, storage: Arc<dyn Storage>) -> Result<Objects, OpenError> {
    let attempted = || format!("make {}", directory.display());
    let made = make_directory(&*storage, directory).map_err(OpenError::making(directory))?;
    let files = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    // The same path as the local store uses.
    let root = fs::canonicalize(directory)
        .and_then(Root::open)
        .map_err(OpenError::io(attempted()))?;
    let names = Arc::new(DurableNames::new(
        root.path().to_owned(),
        Arc::clone(&storage),
    ));
    let walk = {
        let names = Arc::clone(&names);
        thread::Builder::new()
            .name("objects".into())
            .spawn(move || names.sweep())
    };
    walk.map_err(OpenError::io(format!(
        "walk through {}",
        directory.display()
    )))?;
    let files = files.with_fsync(true);
    Ok(Objects {
        files,
        names,
        root: Arc::new(root),
        made,
        trusts_names: false,
        storage,
        refused_bytes: AtomicU64::new(0),
    })
}

impl Objects {
    /// Breaks O1: objects are acknowledged before they and their names are synced.
    pub(crate) fn acknowledging_before_sync(self) -> Self {
        Self {
            files: self.files.with_fsync(false),
            trusts_names: true,
            ..self
        }
    }
}

impl Objects {
    /// Whether the disk had no room for the last refused object, and still has none.
    pub(crate) fn is_refusing(&self) -> bool {
        let bytes = self.refused_bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return false;
        }
        let has_room = self
            .storage
            .free_bytes(self.root.path())
            .is_ok_and(|free| free >= bytes);
        if has_room {
            self.refused_bytes.store(0, Ordering::Relaxed);
        }
        !has_room
    }

    fn note<T>(&self, result: &Result<T>, bytes: u64) {
        match result {
            Ok(_) => self.refused_bytes.store(0, Ordering::Relaxed),
            Err(error) if objects::is_for_want_of_room(error) => {
                if self.refused_bytes.swap(bytes.max(1), Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, bytes, "the disk has no room for an object");
                }
            }
            Err(_) => {}
        }
    }
}

impl Objects {
    /// Checks that the directory is the one that was opened.
    pub(crate) async fn check(&self) -> Result<()> {
        on_root(Arc::clone(&self.root), Root::check).await
    }

    /// Whether the last check found another directory or none.
    pub(crate) fn is_missing(&self) -> bool {
        self.root.is_missing()
    }

    /// Removes the empty directories that opening this one created.
    pub(crate) fn remove_made(&self) {
        for directory in &self.made {
            if let Err(error) = fs::remove_dir(directory) {
                tracing::debug!(directory = %directory.display(), %error, "a created directory could not be removed");
                return;
            }
        }
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
        let result = self.files.put_opts(path, payload, options).await;
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
        on_root(Arc::clone(&self.root), move |root| root.check_for(&file)).await?;
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
        let names = Arc::clone(&self.names);
        let synced = tokio::task::spawn_blocking(move || sync(&names, &file)).await;
        synced.map_err(io::Error::other).flatten().map_err(failed)
    }
}

/// An upload in parts. Its completion is acknowledged like a put (O5).
#[derive(Debug)]
struct Upload {
    parts: Box<dyn MultipartUpload>,
    file: PathBuf,
    root: Arc<Root>,
    names: Arc<DurableNames>,
    trusts_names: bool,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.parts.put_part(part)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        on_root(Arc::clone(&self.root), Root::check).await?;
        let completed = self.parts.complete().await?;
        if !self.trusts_names {
            let (names, file) = (Arc::clone(&self.names), self.file.clone());
            let synced = tokio::task::spawn_blocking(move || names.sync_above(&file)).await;
            synced.map_err(io::Error::other).flatten().map_err(failed)?;
        }
        Ok(completed)
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.abort().await
    }
}

async fn on_root(
    root: Arc<Root>,
    check: impl FnOnce(&Root) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let checked = tokio::task::spawn_blocking(move || check(&root)).await;
    checked.map_err(io::Error::other).flatten().map_err(failed)
}

fn failed(source: io::Error) -> ObjectError {
    ObjectError::Generic {
        store: "disk",
        source: Box::new(source),
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.files, f)
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        let result = self.put_named(path, payload, options).await;
        self.note(&result, bytes);
        result
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check().await?;
        Ok(Box::new(Upload {
            parts: self.files.put_multipart_opts(path, options).await?,
            file: self.files.path_to_filesystem(path)?,
            root: Arc::clone(&self.root),
            names: Arc::clone(&self.names),
            trusts_names: self.trusts_names,
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
        let root = Arc::clone(&self.root);
        let deleted = self.files.delete_stream(paths).then(move |deleted| {
            let root = Arc::clone(&root);
            async move {
                if let Err(ObjectError::NotFound { .. }) = deleted {
                    on_root(root, Root::check).await?;
                }
                deleted
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        // A list may show the content of another directory, but then it ends with an error.
        let checked = stream::once(on_root(Arc::clone(&self.root), Root::check));
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
        self.files.copy_opts(from, to, options).await
    }
}
