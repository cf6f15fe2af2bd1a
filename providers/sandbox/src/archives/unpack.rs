//! Unpacking an archive whose maker may wish us ill: nothing of it lies or points outside, and what it costs is bounded before
//! anything is written or read into memory for it.
//!
//! Entries are read raw: names that are too long for a header come as entries of their own, which the crate would read whole,
//! however long they say they are.
//!
//! Invariants
//! - Every folder that anything is put in was made here, and is no link: so what a path says is where it lies.
//! - A link goes up first, not above the archive, and never again: behind a name, `..` would lead to wherever that name, if it
//!   is a link, leads. So wherever links lead through other links, that is inside.
//! - Nothing is put twice in one place.

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

/// What an archive may hold, unpacked.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Files, links and folders that it makes, those on the way to others among them.
const ENTRIES_MAX: usize = 100_000;
/// What frames an entry: its header, those of its names, and what fills up their blocks.
const FRAME_BYTES_MAX: u64 = 4096;
/// The longest entry that says something of the next one.
const EXTENSION_BYTES_MAX: u64 = 64 * 1024;
/// The longest path.
const PATH_BYTES_MAX: usize = 1024;

/// Unpacks `content`, a tar compressed by gzip, into `directory`, which is empty. What it leaves where it fails is the caller's to
/// remove.
///
/// Errors: `InvalidData` and its like for what is wrong with the archive, and those of the disk.
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

/// What an archive may cost.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    bytes: u64,
    entries: usize,
}

fn unpack_within(content: &[u8], directory: &Path, bounds: Bounds) -> io::Result<()> {
    // What is read is bounded whatever its headers say.
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
    // Its checksum stands behind all of it.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Of what a file system refuses of the entry that is `shown`, that which another archive would not have asked for.
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

/// What entries before it say of one.
#[derive(Debug, Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    extensions: Option<Vec<u8>>,
}

impl Said {
    /// Takes an entry that says something of the next one; false: it is none.
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

    /// The path of `entry`, and where it leads if it is a link, as bytes.
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
                    // Where the next entry begins would be another matter for each reader.
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

/// Where an archive is unpacked, and what it has cost.
struct Unpacking<'a> {
    directory: &'a Path,
    bounds: Bounds,
    bytes: u64,
    entries: usize,
    /// Folders that were made, by their paths in the archive.
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
                // New, so nothing is followed and nothing replaced.
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

    /// Where what is no folder goes, whose folder is made.
    fn place(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.count()?;
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        Ok(self.directory.join(path))
    }

    /// Makes a folder, and those above it.
    fn folder(&mut self, path: &Path) -> io::Result<()> {
        let mut folder = PathBuf::new();
        for part in path.components() {
            folder.push(part);
            if self.made.contains(&folder) {
                continue;
            }
            self.count()?;
            let target = self.directory.join(&folder);
            // What is there already is no folder: those were made here.
            fs::create_dir(&target)?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
            self.made.insert(folder.clone());
        }
        Ok(())
    }
}

/// A name as a refusal repeats it, however long it is.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(PATH_BYTES_MAX)]).into_owned()
}

/// Readable by whoever the function runs as; executable if it was.
fn set_mode(file: &fs::File, mode: u32) -> io::Result<()> {
    let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The path without what means nothing; none: it leads outside, or is too long.
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

/// Whether a link at `path`, whose folder is a real one, leads to somewhere inside whatever else is a link.
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
