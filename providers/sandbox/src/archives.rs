//! Archives with code, unpacked: each in a folder of its name, made whole or not at all.
//!
//! An archive is unpacked beside its place and moved there. What it holds is hostile: nothing of it may lie or point outside
//! of its folder, and its size and its number of files are bounded before anything is written for them.

use std::{
    fs, io,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use ports::{Error, ErrorKind, Result};
use tar::{Archive, EntryType};

/// What an archive may hold, unpacked.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Files and folders in an archive.
const ENTRIES_MAX: usize = 100_000;
/// What begins the name of a folder that is not whole.
const UNFINISHED: &str = ".unfinished-";

/// Where archives are unpacked.
#[derive(Debug, Clone)]
pub(crate) struct Archives {
    directory: PathBuf,
}

impl Archives {
    /// Archives in `directory`. What an earlier start left unfinished goes.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self { directory })
    }

    /// Where the archive `name` lies.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Unpacks `content` as `name`, if it is not there yet.
    pub(crate) async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        let path = self.path(name);
        if path.is_dir() {
            return Ok(());
        }
        let unfinished = self.directory.join(format!("{UNFINISHED}{name}"));
        blocking(move || {
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            fs::create_dir(&unfinished)?;
            let unpacked = unpack(&content, &unfinished).and_then(|()| fs::rename(&unfinished, &path));
            unpacked.inspect_err(|_| drop(fs::remove_dir_all(&unfinished)))
        })
        .await
        .map_err(|error| failed(format!("unpack the archive {name}"), error))
    }

    /// The file at `path` in the archive `name`.
    pub(crate) async fn file(&self, name: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
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
        let read = read.await.map_err(|error| failed(attempted.clone(), error))?;
        if read.as_ref().is_some_and(|bytes| bytes.len() > bytes_max) {
            return Err(Error::invalid(format!("{attempted}: it is longer than {bytes_max} bytes")));
        }
        Ok(read)
    }

    /// Removes all archives but `kept`.
    pub(crate) async fn keep(&self, kept: &[String]) -> Result<()> {
        let (directory, kept) = (self.directory.clone(), kept.to_owned());
        let removed = blocking(move || {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let name = entry.file_name();
                if !kept.iter().any(|kept| name.as_os_str() == kept.as_str()) {
                    fs::remove_dir_all(entry.path())?;
                }
            }
            Ok(())
        });
        removed.await.map_err(|error| failed("remove old archives".to_owned(), error))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn failed(attempted: String, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            ErrorKind::Invalid
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoRoom,
        _ => ErrorKind::Unavailable { retry_after_ms: None },
    };
    Error::new(kind, attempted).caused_by(error)
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Unpacks a tar compressed by gzip into `directory`, which is empty.
fn unpack(content: &[u8], directory: &Path) -> io::Result<()> {
    // What is read is bounded whatever its headers say.
    let mut archive =
        Archive::new(GzDecoder::new(content).take(UNPACKED_BYTES_MAX + ENTRIES_MAX as u64 * 1024));
    let mut left = UNPACKED_BYTES_MAX;
    for (number, entry) in archive.entries()?.enumerate() {
        let mut entry = entry.map_err(|error| refused(format!("it is no tar.gz: {error}")))?;
        if number >= ENTRIES_MAX {
            return Err(refused(format!("it has more than {ENTRIES_MAX} files")));
        }
        left = left
            .checked_sub(entry.size())
            .ok_or_else(|| refused(format!("it holds more than {UNPACKED_BYTES_MAX} bytes")))?;
        let path = entry.path()?.into_owned();
        if !is_inside(&path) {
            return Err(refused(format!("{} lies outside of it", path.display())));
        }
        let target = directory.join(&path);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&target)?,
            EntryType::Regular | EntryType::Continuous => {
                make_parent(directory, &target)?;
                let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&target)?;
                io::copy(&mut entry, &mut file)?;
                set_mode(&target, entry.header().mode()?)?;
            }
            EntryType::Symlink => {
                let to =
                    entry.link_name()?.ok_or_else(|| refused("a link to nothing".to_owned()))?.into_owned();
                let stays = path.parent().is_some_and(|parent| is_inside(&normalised(&parent.join(&to))));
                if to.is_absolute() || !stays {
                    return Err(refused(format!("{} points outside of it", path.display())));
                }
                make_parent(directory, &target)?;
                std::os::unix::fs::symlink(to, &target)?;
            }
            EntryType::XGlobalHeader => {}
            other => {
                return Err(refused(format!(
                    "{} is neither file, folder nor symbolic link ({other:?})",
                    path.display()
                )));
            }
        }
    }
    Ok(())
}

/// Makes the folders above `target`. Through a link nothing is written.
fn make_parent(directory: &Path, target: &Path) -> io::Result<()> {
    let Some(parent) = target.parent() else { return Ok(()) };
    fs::create_dir_all(parent)?;
    if !parent.canonicalize()?.starts_with(directory.canonicalize()?) {
        return Err(refused(format!("{} lies behind a link", target.display())));
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    // Readable by whoever the function runs as; executable if it was.
    let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The path without what goes back again; one that goes back too far keeps that.
fn normalised(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        let goes_back = part == Component::ParentDir
            && matches!(parts.components().next_back(), Some(Component::Normal(_)));
        if goes_back {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    /// An archive of one entry whose path and link are as given, whatever they are.
    fn archive(kind: EntryType, path: &str, link: Option<&str>, content: &[u8]) -> Bytes {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(link) = link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        builder.append(&header, content).expect("appended");
        Bytes::from(builder.into_inner().and_then(GzEncoder::finish).expect("finished"))
    }

    #[tokio::test]
    async fn an_archive_is_unpacked_once_and_goes_when_nobody_names_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().into()).expect("opened");
        let content = archive(EntryType::Regular, "code/app.py", None, b"pass");
        archives.install("one", content.clone()).await.expect("installed");
        archives.install("one", Bytes::new()).await.expect("it is there");
        assert_eq!(archives.file("one", "code/app.py", 10).await.expect("read"), Some(Bytes::from("pass")));
        assert_eq!(archives.file("one", "code/none.py", 10).await.expect("read"), None);
        assert!(archives.file("one", "code/app.py", 3).await.is_err(), "too long");
        archives.keep(&["other".to_owned()]).await.expect("removed");
        assert!(!archives.path("one").exists());
    }

    #[tokio::test]
    async fn what_points_or_lies_outside_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let archives = Archives::open(directory.path().join("archives")).expect("opened");
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
            assert_eq!(refused.kind(), ErrorKind::Invalid, "case {number}: {refused}");
        }
        assert_eq!(fs::read_dir(archives.directory).expect("listed").count(), 0);
        assert!(!directory.path().join("outside").exists());
    }

    #[tokio::test]
    async fn an_archive_that_unpacks_without_end_is_cut_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut header = Header::new_gnu();
        header.set_path("zeros").expect("short");
        header.set_size(UNPACKED_BYTES_MAX + 1);
        header.set_cksum();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(header.as_bytes()).expect("written");
        let content = encoder.finish().expect("finished");
        let refused = unpack(&content, directory.path()).expect_err("too large");
        assert!(refused.to_string().contains("more than"), "{refused}");
    }
}
