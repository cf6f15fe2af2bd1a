//! Archives with code, unpacked: each in a folder of its name, made whole or not at all.
//!
//! An archive is [unpacked](unpack) beside its place and moved there.

mod unpack;

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use ports::{Error, ErrorKind, Result};

pub use unpack::unpack;

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

    /// Where all of them lie.
    pub(crate) fn all(&self) -> &Path {
        &self.directory
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

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, EntryType, Header};

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
}
