//! Objects as files under the data directory, synced with their names (O1).
//!
//! A name that is found may be in the page cache alone: whoever gave it may have died, or failed, or still be at work, before it was durable.
//! Invariants
//! - Who asks whether an object exists, or hears so from a put, may rest on it (O2): its name, and those of the directories above it, are synced first.
//! - So are those of the directories above an object before a put of it is acknowledged, once in a start: the local store syncs only the
//!   directories that it has made itself.
//! - What an earlier start left is synced by a walk in the background. Until that is over who reads an object has its
//!   name synced, too.
//! - Nothing is said to exist, nor acknowledged, in a directory whose sync has failed in this start.
//! - Nothing is acknowledged, nor said to be missing, while another directory, or none, is where the objects were ([`mod@root`]).
//!
//! Nothing rests on a list alone, which is why those do not wait for the walk. Copies, of which Landfast makes none, are left to the
//! local store.
//!
//! Files find the disk full by themselves, whatever the journal has kept for itself. What was refused is remembered, so
//! that the status can say so ([`room`]).

use std::{
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::SystemTime,
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

use self::{
    names::Names,
    room::{Room, trial_in},
    root::Root,
};
use crate::{
    error::OpenError,
    storage::{Storage, make_directory},
};

mod names;
mod room;
mod root;

type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// The limits of objects in files. The local store reads them in pieces of 8 KiB.
pub const OBJECT_LIMITS: ObjectLimits = ObjectLimits {
    object_bytes_max: u64::MAX,
    takes_parts: true,
    piece_bytes_max: 8 << 10,
};

/// Objects in a directory.
#[derive(Debug)]
pub(crate) struct Objects {
    files: LocalFileSystem,
    names: Arc<Names>,
    root: Arc<Root>,
    /// The directories that opening it has made, the lowest first.
    made: Vec<PathBuf>,
    /// No name is synced: a test's broken variant.
    trusts_names: bool,
    room: Arc<Room>,
}

/// The store of objects in `directory`, which is made if it is not there. A file in `trials`, another directory of the same disk or that
/// one, is made and removed now and then.
pub(crate) fn open(
    directory: &Path,
    trials: &Path,
    storage: Arc<dyn Storage>,
) -> Result<Objects, OpenError> {
    let attempted = || format!("make {}", directory.display());
    let made = make_directory(&*storage, directory).map_err(OpenError::making(directory))?;
    let files = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    let trial = trial_in(trials).map_err(OpenError::io(attempted()))?;
    // As the local store calls it.
    let root = fs::canonicalize(directory)
        .and_then(Root::open)
        .map_err(OpenError::io(attempted()))?;
    let names = Arc::new(Names::new(root.path().to_owned(), Arc::clone(&storage)));
    let walk = {
        // On a disk that has no room for an empty file a later start removes what is left.
        let (names, opened) = (Arc::clone(&names), moment_of_files(&trial).ok());
        thread::Builder::new()
            .name("objects".into())
            .spawn(move || names.sweep(opened))
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
        room: Arc::new(Room::new(storage, trial)),
    })
}

impl Objects {
    /// Breaks O1 on purpose: objects are acknowledged before they and their names are synced.
    pub(crate) fn acknowledging_before_sync(self) -> Self {
        Self {
            files: self.files.with_fsync(false),
            trusts_names: true,
            ..self
        }
    }
}

/// Now, as files are dated, by making the file `trial`: their clock is a coarser one than the system's, and behind it.
fn moment_of_files(trial: &Path) -> io::Result<SystemTime> {
    fs::write(trial, [])?;
    let written = fs::metadata(trial)?.modified();
    fs::remove_file(trial)?;
    written
}

impl Objects {
    /// Whether the disk had no room for what was refused last when it was asked last: it is asked anew, for who asks next.
    pub(crate) fn is_refusing(&self) -> bool {
        self.room.is_refusing()
    }

    fn note<T>(&self, result: &Result<T>, bytes: u64) {
        match result {
            Ok(_) => self.room.note_written(),
            Err(error) if objects::is_for_want_of_room(error) => {
                if self.room.note_refused(bytes) {
                    tracing::warn!(%error, bytes, "no room for an object");
                }
            }
            Err(_) => {}
        }
    }
}

impl Objects {
    /// Looks whether the directory is the one that was opened.
    pub(crate) async fn look(&self) -> Result<()> {
        look(Arc::clone(&self.root), Root::look).await
    }

    /// Whether the last look found another one, or none.
    pub(crate) fn is_missing(&self) -> bool {
        self.root.is_missing()
    }

    /// Removes the directories that opening it has made, as far as nothing is in them.
    pub(crate) fn remove_made(&self) {
        for directory in &self.made {
            if let Err(error) = fs::remove_dir(directory) {
                tracing::debug!(directory = %directory.display(), %error, "a directory that was made stays");
                return;
            }
        }
    }

    /// What `get` answers. That nothing is there only where the root was there before and behind it.
    async fn present<T, F>(&self, get: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match get().await {
            Err(ObjectError::NotFound { .. }) => {}
            answered => return answered,
        }
        self.look().await?;
        let again = get().await;
        if let Err(ObjectError::NotFound { .. }) = again {
            self.look().await?;
        }
        again
    }

    async fn put_named(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.look().await?;
        let result = self.files.put_opts(path, payload, options).await;
        let file = self.files.path_to_filesystem(path)?;
        match &result {
            Ok(_) if self.names.are_known_above(&file) => {
                self.names.check(&file).map_err(failed)?
            }
            Ok(_) => self.sync_names(path, Names::sync_above).await?,
            Err(ObjectError::AlreadyExists { .. }) => self.sync_names(path, Names::sync).await?,
            Err(error) => {
                if let Some(cause) = objects::io_error_of(error) {
                    self.names.note_failed_put(&file, cause);
                }
                return result;
            }
        }
        look(Arc::clone(&self.root), move |root| root.look_for(&file)).await?;
        result
    }

    async fn sync_names(
        &self,
        path: &ObjectPath,
        sync: impl FnOnce(&Names, &Path) -> io::Result<()> + Send + 'static,
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
    names: Arc<Names>,
    trusts_names: bool,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.parts.put_part(part)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        look(Arc::clone(&self.root), Root::look).await?;
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

async fn look(
    root: Arc<Root>,
    look: impl FnOnce(&Root) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let looked = tokio::task::spawn_blocking(move || look(&root)).await;
    looked.map_err(io::Error::other).flatten().map_err(failed)
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
        self.look().await?;
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
            self.sync_names(path, Names::sync).await?;
        }
        Ok(result)
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = self.present(|| self.files.get_ranges(path, ranges)).await?;
        if !self.names.is_swept() {
            self.sync_names(path, Names::sync).await?;
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
                    look(root, Root::look).await?;
                }
                deleted
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        // What another directory has is told, and then that it is another one.
        let looked = stream::once(look(Arc::clone(&self.root), Root::look));
        let failed = looked.filter_map(async |looked| looked.err().map(Err));
        self.files.list(prefix).chain(failed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let listed = self.files.list_with_delimiter(prefix).await?;
        self.look().await?;
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
