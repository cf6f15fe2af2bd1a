//! Holds: while a backup reads the objects, those that are deleted stay readable for it.
//!
//! A deletion then first links the object's file to a held name beside it, `NAME#NUMBER`. That is
//! no valid object name, so every caller finds the object deleted at once. The end of the hold
//! removes the held names. After a crash, the sweep of the next start removes them, because they
//! look like staged files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::ObjectDirectory;
use crate::store::now_ms;

/// The hold of a directory of objects. Its number is far above those of staged files, and differs
/// from those of earlier starts; zero: nothing is held.
#[derive(Debug, Default)]
pub(super) struct Held(AtomicU64);

impl Held {
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Keeps the content of `file`, which is about to be deleted. Of two objects of one name, the
    /// earlier one is kept: it was there when the hold began.
    pub(super) fn keep(&self, file: &Path) -> io::Result<()> {
        let number = self.0.load(Ordering::SeqCst);
        if number == 0 {
            return Ok(());
        }
        match fs::hard_link(file, held_name(file, number)) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) =>
            {
                Ok(())
            }
            linked => linked,
        }
    }

    /// Whether `path` has a held name of this hold.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.is_on() && object_of(path, self.0.load(Ordering::SeqCst)).is_some()
    }
}

fn held_name(file: &Path, number: u64) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!("#{number}"));
    name.into()
}

/// The file of the object whose held name is `path`.
fn object_of(path: &Path, number: u64) -> Option<PathBuf> {
    let (name, suffix) = path.to_str()?.rsplit_once('#')?;
    (suffix == number.to_string()).then(|| name.into())
}

/// A hold of the objects of a directory. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    root: PathBuf,
    held: Arc<Held>,
    number: u64,
}

impl Hold {
    /// Every object that is deleted from now on stays readable here; none if another hold is on.
    pub(crate) fn begin(objects: &ObjectDirectory) -> Option<Self> {
        let (held, number) = (Arc::clone(&objects.names.held), now_ms().max(1));
        let begun = held
            .0
            .compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        begun.is_ok().then(|| Self {
            root: objects.root.path().to_owned(),
            held,
            number,
        })
    }

    /// Calls `read` with the name and the path of each object that was there when the hold began,
    /// and perhaps of later ones. Objects that are deleted during the walk come at its end. One
    /// that is deleted and created again may come twice; the last one counts.
    pub(crate) fn objects<E>(
        &self,
        read: &mut dyn FnMut(&str, &Path) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<io::Error>,
    {
        let root = self.root.clone();
        let name_of = move |file: &Path| {
            let name = file.strip_prefix(&root).ok()?.to_str()?;
            Some(name.to_owned())
        };
        walk(&self.root, &mut |file| match name_of(file) {
            Some(name) if !is_staged(&name) => read(&name, file),
            _ => Ok(()),
        })?;
        // A walk may miss a name that is linked meanwhile, but held names stay.
        walk(&self.root, &mut |file| {
            let object = object_of(file, self.number);
            match object.as_deref().and_then(&name_of) {
                Some(name) => read(&name, file),
                None => Ok(()),
            }
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.0.store(0, Ordering::SeqCst);
        let (root, number) = (self.root.clone(), self.number);
        let release = move || {
            let released = walk(&root, &mut |file| match object_of(file, number) {
                Some(_) => fs::remove_file(file),
                None => Ok(()),
            });
            if let Err(error) = released {
                tracing::warn!(%error, "deleted objects that a backup held are removed by the next start");
            }
        };
        // The next start removes what a missing thread leaves.
        let _ = thread::Builder::new().name("release".into()).spawn(release);
    }
}

/// Whether the name is that of a staged or held file.
fn is_staged(name: &str) -> bool {
    let number = name.rsplit_once('#').map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Calls `visit` with each file below `directory`.
pub(crate) fn walk<E>(
    directory: &Path,
    visit: &mut dyn FnMut(&Path) -> Result<(), E>,
) -> Result<(), E>
where
    E: From<io::Error>,
{
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = match entry.file_type() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            kind => kind?,
        };
        if kind.is_dir() {
            walk(&entry.path(), visit)?;
        } else if kind.is_file() {
            visit(&entry.path())?;
        }
    }
    Ok(())
}
