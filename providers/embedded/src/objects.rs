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
//!
//! Nothing rests on a list alone, which is why those do not wait for the walk. Objects put in parts, and copies, of which nobody makes
//! any, are left to the local store.
//!
//! Files find the disk full by themselves, whatever the journal has kept for itself. What was refused is remembered, so
//! that the status can say so ([`room`]).

use std::{fmt, fs, io, ops::Range, path::Path, sync::Arc, thread, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions,
    PutResult, local::LocalFileSystem,
};
use ports::objects::{self, ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload};

use self::{
    names::Names,
    room::{Room, trial_in},
};
use crate::{
    error::OpenError,
    storage::{Storage, make_directory},
};

mod names;
mod room;

type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// Objects in a directory.
#[derive(Debug)]
pub(crate) struct Objects {
    files: LocalFileSystem,
    names: Arc<Names>,
    /// No name is synced: a test's broken variant.
    trusts_names: bool,
    room: Arc<Room>,
}

/// The store of objects in `directory`, which is made if it is not there. A file in `trials`, another directory of the same disk or that
/// one, is made and removed now and then.
pub(crate) fn open(directory: &Path, trials: &Path, storage: Arc<dyn Storage>) -> Result<Objects, OpenError> {
    let attempted = || format!("make {}", directory.display());
    make_directory(&*storage, directory).map_err(OpenError::making(directory))?;
    let files = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    let trial = trial_in(trials).map_err(OpenError::io(attempted()))?;
    // As the local store calls it.
    let root = fs::canonicalize(directory).map_err(OpenError::io(attempted()))?;
    let names = Arc::new(Names::new(root, Arc::clone(&storage)));
    let walk = {
        // On a disk that has no room for an empty file a later start removes what is left.
        let (names, opened) = (Arc::clone(&names), moment_of_files(&trial).ok());
        thread::Builder::new().name("objects".into()).spawn(move || names.sweep(opened))
    };
    walk.map_err(OpenError::io(format!("walk through {}", directory.display())))?;
    let files = files.with_fsync(true);
    Ok(Objects { files, names, trusts_names: false, room: Arc::new(Room::new(storage, trial)) })
}

impl Objects {
    /// Breaks O1 on purpose: objects are acknowledged before they and their names are synced.
    pub(crate) fn acknowledging_before_sync(self) -> Self {
        Self { files: self.files.with_fsync(false), trusts_names: true, ..self }
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

fn failed(source: io::Error) -> ObjectError {
    ObjectError::Generic { store: "disk", source: Box::new(source) }
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
        let mut result = self.files.put_opts(path, payload, options).await;
        let synced = match &result {
            Ok(_) => {
                let file = self.files.path_to_filesystem(path)?;
                if self.names.are_known_above(&file) {
                    self.names.check(&file).map_err(failed)
                } else {
                    self.sync_names(path, Names::sync_above).await
                }
            }
            Err(ObjectError::AlreadyExists { .. }) => self.sync_names(path, Names::sync).await,
            Err(error) => {
                if let Some(cause) = objects::io_error_of(error) {
                    self.names.note_failed_put(&self.files.path_to_filesystem(path)?, cause);
                }
                Ok(())
            }
        };
        if let Err(error) = synced {
            result = Err(error);
        }
        self.note(&result, bytes);
        result
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let is_asked_for = options.head;
        let result = self.files.get_opts(path, options).await?;
        if is_asked_for || !self.names.is_swept() {
            self.sync_names(path, Names::sync).await?;
        }
        Ok(result)
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = self.files.get_ranges(path, ranges).await?;
        if !self.names.is_swept() {
            self.sync_names(path, Names::sync).await?;
        }
        Ok(result)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.files.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}
