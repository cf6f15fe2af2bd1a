//! The names of objects and their directories: which are known to be durable, and which may be
//! lost.
//!
//! A failed sync of a directory may have dropped what it was to write, and a later sync would
//! succeed without it. In such a directory nothing counts as durable until another start has read
//! its content anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirEntry, FileType},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use super::hold::Held;
use crate::storage::{Storage, cannot_be_asked, is_about_room};

/// How many directories are remembered as durable. Beyond that all are forgotten, and synced again.
const DIRECTORIES_MAX: usize = 1024;

/// How many directories are remembered as failed. At the bound no directory is synced any more.
const FAILED_MAX: usize = 1024;

/// The age from which no process still writes a staged file, where other processes may write. The
/// file system's clock may be behind ours.
const STAGED_AGE_MIN: Duration = Duration::from_mins(10);

/// The processes that may write objects to a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// This one alone: it holds the lock of the data directory.
    ThisProcess,
    /// Others too.
    Others,
}

/// The names in and below a directory.
#[derive(Debug)]
pub(super) struct DurableNames {
    /// The root directory, whose own name is durable.
    root: PathBuf,
    storage: Arc<dyn Storage>,
    /// Directories whose names this start has synced.
    durable: Mutex<BTreeSet<PathBuf>>,
    /// Directories whose sync has failed in this start.
    failed: Mutex<BTreeSet<PathBuf>>,
    /// Whether everything that earlier starts left is durable.
    is_swept: AtomicBool,
    writers: Writers,
    /// The number of puts in progress of each file.
    staged: Arc<Mutex<BTreeMap<PathBuf, usize>>>,
    /// The files that are kept for a backup.
    pub(super) held: Arc<Held>,
}

/// A put in progress. The sweep leaves its staged file until this is dropped.
#[derive(Debug)]
pub(super) struct Staged {
    file: PathBuf,
    all: Arc<Mutex<BTreeMap<PathBuf, usize>>>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(count) = all.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.file);
            }
        }
    }
}

/// A walk through the directory of objects.
struct Walk<'objects> {
    /// Files of other processes that were staged after this may still be written.
    staged_before: SystemTime,
    is_open: &'objects dyn Fn() -> bool,
}

impl DurableNames {
    pub(super) fn new(root: PathBuf, storage: Arc<dyn Storage>, writers: Writers) -> Self {
        let is_swept = AtomicBool::new(false);
        Self {
            root,
            storage,
            durable: Mutex::default(),
            failed: Mutex::default(),
            is_swept,
            writers,
            staged: Arc::default(),
            held: Arc::default(),
        }
    }

    /// Begins a put of `file`.
    pub(super) fn begin(&self, file: &Path) -> Staged {
        let all = Arc::clone(&self.staged);
        *all.lock().entry(file.to_owned()).or_default() += 1;
        Staged {
            file: file.to_owned(),
            all,
        }
    }

    /// Whether everything that earlier starts left is durable.
    pub(super) fn is_swept(&self) -> bool {
        self.is_swept.load(Ordering::Acquire)
    }

    /// Makes the name of the existing `file`, and the names above it, durable.
    pub(super) fn sync(&self, file: &Path) -> io::Result<()> {
        self.sync_name(file)?;
        self.sync_directories_above(file)
    }

    /// As [`DurableNames::sync`], for a file whose own name is synced.
    pub(super) fn sync_above(&self, file: &Path) -> io::Result<()> {
        self.check(file)?;
        self.sync_directories_above(file)
    }

    /// Makes the names of the existing directories above `file` durable, unless this start has done
    /// so before.
    fn sync_directories_above(&self, file: &Path) -> io::Result<()> {
        for directory in self.above(file) {
            if !self.durable.lock().contains(directory) {
                self.sync_name(directory)?;
                let mut durable = self.durable.lock();
                if durable.len() >= DIRECTORIES_MAX {
                    durable.clear();
                }
                durable.insert(directory.to_owned());
            }
        }
        Ok(())
    }

    /// Whether this start has synced the names of all directories above `file`.
    pub(super) fn are_known_above(&self, file: &Path) -> bool {
        let durable = self.durable.lock();
        self.above(file)
            .all(|directory| durable.contains(directory))
    }

    fn above<'file>(&self, file: &'file Path) -> impl Iterator<Item = &'file Path> {
        file.ancestors()
            .skip(1)
            .take_while(|above| *above != self.root)
    }

    fn sync_name(&self, path: &Path) -> io::Result<()> {
        self.sync_entries(self.directory_of(path))
    }

    fn directory_of<'path>(&'path self, path: &'path Path) -> &'path Path {
        path.parent().unwrap_or(&self.root)
    }

    fn sync_entries(&self, directory: &Path) -> io::Result<()> {
        self.check_directory(directory)?;
        match self.storage.sync_directory(directory) {
            // If this user may not list the directory, or the file system cannot sync one, nothing
            // more can be done.
            Err(error) if cannot_be_asked(&error) => {
                tracing::debug!(directory = %directory.display(), %error, "a directory of objects is not synced");
                Ok(())
            }
            Err(error) => {
                self.note_failure(directory, &error);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Notes that a put of `file` failed with `error`. An I/O error with the file in place came
    /// from a sync of its name or of a directory above. Without the file, the error most likely
    /// came from the content, and says nothing about names.
    pub(super) fn note_failed_put(&self, file: &Path, error: &io::Error) {
        if error.raw_os_error() != Some(libc::EIO) || file.symlink_metadata().is_err() {
            return;
        }
        self.note_failure(self.directory_of(file), error);
        for directory in self.above(file) {
            if !self.durable.lock().contains(directory) {
                self.note_failure(self.directory_of(directory), error);
            }
        }
    }

    /// Fails if the name of `file`, although just synced, may be lost.
    pub(super) fn check(&self, file: &Path) -> io::Result<()> {
        self.check_directory(self.directory_of(file))
    }

    fn check_directory(&self, directory: &Path) -> io::Result<()> {
        let failed = self.failed.lock();
        if !failed.contains(directory) && failed.len() < FAILED_MAX {
            return Ok(());
        }
        let what = format!(
            "a sync of {} failed, and the data to be synced may be lost",
            directory.display()
        );
        Err(io::Error::other(what))
    }

    fn note_failure(&self, directory: &Path, error: &io::Error) {
        let mut failed = self.failed.lock();
        if !is_about_asking(error)
            && failed.len() < FAILED_MAX
            && failed.insert(directory.to_owned())
        {
            let directory = directory.display();
            tracing::error!(%directory, %error, "a directory could not be synced: no object in it is acknowledged until a restart");
        }
    }

    /// Syncs every directory, and removes files that puts had staged when a crash stopped them. The
    /// walk visits every file, so no caller waits for it. The next start repeats what it misses. It
    /// removes nothing once `is_open` says that the objects were closed: another instance in this
    /// process may have opened them since.
    pub(super) fn sweep(&self, is_open: &dyn Fn() -> bool) {
        let walk = Walk {
            staged_before: SystemTime::now() - STAGED_AGE_MIN,
            is_open,
        };
        if self.sweep_below(&self.root, &walk) {
            self.is_swept.store(true, Ordering::Release);
        }
    }

    /// Sweeps a directory. Returns whether everything in it is durable.
    fn sweep_below(&self, directory: &Path, walk: &Walk<'_>) -> bool {
        let synced = self.sync_entries(directory);
        if let Err(error) = &synced {
            tracing::warn!(directory = %directory.display(), %error, "a directory of objects could not be synced");
        }
        let Ok(entries) = fs::read_dir(directory) else {
            return false;
        };
        let with_kind =
            |entry: io::Result<DirEntry>| entry.and_then(|entry| Ok((entry.file_type()?, entry)));
        self.sweep_entries(entries.map(with_kind), walk) && synced.is_ok()
    }

    fn sweep_entries(
        &self,
        entries: impl Iterator<Item = io::Result<(FileType, DirEntry)>>,
        walk: &Walk<'_>,
    ) -> bool {
        let mut is_durable = true;
        for entry in entries {
            let (kind, entry) = match entry {
                Ok(entry) => entry,
                // A put had staged the file, and has ended since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    tracing::warn!(%error, "an entry in a directory of objects could not be read");
                    is_durable = false;
                    continue;
                }
            };
            let path = entry.path();
            if kind.is_dir() {
                is_durable &= self.sweep_below(&path, walk);
            } else if let Some(object) = staged_for(&path)
                && !self.held.has(&path)
                && (self.writers == Writers::ThisProcess || is_older(&entry, walk.staged_before))
            {
                self.remove_staged(&path, &object, walk);
            }
        }
        is_durable
    }

    /// Removes the staged file of a put of `object`, unless this process is at work on one.
    fn remove_staged(&self, path: &Path, object: &Path, walk: &Walk<'_>) {
        let staged = self.staged.lock();
        if staged.contains_key(object) || !(walk.is_open)() {
            return;
        }
        let file = path.display();
        match fs::remove_file(path) {
            Ok(()) => tracing::debug!(%file, "removed an unfinished object"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, %file, "an unfinished object could not be removed");
            }
        }
    }
}

/// Whether a sync failed without dropping data: the system could not start it, or found no room.
/// Such a sync is repeated.
fn is_about_asking(error: &io::Error) -> bool {
    let is_out_of = |code| {
        matches!(
            code,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR
        )
    };
    error.kind() == io::ErrorKind::NotFound
        || is_about_room(error)
        || error.raw_os_error().is_some_and(is_out_of)
}

fn is_older(entry: &DirEntry, moment: SystemTime) -> bool {
    entry
        .metadata()
        .and_then(|file| file.modified())
        .is_ok_and(|written| written < moment)
}

/// The file of the object that `path` is a staged file of. The local store writes to `NAME#NUMBER`,
/// which is not a valid object name, and then renames.
fn staged_for(path: &Path) -> Option<PathBuf> {
    let (name, number) = path.file_name()?.to_str()?.rsplit_once('#')?;
    let is_staged = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_staged.then(|| path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::storage::DiskStorage;

    fn durable_names(root: &Path, writers: Writers) -> DurableNames {
        DurableNames::new(root.to_owned(), Arc::new(DiskStorage), writers)
    }

    /// O1, O2: a put may also fail in the sync of its name, or of a directory that it created.
    #[test]
    fn an_object_found_after_a_failed_put_is_not_reported_durable() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let names = durable_names(root, Writers::Others);
        let file = |name: &str| {
            fs::create_dir_all(root.join(name).parent().expect("it has one")).expect("it is made");
            root.join(name)
        };
        let (named, above) = (file("named/object"), file("deep/above/object"));
        fs::write(&named, "any").expect("the disk has room");
        for harmless in [libc::ENOSPC, libc::EMFILE, libc::EACCES] {
            names.note_failed_put(&named, &io::Error::from_raw_os_error(harmless));
        }
        names.sync(&named).expect("it is synced");
        names.note_failed_put(&above, &io::Error::from_raw_os_error(libc::EIO));
        names
            .sync(&file("deep/other/object"))
            .expect("the content could not be written, and the name is not affected");
        let names = durable_names(root, Writers::Others);
        names.sync(&named).expect("it is synced");
        fs::write(&above, "any").expect("the disk has room");
        names.note_failed_put(&above, &io::Error::from_raw_os_error(libc::EIO));
        names
            .sync(&above)
            .expect_err("deep may be lost, and what lies in it");
        names
            .sync(&file("beside/object"))
            .expect_err("what lies beside deep may be lost, too");
        names.sync(&named).expect("it was synced before");
        let names = durable_names(root, Writers::Others);
        names.sync(&named).expect("it is synced");
        names.note_failed_put(&named, &io::Error::from_raw_os_error(libc::EIO));
        names.sync(&named).expect_err("its name may be lost");
        names.sync_above(&above).expect("it lies elsewhere");
    }

    /// O1: the names in a directory that could not be read are not synced.
    #[test]
    fn a_walk_that_could_not_read_an_entry_does_not_report_everything_durable() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("whole"), "any").expect("the disk has room");
        let names = durable_names(directory.path(), Writers::Others);
        let walk = |unseen: Vec<io::Error>| {
            let seen = fs::read_dir(directory.path()).expect("it lists");
            let seen = seen.map(|entry| entry.and_then(|entry| Ok((entry.file_type()?, entry))));
            let walk = Walk {
                staged_before: SystemTime::UNIX_EPOCH,
                is_open: &|| true,
            };
            names.sweep_entries(unseen.into_iter().map(Err).chain(seen), &walk)
        };
        assert!(walk(Vec::new()));
        assert!(
            walk(vec![io::ErrorKind::NotFound.into()]),
            "it has gone meanwhile"
        );
        assert!(!walk(vec![io::Error::from_raw_os_error(libc::EIO)]));
    }

    #[test]
    fn staged_files_go_unless_a_process_may_be_at_work_on_them() {
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
        let kept = ["put#1", "put#2", "whole", "no#number#x", "no#"];
        for name in kept.iter().chain(&["new#1"]) {
            fs::write(folder.join(name), "any").expect("the disk has room");
        }
        let is_there = |name: &str| folder.join(name).exists();
        durable_names(directory.path(), Writers::Others).sweep(&|| true);
        assert!(!is_there("old#1") && is_there("new#1"));
        let names = durable_names(directory.path(), Writers::ThisProcess);
        let put = folder.join("put");
        let (first, second) = (names.begin(&put), names.begin(&put));
        drop(first);
        names.sweep(&|| true);
        assert!(!is_there("new#1"), "no process is at work on it");
        for name in kept {
            assert!(is_there(name), "{name}");
        }
        drop(second);
        names.sweep(&|| false);
        assert!(is_there("put#1"), "another instance may be at work on it");
        names.sweep(&|| true);
        assert!(!is_there("put#1") && !is_there("put#2"));
    }
}
