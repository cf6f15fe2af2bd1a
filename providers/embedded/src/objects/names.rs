//! Which names of objects, and of the directories that they lie in, are known to be durable.

use std::{
    collections::BTreeSet,
    fs::{self, DirEntry},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

use crate::storage::{Storage, cannot_be_asked};

/// Of so many directories it is remembered that their names are durable; those of more are synced again.
const DIRECTORIES_MAX: usize = 1024;

/// The names in and below a directory.
#[derive(Debug)]
pub(super) struct Names {
    /// Its own name is durable.
    root: PathBuf,
    storage: Arc<dyn Storage>,
    /// Directories whose names this start has synced when they were there.
    durable: Mutex<BTreeSet<PathBuf>>,
    /// All that earlier starts left is durable.
    is_swept: AtomicBool,
}

impl Names {
    pub(super) fn new(root: PathBuf, storage: Arc<dyn Storage>) -> Self {
        Self { root, storage, durable: Mutex::default(), is_swept: AtomicBool::new(false) }
    }

    /// Whether all that earlier starts left is durable.
    pub(super) fn is_swept(&self) -> bool {
        self.is_swept.load(Ordering::Acquire)
    }

    /// Makes the name of `file`, which is there, durable, and those above it.
    pub(super) fn sync(&self, file: &Path) -> io::Result<()> {
        self.sync_name(file)?;
        self.sync_directories_above(file)
    }

    /// Makes the names of the directories above `file` durable, which are there, unless this start has done so before.
    pub(super) fn sync_directories_above(&self, file: &Path) -> io::Result<()> {
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
        self.above(file).all(|directory| durable.contains(directory))
    }

    fn above<'file>(&self, file: &'file Path) -> impl Iterator<Item = &'file Path> {
        file.ancestors().skip(1).take_while(|above| *above != self.root)
    }

    fn sync_name(&self, path: &Path) -> io::Result<()> {
        self.sync_entries(path.parent().unwrap_or(&self.root))
    }

    fn sync_entries(&self, directory: &Path) -> io::Result<()> {
        match self.storage.sync_directory(directory) {
            // Who may not list it, or whose file system knows no such sync, cannot do more.
            Err(error) if cannot_be_asked(&error) => {
                tracing::debug!(directory = %directory.display(), %error, "a directory of objects is not synced");
                Ok(())
            }
            synced => synced,
        }
    }

    /// Syncs every directory, and removes what puts had staged before `opened`, when a death stopped them. It looks at every
    /// file, so nobody waits for it; what it misses it does at the next start.
    pub(super) fn sweep(&self, opened: Option<SystemTime>) {
        if self.sweep_below(&self.root, opened) {
            self.is_swept.store(true, Ordering::Release);
        }
    }

    /// Whether all of it is durable.
    fn sweep_below(&self, directory: &Path, opened: Option<SystemTime>) -> bool {
        let mut is_durable = match self.sync_entries(directory) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "a directory of objects could not be synced");
                false
            }
        };
        let Ok(entries) = fs::read_dir(directory) else { return false };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                is_durable &= self.sweep_below(&path, opened);
            } else if is_staged(&path) && opened.is_some_and(|opened| is_older(&entry, opened)) {
                let file = path.display();
                match fs::remove_file(&path) {
                    Ok(()) => tracing::debug!(%file, "removed an object that was never finished"),
                    Err(error) => tracing::warn!(%error, %file, "an object that was never finished stays"),
                }
            }
        }
        is_durable
    }
}

fn is_older(entry: &DirEntry, opened: SystemTime) -> bool {
    entry.metadata().and_then(|file| file.modified()).is_ok_and(|written| written < opened)
}

/// The local store writes to `NAME#NUMBER`, which no object can be called, and renames.
fn is_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::{
        objects::{TRIAL, moment_of_files},
        storage::DiskStorage,
    };

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
        Names::new(directory.path().to_owned(), Arc::new(DiskStorage)).sweep(Some(opened));
        assert!(!folder.join("old#1").exists());
        for name in ["new#1", "whole", "no#number#x", "no#"] {
            assert!(folder.join(name).exists(), "{name}");
        }
    }
}
