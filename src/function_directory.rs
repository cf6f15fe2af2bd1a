//! The directory for the unpacked code and the logs of functions.
//!
//! It is the data directory. Where the store is elsewhere and this machine keeps nothing permanent,
//! it is a temporary folder of this process, which is removed at the end. A killed process leaves
//! its folder behind. The next start of any process removes it, because its logs are of no further
//! use.
//!
//! Invariants
//! - A process holds the lock of its folder as long as it lives. The kernel releases the lock at
//!   any kind of end, so a reused process id does no harm.
//! - Only the holder of a folder's lock removes it. After locking, a process checks that the folder
//!   is still there: between creation and locking another process may have removed it and created
//!   another.
//! - The files of other users are neither read nor removed, and no link is followed: every user may
//!   write to the temporary directory.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// The prefix of a temporary folder's name. The process id follows, or another number where that is
/// taken.
const TEMPORARY: &str = "landfast-functions-";
/// Only its owner lists it. Functions, which may run as users of their own, reach their code in it.
const MODE: u32 = 0o711;
/// The permissions that other users must not have.
const OTHERS: u32 = 0o066;
/// Names to try. Processes in containers with the same temporary directory may have taken some.
const NAMES_MAX: u32 = 100;

/// The directory for the unpacked code and the logs of functions.
#[derive(Debug)]
pub(crate) struct FunctionDirectory {
    path: PathBuf,
    /// Held as long as the folder is used; then the folder is removed. `None`: the folder is
    /// permanent.
    lock: Option<File>,
}

impl FunctionDirectory {
    pub(crate) fn lasting(path: PathBuf) -> Self {
        Self { path, lock: None }
    }

    /// A directory that is removed when this is dropped. Those of killed processes are removed now.
    pub(crate) fn temporary() -> anyhow::Result<Self> {
        let parent = env::temp_dir();
        remove_left_behind(&parent);
        Self::temporary_in(&parent)
            .with_context(|| format!("a folder for functions in {}", parent.display()))
    }

    fn temporary_in(parent: &Path) -> io::Result<Self> {
        let process = std::process::id();
        for number in 0..NAMES_MAX {
            let name = match number {
                0 => format!("{TEMPORARY}{process}"),
                number => format!("{TEMPORARY}{process}-{number}"),
            };
            let path = parent.join(name);
            match DirBuilder::new().mode(MODE).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            if let Some(lock) = lock(&path)? {
                return Ok(Self {
                    path,
                    lock: Some(lock),
                });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "all names are taken: remove those of no process",
        ))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FunctionDirectory {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove the folder of functions; the next start removes it");
        }
    }
}

/// Removes the folders of this user's dead processes. A folder that cannot be removed stays and
/// does no harm.
fn remove_left_behind(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(TEMPORARY));
        if is_named
            && is_own(&path)
            && let Ok(Some(_lock)) = lock(&path)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::info!(folder = %path.display(), %error, "cannot remove the folder of a dead process");
        }
    }
}

/// Whether this user created this folder for this purpose.
fn is_own(path: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    let is_ours =
        |found: fs::Metadata| found.is_dir() && found.uid() == user && found.mode() & OTHERS == 0;
    fs::symlink_metadata(path).is_ok_and(is_ours)
}

/// The lock of a folder. `None`: another process holds it, or the folder has been replaced.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW;
    let folder = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if folder.try_lock().is_err() {
        return Ok(None);
    }
    let locked = folder.metadata()?;
    let is_there = fs::symlink_metadata(path)
        .is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Leaves the folder of a killed process in `parent`.
    fn left_behind(parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(format!("{TEMPORARY}{name}"));
        DirBuilder::new().mode(MODE).create(&path).expect("made");
        fs::create_dir(path.join("logs")).expect("made");
        fs::write(path.join("logs/f.log"), "printed").expect("written");
        path
    }

    #[test]
    fn a_temporary_folder_goes_with_its_process() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = FunctionDirectory::temporary_in(parent.path()).expect("made");
        let path = directory.path().to_owned();
        fs::write(path.join("code"), "").expect("written");
        assert_eq!(
            fs::metadata(&path).expect("there").mode() & OTHERS,
            0,
            "others do not list it"
        );
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_process_has_left_goes_and_what_a_living_one_has_stays() {
        let parent = tempfile::tempdir().expect("a directory");
        let living = FunctionDirectory::temporary_in(parent.path()).expect("made");
        let other = FunctionDirectory::temporary_in(parent.path()).expect("another name is free");
        let left = left_behind(parent.path(), "1");
        remove_left_behind(parent.path());
        assert!(!left.exists() && living.path().exists() && other.path().exists());
        assert_ne!(living.path(), other.path());
    }

    #[test]
    fn a_number_that_is_used_again_finds_nothing_of_the_earlier_process() {
        let parent = tempfile::tempdir().expect("a directory");
        left_behind(parent.path(), &std::process::id().to_string());
        remove_left_behind(parent.path());
        let directory = FunctionDirectory::temporary_in(parent.path()).expect("made");
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
    }

    #[test]
    fn what_others_have_put_there_stays() {
        let parent = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        fs::write(elsewhere.path().join("kept"), "").expect("written");
        symlink(
            elsewhere.path(),
            parent.path().join(format!("{TEMPORARY}2")),
        )
        .expect("made");
        let open_to_all = parent.path().join(format!("{TEMPORARY}3"));
        DirBuilder::new()
            .mode(0o755)
            .create(&open_to_all)
            .expect("made");
        let of_another_name = parent.path().join("landfast");
        DirBuilder::new()
            .mode(MODE)
            .create(&of_another_name)
            .expect("made");
        remove_left_behind(parent.path());
        assert!(
            elsewhere.path().join("kept").exists()
                && open_to_all.exists()
                && of_another_name.exists()
        );
    }

    #[test]
    fn a_folder_in_the_place_of_one_that_was_locked_is_not_taken_for_it() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = left_behind(parent.path(), "4");
        let held = lock(&path).expect("opened").expect("free");
        assert!(lock(&path).expect("opened").is_none(), "another has it");
        fs::rename(&path, parent.path().join("moved")).expect("moved");
        assert!(lock(&path).expect("no error").is_none(), "nothing is there");
        drop(held);
    }
}
