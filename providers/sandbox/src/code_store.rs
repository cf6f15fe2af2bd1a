//! The code store port: unpacked archives, each in a folder of its name, whole or not at all.
//!
//! An archive is [unpacked](unpack) beside its folder and moved there. An archive that is removed
//! while instances use it [stays](Archives::hold) until they have ended, because they read code as
//! they need it.
//!
//! Where functions can write the files of the server's user, an unpacked archive may have been
//! changed. Comparing it with its content would mean unpacking that. It is therefore unpacked again
//! and replaced whenever it is installed and no instance uses it: at a start, before anything runs.
//!
//! Invariants
//! - An archive that cannot be unpacked again, as on a full disk, stays as it is: the server must
//!   start.
//! - A folder that cannot be removed, because a function made it so, stays under a reserved name
//!   and blocks nothing.

mod unpack;

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    io::Read as _,
    mem,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use bytes::Bytes;
use nix::errno::Errno;
use parking_lot::Mutex;
use ports::{CodeStore, Error, ErrorKind, Result, runtime::Function};

pub use unpack::unpack;

use crate::handler_files::handler_files;

/// The prefix of an incomplete folder's name.
const UNFINISHED: &str = ".unfinished-";

/// The prefix of the name of a folder that is being removed, which is incomplete too.
const REMOVED: &str = ".unfinished-removed-";

/// Whether unpacked code can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    StaysAsItIs,
    MayChange,
}

#[derive(Debug, Clone)]
pub(crate) struct Archives {
    directory: PathBuf,
    code: Code,
    /// Locked while a folder gets or loses its name.
    uses: Arc<Mutex<Uses>>,
}

#[derive(Debug, Default)]
struct Uses {
    held: HashMap<String, usize>,
    /// The archives to remove once no holder is left.
    unwanted: HashSet<String>,
    last: u64,
}

/// Keeps an archive until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    archives: Archives,
    name: String,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let removed = {
            let mut uses = self.archives.uses.lock();
            let Some(holders) = uses.held.get_mut(&self.name) else {
                return;
            };
            *holders -= 1;
            if *holders > 0 {
                return;
            }
            uses.held.remove(&self.name);
            uses.unwanted
                .remove(&self.name)
                .then(|| self.archives.take_away(&mut uses, &self.name))
        };
        let Some(removed) = removed else { return };
        let name = mem::take(&mut self.name);
        // This may take long, and must not block the caller.
        thread::spawn(move || match removed {
            Ok(removed) => remove(removed.as_deref()),
            Err(error) => {
                tracing::warn!(%error, archive = name, "an old archive could not be removed; the next start tries again");
            }
        });
    }
}

impl Archives {
    /// The archives in `directory`. Incomplete folders of an earlier start are removed.
    pub(crate) fn open(directory: PathBuf, code: Code) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                remove(Some(&entry.path()));
            }
        }
        Ok(Self {
            directory,
            code,
            uses: Arc::default(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Moves an unpacked folder to the place of the archive `name`, unless an instance has begun to
    /// use that.
    fn put(&self, unpacked: &Path, name: &str) -> io::Result<()> {
        let unwanted = {
            let mut uses = self.uses.lock();
            if uses.held.contains_key(name) && self.path(name).is_dir() {
                Some(unpacked.to_owned())
            } else {
                let before = self.take_away(&mut uses, name)?;
                if let Err(error) = fs::rename(unpacked, self.path(name)) {
                    before.map_or(Ok(()), |before| fs::rename(before, self.path(name)))?;
                    return Err(error);
                }
                before
            }
        };
        remove(unwanted.as_deref());
        Ok(())
    }

    /// Errors: why the file at `path` in the archive `name` cannot be executed.
    pub(crate) async fn check_executable(&self, name: &str, path: &str) -> Result<(), String> {
        let file = self.path(name).join(path);
        match blocking(move || fs::metadata(file)).await {
            Ok(found) if !found.is_file() => Err(format!("{path:?} is not a file")),
            Ok(found) if found.permissions().mode() & 0o111 == 0 => Err(format!(
                "{path:?} is not executable: chmod +x it, and deploy again"
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("there is no file {path:?} to execute"))
            }
            Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => Err(format!(
                "{path:?} is a symbolic link that leads to no file: it comes back to itself"
            )),
            // A disk error says nothing about the file.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Errors: the code folder of `function` is empty, or no file in it may hold the handler.
    pub(crate) async fn check_handler(&self, function: &Function) -> Result<(), String> {
        let code = self.path(&function.archive).join(&function.folder);
        let is_empty = |code: &Path| match code.read_dir() {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let expected = handler_files(function);
        let folder = function.folder.clone();
        let checked = blocking(move || {
            if is_empty(&code) {
                return Ok(Err(format!("the code folder {folder:?} has no files")));
            }
            let is_there = expected.may_be_elsewhere()
                || !expected.leads_outside() && !expected.found_in(&code).is_empty();
            Ok(if is_there {
                Ok(())
            } else {
                Err(expected.to_string())
            })
        });
        // A disk error says nothing about the code.
        checked.await.unwrap_or(Ok(()))
    }

    /// Keeps the archive `name` for as long as the returned value lives, even if it is removed
    /// meanwhile.
    pub(crate) fn hold(&self, name: &str) -> Hold {
        *self.uses.lock().held.entry(name.to_owned()).or_default() += 1;
        Hold {
            archives: self.clone(),
            name: name.to_owned(),
        }
    }

    /// Removes an archive, or leaves that to its last holder.
    fn remove_unheld(&self, name: String) -> io::Result<()> {
        let removed = {
            let mut uses = self.uses.lock();
            if uses.held.contains_key(&name) {
                uses.unwanted.insert(name);
                return Ok(());
            }
            self.take_away(&mut uses, &name)?
        };
        remove(removed.as_deref());
        Ok(())
    }

    /// Gives a folder a reserved name, for its removal; none: its last holder has already done so.
    fn take_away(&self, uses: &mut Uses, name: &str) -> io::Result<Option<PathBuf>> {
        let removed = self.unused(uses, REMOVED, name);
        match fs::rename(self.path(name), &removed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            renamed => renamed.map(|()| Some(removed)),
        }
    }

    /// An unused path beside the archive `name`. The archive may be removed and installed again
    /// several times before its first folder is gone. Folders that could not be removed at a start
    /// have such names too.
    fn unused(&self, uses: &mut Uses, prefix: &str, name: &str) -> PathBuf {
        loop {
            uses.last += 1;
            let path = self.directory.join(format!("{prefix}{}-{name}", uses.last));
            if path.symlink_metadata().is_err() {
                return path;
            }
        }
    }
}

#[async_trait]
impl CodeStore for Archives {
    /// Unpacks `content` as `name`, if it is not there yet as it was. Where that fails what was
    /// there stays.
    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        let unfinished = {
            let mut uses = self.uses.lock();
            uses.unwanted.remove(name);
            if self.path(name).is_dir()
                && (self.code == Code::StaysAsItIs || uses.held.contains_key(name))
            {
                return Ok(());
            }
            self.unused(&mut uses, UNFINISHED, name)
        };
        let (archives, archive) = (self.clone(), name.to_owned());
        blocking(move || {
            fs::create_dir(&unfinished)?;
            let unpacked = unpack(&content, &unfinished).and_then(|()| archives.put(&unfinished, &archive));
            unpacked.inspect_err(|_| remove(Some(&unfinished)))
        })
        .await
        .or_else(|error| {
            if !self.path(name).is_dir() {
                return Err(error);
            }
            tracing::warn!(%error, archive = name, "an archive could not be unpacked again; functions may have changed its code");
            Ok(())
        })
        .map_err(|error| failed(format!("unpack the archive {name}"), error))
    }

    async fn file(&self, name: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        let attempted = format!("read {path:?} of the archive {name}");
        let path = self.path(name).join(path);
        let read = blocking(move || {
            let file = match fs::File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut bytes = Vec::new();
            file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
            Ok(Some(Bytes::from(bytes)))
        });
        let read = read
            .await
            .map_err(|error| failed(attempted.clone(), error))?;
        if read.as_ref().is_some_and(|bytes| bytes.len() > bytes_max) {
            return Err(Error::invalid(format!(
                "{attempted}: it is longer than {bytes_max} bytes"
            )));
        }
        Ok(read)
    }

    async fn keep_archives(&self, kept: &[String]) -> Result<()> {
        let (archives, kept) = (self.clone(), kept.to_owned());
        let removed = blocking(move || {
            for entry in fs::read_dir(&archives.directory)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                if !kept.contains(&name) && !name.starts_with(UNFINISHED) {
                    archives.remove_unheld(name)?;
                }
            }
            Ok(())
        });
        removed
            .await
            .map_err(|error| failed("remove old archives".to_owned(), error))
    }
}

/// Removes a folder with a reserved name. One that cannot be removed does no harm.
fn remove(folder: Option<&Path>) {
    let Some(folder) = folder else { return };
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(%error, ?folder, "an old archive could not be removed; each start tries again");
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

fn failed(attempted: String, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            ErrorKind::Invalid
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoRoom,
        _ => ErrorKind::Unavailable {
            retry_after_ms: None,
        },
    };
    Error::new(kind, attempted).caused_by(error)
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, EntryType, Header};

    use super::*;

    /// An archive of one entry with exactly this path and link.
    fn archive(kind: EntryType, path: &str, link: Option<&str>, content: &[u8]) -> Bytes {
        archive_of(0o755, kind, path, link, content)
    }

    fn archive_of(
        mode: u32,
        kind: EntryType,
        path: &str,
        link: Option<&str>,
        content: &[u8],
    ) -> Bytes {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(link) = link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        builder.append(&header, content).expect("appended");
        Bytes::from(
            builder
                .into_inner()
                .and_then(GzEncoder::finish)
                .expect("finished"),
        )
    }

    #[tokio::test]
    async fn an_archive_is_unpacked_once_and_goes_when_it_is_not_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into(), Code::StaysAsItIs).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        archives
            .install("one", content.clone())
            .await
            .expect("installed");
        archives
            .install("one", Bytes::new())
            .await
            .expect("it is there");
        assert_eq!(
            archives.file("one", "code/app.py", 10).await.expect("read"),
            Some(Bytes::from("pass"))
        );
        assert_eq!(
            archives
                .file("one", "code/none.py", 10)
                .await
                .expect("read"),
            None
        );
        assert!(
            archives.file("one", "code/app.py", 3).await.is_err(),
            "too long"
        );
        archives
            .keep_archives(&["other".to_owned()])
            .await
            .expect("removed");
        assert!(!archives.path("one").exists());
    }

    /// The changed code ran until the next deployment.
    #[tokio::test]
    async fn changed_code_is_restored_by_an_install_while_no_instance_uses_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        for (code, found) in [(Code::MayChange, "pass"), (Code::StaysAsItIs, "evil")] {
            let archives = Archives::open(directory.path().into(), code).expect("opened");
            let read = async || {
                archives
                    .file("one", "code/app.py", 10)
                    .await
                    .expect("read")
                    .expect("it is there")
            };
            archives
                .install("one", content.clone())
                .await
                .expect("installed");
            fs::write(archives.path("one").join("code/app.py"), "evil").expect("changed");
            let hold = archives.hold("one");
            archives
                .install("one", content.clone())
                .await
                .expect("it is there");
            assert_eq!(
                read().await,
                "evil",
                "an instance reads its code as it needs it"
            );
            drop(hold);
            archives
                .install("one", content.clone())
                .await
                .expect("installed");
            assert_eq!(read().await, found, "{code:?}");
        }
        assert_eq!(
            fs::read_dir(directory.path()).expect("it is there").count(),
            1,
            "nothing else is left"
        );
    }

    /// A server with deployed functions did not start on a full disk. Here, content that is no
    /// archive stands for that.
    #[tokio::test]
    async fn code_that_cannot_be_unpacked_again_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into(), Code::MayChange).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        archives.install("one", content).await.expect("installed");
        archives
            .install("one", Bytes::new())
            .await
            .expect("it is there");
        assert!(archives.path("one").join("code/app.py").exists());
        assert!(
            archives.put(&directory.path().join("gone"), "one").is_err(),
            "what is not there is not put"
        );
        assert!(
            archives.path("one").join("code/app.py").exists(),
            "it is put back"
        );
        archives
            .install("two", Bytes::new())
            .await
            .expect_err("it was never there");
        assert_eq!(
            fs::read_dir(directory.path()).expect("it is there").count(),
            1,
            "nothing else is left"
        );
    }

    /// A function can make folders that no user may write to. They do not stop root, so files in
    /// place of folders stand for them here.
    #[tokio::test]
    async fn a_folder_that_cannot_be_removed_blocks_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        for prefix in [UNFINISHED, REMOVED] {
            for number in 1..5 {
                fs::write(directory.path().join(format!("{prefix}{number}-one")), "")
                    .expect("written");
            }
        }
        let archives = Archives::open(directory.path().into(), Code::MayChange).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        for _ in 0..2 {
            archives
                .install("one", content.clone())
                .await
                .expect("installed");
        }
        assert_eq!(
            archives.file("one", "code/app.py", 10).await.expect("read"),
            Some(Bytes::from("pass"))
        );
        fs::write(archives.path("two"), "").expect("written");
        archives
            .keep_archives(&["one".to_owned()])
            .await
            .expect("taken away");
        assert!(!archives.path("two").exists());
    }

    #[tokio::test]
    async fn a_held_archive_stays_and_can_be_installed_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into(), Code::StaysAsItIs).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        archives
            .install("one", content.clone())
            .await
            .expect("installed");
        let (first, second) = (archives.hold("one"), archives.hold("one"));
        archives.keep_archives(&[]).await.expect("removed");
        drop(first);
        assert!(archives.path("one").exists(), "one holds it still");
        archives
            .install("one", Bytes::new())
            .await
            .expect("it is there");
        drop(second);
        assert!(archives.path("one").exists(), "it is wanted again");
        let third = archives.hold("one");
        archives.keep_archives(&[]).await.expect("removed");
        drop(third);
        assert!(!archives.path("one").exists());
        archives
            .install("one", content)
            .await
            .expect("installed anew");
        assert!(archives.path("one").exists());
    }

    #[tokio::test]
    async fn an_archive_that_its_last_holder_removed_meanwhile_is_gone() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into(), Code::StaysAsItIs).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        archives.install("one", content).await.expect("installed");
        let hold = archives.hold("one");
        archives
            .remove_unheld("one".to_owned())
            .expect("its holder does that");
        drop(hold);
        archives
            .remove_unheld("one".to_owned())
            .expect("it was seen before that");
    }

    #[tokio::test]
    async fn an_archive_can_go_again_before_its_first_folder_is_gone() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into(), Code::StaysAsItIs).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        let mut taken = Vec::new();
        for _ in 0..2 {
            archives
                .install("one", content.clone())
                .await
                .expect("installed");
            taken.push(
                archives
                    .take_away(&mut archives.uses.lock(), "one")
                    .expect("taken away"),
            );
        }
        for folder in taken {
            assert!(
                folder.expect("it was there").join("code/app.py").exists(),
                "each lies by itself"
            );
        }
    }

    #[tokio::test]
    async fn an_entry_that_points_or_lies_outside_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives =
            Archives::open(directory.path().join("archives"), Code::StaysAsItIs).expect("opened");
        let cases = [
            archive(EntryType::Regular, "../outside", None, b"x"),
            archive(EntryType::Regular, "/tmp/outside", None, b"x"),
            archive(EntryType::Symlink, "link", Some("/etc/passwd"), b""),
            archive(EntryType::Symlink, "a/link", Some("../../x"), b""),
            archive(EntryType::Link, "hard", Some("/etc/passwd"), b""),
            archive(EntryType::Char, "device", None, b""),
            Bytes::from_static(b"no archive at all"),
        ];
        for (number, content) in cases.into_iter().enumerate() {
            let refused = archives.install("bad", content).await.expect_err("hostile");
            assert_eq!(
                refused.kind(),
                ErrorKind::Invalid,
                "case {number}: {refused}"
            );
        }
        assert_eq!(fs::read_dir(archives.directory).expect("listed").count(), 0);
        assert!(!directory.path().join("outside").exists());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_executed_is_named_with_a_hint() {
        let home = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(home.path().to_owned(), Code::StaysAsItIs).expect("opened");
        for (name, mode) in [("good", 0o755), ("plain", 0o644)] {
            let content = archive_of(mode, EntryType::Regular, "code/run", None, b"#!/bin/sh");
            archives.install(name, content).await.expect("installed");
        }
        let circle = archive(EntryType::Symlink, "code/run", Some("run"), b"");
        archives.install("circle", circle).await.expect("installed");
        for (name, path, said) in [
            ("good", "code/run", None),
            (
                "plain",
                "code/run",
                Some("\"code/run\" is not executable: chmod +x it"),
            ),
            ("good", "code/rum", Some("there is no file \"code/rum\"")),
            ("good", "code", Some("\"code\" is not a file")),
            (
                "circle",
                "code/run",
                Some("\"code/run\" is a symbolic link that leads to no file"),
            ),
        ] {
            let checked = archives.check_executable(name, path).await;
            match said {
                None => assert_eq!(checked, Ok(()), "{name} {path}"),
                Some(said) => assert!(checked.expect_err(path).contains(said), "{name} {path}"),
            }
        }
    }
}
