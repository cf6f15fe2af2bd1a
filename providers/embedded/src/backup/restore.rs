//! Writes the content of a backup as a data directory of its own.
//!
//! The records go to the checkpoint store, which then is the store as of the backup's position. No
//! journal is written: the first start begins it, as in a new directory. Each object's file is
//! synced and read back.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Component, Path, PathBuf},
};

use super::{
    Contents, FILES, NAMED, Target,
    error::BackupError,
    frames::{Head, ObjectHead},
    read::{Sink, read},
};
use crate::{
    Config,
    checkpoint_store::{self, CheckpointEnd, CheckpointStore, Expiring},
    directory::{
        format::{self, Format},
        layout,
    },
    records::{
        Record, RecordKey,
        overlay::{Generation, entry_bound, replay},
    },
    storage::{DiskStorage, make_directory},
};

/// The bytes of records that are written at once.
const BATCH_BYTES: usize = 8 << 20;
/// The end of a name that is not restored yet.
const UNFINISHED: &str = ".restoring";
/// The file in a directory that is not restored yet. Only such a directory is emptied.
const MARKER: &str = ".landfast-restoring";

type Result<T> = std::result::Result<T, BackupError>;

/// A directory that gets its name at the end. What an interrupted restore has left there is removed.
#[derive(Debug)]
struct Staged {
    name: PathBuf,
    path: PathBuf,
    /// Locked, so that another restore leaves it alone.
    _lock: File,
}

impl Staged {
    /// Errors: something is at the name already.
    fn make(name: &Path) -> Result<Self> {
        let name = std::path::absolute(name).map_err(BackupError::io("find the directory"))?;
        let named = name.display().to_string();
        match fs::read_dir(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                let mut entries = entries.map_err(BackupError::io(format!("list {named}")))?;
                if entries.next().is_some() {
                    return Err(BackupError::Refused(format!(
                        "{named} is not empty: restore to a new directory, and nothing is overwritten"
                    )));
                }
            }
        }
        let mut staged = OsString::from(&name);
        staged.push(UNFINISHED);
        let path = PathBuf::from(staged);
        if let Some(above) = path.parent() {
            make_directory(&DiskStorage, above).map_err(making(above))?;
        }
        let is_left = match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
            made => made.map(|()| false).map_err(making(&path))?,
        };
        let lock = locked(&path, is_left)?;
        if is_left {
            take_over(&path)?;
        }
        let marker = path.join(MARKER);
        let staged = Self {
            name,
            path,
            _lock: lock,
        };
        File::create(&marker).map_err(making(&marker))?;
        Ok(staged)
    }

    /// Makes the content durable, without the marker.
    fn sync(&self) -> Result<()> {
        let removed = fs::remove_file(self.path.join(MARKER));
        let synced = removed.and_then(|()| sync(&self.path));
        synced.map_err(BackupError::io(format!("sync {}", self.path.display())))
    }

    /// Gives the durable content its name, durably.
    fn rename(&self) -> Result<()> {
        let renamed = fs::rename(&self.path, &self.name).and_then(|()| {
            let above = self.name.parent().unwrap_or(Path::new("/"));
            File::open(above)?.sync_all()
        });
        renamed.map_err(BackupError::io(format!(
            "rename {} (if {} is a mount point, restore to a directory below it)",
            self.path.display(),
            self.name.display()
        )))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Once it is renamed, nothing is there.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks the directory until the file is closed. Errors: another restore has it; `is_left` and the
/// file system has no locks.
fn locked(path: &Path, is_left: bool) -> Result<File> {
    let file = File::open(path).map_err(BackupError::io(format!("open {}", path.display())))?;
    if is_locked_here(&file, path, !is_left) {
        return Ok(file);
    }
    Err(BackupError::Refused(format!(
        "{} is there: another restore to this directory runs; wait for its end, or remove it if none runs",
        path.display()
    )))
}

/// Locks a file or directory, which was opened at `path`, until it is closed. Returns whether it is
/// ours and still there. Where the file system has no locks, only a new one is.
pub fn is_locked_here(file: &File, path: &Path, is_new: bool) -> bool {
    let is_locked = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_new,
    };
    // Another process may have renamed or removed it before it was locked here.
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let (opened, there) = (file.metadata(), fs::symlink_metadata(path));
    is_locked
        && matches!((opened.map(identity), there.map(identity)), (Ok(opened), Ok(there)) if opened == there)
}

/// Empties a directory that an interrupted restore has left.
///
/// Errors: it has content and no marker, so it may be of another program. It is left alone.
fn take_over(path: &Path) -> Result<()> {
    let named = path.display();
    let is_empty = fs::read_dir(path).map(|mut entries| entries.next().is_none());
    let is_empty = is_empty.map_err(BackupError::io(format!("list {named}")))?;
    if !is_empty && fs::symlink_metadata(path.join(MARKER)).is_err() {
        return Err(BackupError::Refused(format!(
            "{named} is not empty, and may not be of an interrupted restore: move it away, or remove it"
        )));
    }
    empty(path).map_err(BackupError::io(format!(
        "remove what an interrupted restore has left in {named}"
    )))
}

/// The marker stays, so that the next restore may continue.
fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn making(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    BackupError::io(format!("create {}", path.display()))
}

/// An object that is being written.
#[derive(Debug)]
struct Writing {
    path: PathBuf,
    file: File,
    crc: crc32fast::Hasher,
}

/// A store that is being restored.
#[derive(Debug)]
pub(super) struct Restoring {
    data_dir: Staged,
    named: Option<Staged>,
    store: CheckpointStore,
    format: Format,
    end: CheckpointEnd,
    batch: Generation,
    batch_bytes: usize,
    writing: Option<Writing>,
}

impl Restoring {
    pub(super) fn begin(target: &Target) -> Result<Self> {
        let data_dir = Staged::make(&target.data_dir)?;
        let named = target.named.as_deref().map(Staged::make).transpose()?;
        let path = &data_dir.path;
        for directory in [layout::JOURNAL, layout::OBJECTS] {
            let directory = path.join(directory);
            fs::create_dir(&directory).map_err(making(&directory))?;
        }
        let format = format::begin_timeline(&DiskStorage, path)?;
        let store = CheckpointStore::open(&Config::new(path), format)?;
        Ok(Self {
            store,
            format,
            data_dir,
            named,
            end: CheckpointEnd::default(),
            batch: Generation::default(),
            batch_bytes: 0,
            writing: None,
        })
    }

    /// Reads the store back, which must have this many records, and gives it its name.
    pub(super) fn finish(mut self, records: u64) -> Result<()> {
        self.flush()?;
        self.store.close();
        let path = &self.data_dir.path;
        let found = checkpoint_store::verify(&DiskStorage, path, self.format)?;
        if found != records {
            return Err(BackupError::Refused(format!(
                "{} has {found} records after the restore, and the backup {records}: check the disk",
                path.display()
            )));
        }
        for staged in self.named.iter().chain([&self.data_dir]) {
            staged.sync()?;
        }
        for staged in self.named.iter().chain([&self.data_dir]) {
            staged.rename()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        // Nothing expires before the first start.
        let expiring = Expiring {
            now_ms: 0,
            count_max: 0,
        };
        let written = self.store.write(batch.in_order(), self.end, expiring);
        written.map_err(|error| {
            let path = self.data_dir.path.display();
            BackupError::Refused(format!("write the records to {path}: {error}"))
        })
    }

    fn path_of(&self, object: &ObjectHead) -> Result<PathBuf> {
        let below = |directory: &Path, name: &str| {
            let is_plain = |part| matches!(part, Component::Normal(_));
            let is_right = !name.is_empty() && Path::new(name).components().all(is_plain);
            let wrong = || {
                BackupError::Refused(format!(
                    "the backup has an object {name:?}, which would lie outside of its directory: use another copy"
                ))
            };
            is_right.then(|| directory.join(name)).ok_or_else(wrong)
        };
        let data_dir = &self.data_dir.path;
        let directory = match (object.place.as_str(), &self.named) {
            (FILES, _) => data_dir.clone(),
            (NAMED, Some(named)) => named.path.clone(),
            (NAMED, None) => {
                return Err(BackupError::Refused(
                    "the backup has objects of a directory beside the data directory: give a new one by --objects file:///DIR".into(),
                ));
            }
            (place, _) => below(data_dir, place)?,
        };
        below(&directory, &object.name)
    }
}

/// Restores a backup to directories that are missing or empty. The content is written beside them,
/// read back, made durable, and renamed at the end, the data directory last.
///
/// Errors: as those of [`super::verify`], a target that is in use, a full disk. Nothing is left then, but
/// a restored directory of named objects if the last rename fails.
pub fn restore(input: impl Read, target: &Target) -> Result<Contents> {
    let mut restoring = Restoring::begin(target)?;
    let contents = read(input, &mut restoring)?;
    restoring.finish(contents.records)?;
    Ok(contents)
}

impl Sink for Restoring {
    fn head(&mut self, head: &Head) -> Result<()> {
        self.end = CheckpointEnd {
            position: head.position,
            // No record of the journal yet.
            sequence: 0,
            incarnation: head.incarnation,
        };
        Ok(())
    }

    fn record(&mut self, key: RecordKey, record: Record) -> Result<()> {
        self.batch_bytes += entry_bound(&key, Some(&record));
        replay(&mut self.batch, key, Some(record), false);
        if self.batch_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn object(&mut self, object: &ObjectHead) -> Result<()> {
        let path = self.path_of(object)?;
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(making(above))?;
        }
        // A file beside the objects may hold keys. None has the name of one of the store's own.
        let is_beside = object.place == FILES;
        let mode = if is_beside { 0o600 } else { 0o666 };
        let mut options = OpenOptions::new();
        // Of an object that comes twice, the last one counts.
        options.write(true).create(true).truncate(true).mode(mode);
        options.create_new(is_beside);
        let file = options.open(&path).map_err(making(&path))?;
        self.writing = Some(Writing {
            path,
            file,
            crc: crc32fast::Hasher::new(),
        });
        Ok(())
    }

    fn data(&mut self, data: &[u8]) -> Result<()> {
        let Some(writing) = &mut self.writing else {
            return Ok(());
        };
        writing.crc.update(data);
        let attempted = || format!("write {}", writing.path.display());
        let written = writing.file.write_all(data);
        written.map_err(BackupError::io(attempted()))
    }

    fn object_end(&mut self) -> Result<()> {
        let Some(Writing { path, file, crc }) = self.writing.take() else {
            return Ok(());
        };
        let attempted = || BackupError::io(format!("write {}", path.display()));
        file.sync_all().map_err(attempted())?;
        if crc_of(&path).map_err(attempted())? != crc.finalize() {
            let path = path.display();
            return Err(BackupError::Refused(format!(
                "{path} does not read back as written: check the disk"
            )));
        }
        Ok(())
    }
}

fn crc_of(path: &Path) -> io::Result<u32> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 64 << 10]);
    let mut crc = crc32fast::Hasher::new();
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(crc.finalize());
        }
        crc.update(&buffer[..count]);
    }
}

/// Makes the names below a directory durable.
fn sync(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    File::open(directory)?.sync_all()
}
