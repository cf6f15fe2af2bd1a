//! Where functions have their unpacked code and their logs.
//!
//! That is the data directory; or, where the store is elsewhere and this machine keeps nothing that lasts, a folder of this
//! process among the temporary files, which goes with it. A process that was killed leaves its own, and the next start of any
//! removes it, as what was printed there is of nobody's use any more.
//!
//! Invariants
//! - A process holds the lock of its folder as long as it lives. The kernel gives it back at any kind of end, so that a number
//!   of a process that is used again says nothing wrong.
//! - A folder is removed by who holds its lock, and who has locked one looks whether it is still there: between a folder's
//!   making and its locking another may have removed it, and made another in its place.
//! - Nothing of other users is looked into or removed, and no link is followed: everybody may write among temporary files.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// What the name of a temporary folder begins with; the rest is the number of the process, and where that is taken, another.
const TEMPORARY: &str = "landfast-functions-";
/// Only its owner lists it; functions, which may have users of their own, reach their code in it.
const MODE: u32 = 0o711;
/// What others may not do.
const OTHERS: u32 = 0o066;
/// Names that are tried. Those of processes in containers with the same temporary files may be taken.
const NAMES_MAX: u32 = 100;

/// Where functions have their unpacked code and their logs.
#[derive(Debug)]
pub(crate) struct FunctionDirectory {
    path: PathBuf,
    /// Held as long as the folder is used, and then the folder goes; none: it lasts.
    lock: Option<File>,
}

impl FunctionDirectory {
    /// One that lasts.
    pub(crate) fn lasting(path: PathBuf) -> Self {
        Self { path, lock: None }
    }

    /// One that is gone when this is dropped; what killed processes have left is removed.
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
            tracing::warn!(folder = %self.path.display(), %error, "a folder is left behind; the next start removes it");
        }
    }
}

/// Removes the folders of processes of this user that are gone. What cannot be removed stays: it harms nobody.
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
            tracing::info!(folder = %path.display(), %error, "what a process has left is not removed");
        }
    }
}

/// Whether this is a folder that this user has made for this.
fn is_own(path: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    let is_ours =
        |found: fs::Metadata| found.is_dir() && found.uid() == user && found.mode() & OTHERS == 0;
    fs::symlink_metadata(path).is_ok_and(is_ours)
}

/// The lock of a folder; none: another process has it, or the folder is another by now.
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

    /// What a process that was killed leaves in `parent`.
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
