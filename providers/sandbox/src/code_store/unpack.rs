//! Unpacks an archive from an untrusted sender. Nothing of it lies or points outside, and its cost
//! is bounded before anything is written or read into memory for it.
//!
//! Entries are read raw. Names that are too long for a header come as entries of their own, which
//! the `tar` crate would read whole at any announced length.
//!
//! Invariants
//! - Every folder that receives an entry was created here and is not a link. The path of an entry
//!   is therefore its real place.
//! - A link's target goes up first, not above the archive, and never again: after a name, `..`
//!   leads up from the target of that name, if the name is a link. Chains of links therefore stay
//!   inside too.
//! - No path is used twice.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    io::Read,
    mem,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;
use tar::{Archive, Entry, EntryType, PaxExtensions};

const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// The most files, links and folders that it creates, including parent folders.
const ENTRIES_MAX: usize = 100_000;
/// The most bytes that frame an entry: its header, those of its names, and the padding of their
/// blocks.
const FRAME_BYTES_MAX: u64 = 4096;
/// The longest entry that describes the next one.
const EXTENSION_BYTES_MAX: u64 = 64 * 1024;
const PATH_BYTES_MAX: usize = 1024;

/// Unpacks `content`, a tar file compressed by gzip, into `directory`, which is empty. After an
/// error, the caller removes the remains.
///
/// Errors: `InvalidData` and similar kinds for faults of the archive, and the disk's own.
pub fn unpack(content: &[u8], directory: &Path) -> io::Result<()> {
    unpack_within(
        content,
        directory,
        Bounds {
            bytes: UNPACKED_BYTES_MAX,
            entries: ENTRIES_MAX,
        },
    )
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    bytes: u64,
    entries: usize,
}

fn unpack_within(content: &[u8], directory: &Path, bounds: Bounds) -> io::Result<()> {
    // Bounds the bytes that are read, independently of the headers.
    let bounded =
        GzDecoder::new(content).take(bounds.bytes + bounds.entries as u64 * FRAME_BYTES_MAX);
    let mut archive = Archive::new(bounded);
    let mut unpacking = Unpacking {
        directory,
        bounds,
        bytes: 0,
        entries: 0,
        made: BTreeSet::new(),
    };
    let mut said = Said::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry.map_err(|error| refused(format!("it is no tar.gz: {error}")))?;
        unpacking.charge(entry.size())?;
        if !said.takes(&mut entry)? {
            unpacking.put(&mut entry, mem::take(&mut said))?;
        }
    }
    // The checksum comes after everything else.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Turns errors of the file system that the archive caused at the entry `shown` into refusals.
fn about_the_archive(error: io::Error, shown: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => refused(format!(
            "it has two entries of one name, at {shown:?} or on the way there"
        )),
        io::ErrorKind::InvalidFilename
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::NotADirectory => refused(format!(
            "{shown:?} is a name that no file can have: {error}"
        )),
        _ => error,
    }
}

/// The descriptions of an entry by earlier entries.
#[derive(Debug, Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    extensions: Option<Vec<u8>>,
}

impl Said {
    /// Takes an entry that describes the next one; false: it is another kind.
    fn takes<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> io::Result<bool> {
        let place = match entry.header().entry_type() {
            EntryType::GNULongName => &mut self.path,
            EntryType::GNULongLink => &mut self.link,
            EntryType::XHeader => &mut self.extensions,
            // Comments, such as those of git.
            EntryType::XGlobalHeader => return Ok(true),
            _ => return Ok(false),
        };
        if place.is_some() {
            return Err(refused("an entry is named twice".to_owned()));
        }
        let size = entry.size();
        if size > EXTENSION_BYTES_MAX {
            return Err(refused(format!(
                "a name has {size} bytes, and {EXTENSION_BYTES_MAX} are the most"
            )));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        if entry.read_to_end(&mut bytes)? as u64 != size {
            return Err(cut_off());
        }
        *place = Some(bytes);
        Ok(true)
    }

    /// The path of `entry`, and the target of a link, as bytes.
    fn names<R: Read>(self, entry: &Entry<'_, R>) -> io::Result<(Vec<u8>, Option<Vec<u8>>)> {
        let without_end = |mut bytes: Vec<u8>| {
            bytes.truncate(
                bytes
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(bytes.len()),
            );
            bytes
        };
        let (mut path, mut link) = (self.path.map(without_end), self.link.map(without_end));
        if let Some(extensions) = &self.extensions {
            for extension in PaxExtensions::new(extensions) {
                let extension = extension.map_err(|error| refused(error.to_string()))?;
                match extension.key_bytes() {
                    b"path" => path = Some(extension.value_bytes().to_vec()),
                    b"linkpath" => link = Some(extension.value_bytes().to_vec()),
                    // Readers would disagree about the begin of the next entry.
                    b"size" => return Err(refused("an entry has a second size".to_owned())),
                    key if key.starts_with(b"GNU.sparse.") => {
                        return Err(refused("a file has holes".to_owned()));
                    }
                    _ => {}
                }
            }
        }
        let header = entry.header();
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        Ok((
            path,
            link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned)),
        ))
    }
}

fn cut_off() -> io::Error {
    refused("it ends in the middle of an entry".to_owned())
}

/// The folder for an archive, and its cost so far.
struct Unpacking<'a> {
    directory: &'a Path,
    bounds: Bounds,
    bytes: u64,
    entries: usize,
    made: BTreeSet<PathBuf>,
}

impl Unpacking<'_> {
    fn charge(&mut self, bytes: u64) -> io::Result<()> {
        let most = self.bounds.bytes;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > most {
            Err(refused(format!("it holds more than {most} bytes")))
        } else {
            Ok(())
        }
    }

    fn count(&mut self) -> io::Result<()> {
        let most = self.bounds.entries;
        self.entries += 1;
        if self.entries > most {
            Err(refused(format!(
                "it has more than {most} files and folders"
            )))
        } else {
            Ok(())
        }
    }

    fn put<R: Read>(&mut self, entry: &mut Entry<'_, R>, said: Said) -> io::Result<()> {
        let (path, link) = said.names(entry)?;
        let shown = shown(&path);
        let path = inside(&path).ok_or_else(|| {
            refused(format!(
                "{shown:?} lies outside of it, or is longer than {PATH_BYTES_MAX} bytes: name it from the top of the archive"
            ))
        })?;
        self.put_at(entry, &path, &shown, link)
            .map_err(|error| about_the_archive(error, &shown))
    }

    fn put_at<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        path: &Path,
        shown: &str,
        link: Option<Vec<u8>>,
    ) -> io::Result<()> {
        match entry.header().entry_type() {
            EntryType::Directory => self.folder(path),
            EntryType::Regular | EntryType::Continuous => {
                let target = self.place(path)?;
                // A new file, so no link is followed and nothing is replaced.
                let mut file = fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(&target)?;
                let size = entry.size();
                if io::copy(entry, &mut file)? != size {
                    return Err(cut_off());
                }
                let mode = entry
                    .header()
                    .mode()
                    .map_err(|error| refused(error.to_string()))?;
                set_mode(&file, mode)
            }
            EntryType::Symlink => {
                let link = link.unwrap_or_default();
                let to = Path::new(OsStr::from_bytes(&link));
                if !stays_inside(path, to) {
                    let target = self::shown(&link);
                    return Err(refused(format!(
                        "the symbolic link {shown:?} to {target:?} leads outside of it, or may: have it lead to something in the archive \
                         by a relative path with all its .. first, or put a copy in its place"
                    )));
                }
                symlink(to, self.place(path)?)
            }
            other => Err(refused(format!(
                "{shown:?} is neither file, folder nor symbolic link ({other:?})"
            ))),
        }
    }

    /// The place of an entry that is not a folder. Its parent folder is created.
    fn place(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.count()?;
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        Ok(self.directory.join(path))
    }

    fn folder(&mut self, path: &Path) -> io::Result<()> {
        let mut folder = PathBuf::new();
        for part in path.components() {
            folder.push(part);
            if self.made.contains(&folder) {
                continue;
            }
            self.count()?;
            let target = self.directory.join(&folder);
            // An existing entry here is not a folder: folders were created here.
            fs::create_dir(&target)?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
            self.made.insert(folder.clone());
        }
        Ok(())
    }
}

/// A name for a refusal, shortened if it is long.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(PATH_BYTES_MAX)]).into_owned()
}

/// Readable by the function's user; executable if it was.
fn set_mode(file: &fs::File, mode: u32) -> io::Result<()> {
    let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The path without redundant parts; none: it leads outside, or is too long.
fn inside(path: &[u8]) -> Option<PathBuf> {
    if path.len() > PATH_BYTES_MAX {
        return None;
    }
    let mut inside = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(inside)
}

/// Whether a link at `path`, in a real folder, leads inside, even through other links.
fn stays_inside(path: &Path, to: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    if to.as_os_str().is_empty() {
        return false;
    }
    let mut has_gone_down = false;
    for part in to.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => has_gone_down = true,
            Component::ParentDir if !has_gone_down && depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
