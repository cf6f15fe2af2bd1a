//! Objects as files under the data directory, synced with their names (O1).
//!
//! Files find the disk full by themselves, whatever the journal has kept for itself. What was refused is remembered, so
//! that the status can say so, and asked of the disk again when the status is: nobody else may ever write.

use std::{
    fmt,
    fs::{self, DirEntry},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions,
    PutResult, local::LocalFileSystem,
};
use parking_lot::Mutex;
use ports::objects::{self, ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload};

use crate::{
    error::OpenError,
    storage::{Storage, make_directory},
};

type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// The file, beside the directory of objects or in it, that is made to see whether there is room.
pub(crate) const TRIAL: &str = "objects-trial";

/// Objects in a directory.
#[derive(Debug)]
pub(crate) struct Objects {
    files: LocalFileSystem,
    storage: Arc<dyn Storage>,
    trial: PathBuf,
    /// The bytes of the last object that was refused for want of room, if none was written since.
    refused: Mutex<Option<u64>>,
}

/// The store of objects in `directory`, which is made if it is not there. The file at `trial` is made and removed now and then.
pub(crate) fn open(
    directory: &Path,
    trial: PathBuf,
    storage: Arc<dyn Storage>,
) -> Result<Objects, OpenError> {
    let attempted = || format!("make {}", directory.display());
    make_directory(&*storage, directory).map_err(OpenError::making(directory))?;
    let files = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    // A disk that has no room for an empty file is cleared by a later start.
    if let Ok(opened) = moment_of_files(&trial) {
        let root = directory.to_owned();
        let clearing = thread::Builder::new().name("objects".into()).spawn(move || clear(&root, opened));
        clearing.map_err(OpenError::io(format!("clear {}", directory.display())))?;
    }
    Ok(Objects { files: files.with_fsync(true), storage, trial, refused: Mutex::default() })
}

impl Objects {
    /// Breaks O1 on purpose: objects are acknowledged before they and their names are synced.
    pub(crate) fn acknowledging_before_sync(self) -> Self {
        Self { files: self.files.with_fsync(false), ..self }
    }
}

/// Now, as files are dated, by making the file `trial`: their clock is a coarser one than the system's, and behind it.
fn moment_of_files(trial: &Path) -> io::Result<SystemTime> {
    fs::write(trial, [])?;
    let written = fs::metadata(trial)?.modified();
    fs::remove_file(trial)?;
    written
}

/// Removes what puts had staged in `directory` before `opened`, when a death stopped them. It looks at every file, so
/// nobody waits for it; what it misses goes at the next start.
fn clear(directory: &Path, opened: SystemTime) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_old = |entry: &DirEntry| {
            entry.metadata().and_then(|file| file.modified()).is_ok_and(|written| written < opened)
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            clear(&path, opened);
        } else if is_staged(&path) && is_old(&entry) {
            let file = path.display();
            match fs::remove_file(&path) {
                Ok(()) => tracing::debug!(%file, "removed an object that was never finished"),
                Err(error) => tracing::warn!(%error, %file, "an object that was never finished stays"),
            }
        }
    }
}

/// The local store writes to `NAME#NUMBER`, which no object can be called, and renames.
fn is_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Objects {
    /// Whether the disk has no room for what was refused last.
    pub(crate) fn is_refusing(&self) -> bool {
        let mut refused = self.refused.lock();
        let Some(bytes) = *refused else { return false };
        let room = self.storage.open(&self.trial).and_then(|file| file.allocate(bytes));
        if let Err(error) = self.storage.remove(&self.trial) {
            tracing::warn!(%error, file = %self.trial.display(), "a file that was made to see what room there is stays");
        }
        if room.is_ok() {
            *refused = None;
        }
        room.is_err()
    }

    fn note<T>(&self, result: &Result<T>, bytes: u64) {
        match result {
            Ok(_) => *self.refused.lock() = None,
            Err(error) if objects::is_for_want_of_room(error) => {
                let first = self.refused.lock().replace(bytes.max(1)).is_none();
                if first {
                    tracing::warn!(%error, bytes, "no room for an object");
                }
            }
            Err(_) => {}
        }
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
        let result = self.files.put_opts(path, payload, options).await;
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
        self.files.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(path, ranges).await
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_is_staged_by_puts_of_this_start_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let folder = directory.path().join("znodes");
        fs::create_dir(&folder).expect("it is made");
        fs::write(folder.join("old#1"), "par").expect("the disk has room");
        let hour = std::time::Duration::from_hours(1);
        let before = SystemTime::now() - hour;
        File::options()
            .write(true)
            .open(folder.join("old#1"))
            .and_then(|file| file.set_modified(before))
            .expect("dated");
        let opened = moment_of_files(&directory.path().join(TRIAL)).expect("the disk has room");
        for name in ["new#1", "whole", "no#number#x", "no#"] {
            fs::write(folder.join(name), "any").expect("the disk has room");
        }
        clear(directory.path(), opened);
        assert!(!folder.join("old#1").exists());
        for name in ["new#1", "whole", "no#number#x", "no#"] {
            assert!(folder.join(name).exists(), "{name}");
        }
    }
}
