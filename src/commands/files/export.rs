//! `landfast files export`: copies a directory of a volume to this machine.
//!
//! It reads one snapshot, so the copy is of one moment although the volume is in use. A file gets
//! its time of change last. So the next run continues an interrupted one: it compares a file of the
//! same length and time by its checksum, and does not copy it. Each copy is read back and compared,
//! too.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, FileTimes, OpenOptions},
    io::{self, Read as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink},
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use files::{
    FileSystem, Ino, Listing,
    model::{Attributes, DirectoryEntry, Follow, Kind, Time},
};
use indicatif::ProgressBar;
use nix::{
    fcntl::AT_FDCWD,
    sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    },
};
use sha2::{Digest as _, Sha256};
use transactions::serializable::model::{PinName, Slot};

use super::{
    server::Server,
    transfer::{self, Counts, Directory, STEP_BYTES, Volume},
    xattrs::{self, Xattrs},
};
use crate::commands::progress;

/// The entries of a directory that are read in one call.
const ENTRIES_AT_ONCE: usize = 1_000;

/// The source and the target of a copy.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The directory of a volume to copy from
    #[arg(value_name = "VOLUME[:/PATH]")]
    from: Directory,
    /// The directory to copy into; it is made if it is missing
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Export {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        transfer::run(async {
            let volume = Volume::open(&self.server, &self.from.volume).await?;
            let counts = export(&volume, &self.from, &self.to).await?;
            super::super::print(&counts.line(self.json))
        })
    }
}

/// Something to copy.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    attributes: Attributes,
}

#[derive(Debug)]
struct Exporter {
    files: Arc<FileSystem>,
    slot: Slot,
    counts: Counts,
    bar: ProgressBar,
}

/// Copies the content of a directory of the volume.
pub(super) async fn export(volume: &Volume, from: &Directory, to: &Path) -> anyhow::Result<Counts> {
    let slot = volume.store.snapshot().await?.value.slot;
    // A long copy keeps its snapshot readable. A later one of the same process number moves the pin.
    let pin = PinName::new(format!("landfast-export-{}", std::process::id()))?;
    volume.store.pin(pin.clone(), slot).await?;
    let exporter = Arc::new(Exporter {
        files: volume.files.clone(),
        slot,
        counts: Counts::default(),
        bar: progress::bytes(Some(0)),
    });
    let exported = exporter.clone().all(from, to).await;
    let unpinned = volume.store.unpin(&pin).await;
    exported?;
    unpinned.with_context(|| format!("the snapshot {} is left; delete it", pin.as_str()))?;
    exporter.bar.finish_and_clear();
    let exporter = Arc::into_inner(exporter).context("a copy goes on")?;
    Ok(exporter.counts)
}

impl Exporter {
    async fn all(self: Arc<Self>, from: &Directory, to: &Path) -> anyhow::Result<()> {
        let path = Bytes::from(format!("/{}", from.path));
        let mut transaction = self.files.begin_at(self.slot);
        let top = transaction.resolve(Ino::ROOT, Follow::Yes, &path).await;
        let top = top.with_context(|| format!("/{} in the volume", from.path))?;
        if top.kind != Kind::Directory {
            bail!("/{} in the volume: it must be a directory", from.path);
        }
        fs::create_dir_all(to).with_context(|| to.display().to_string())?;
        let (directories, others) = self.walk(top.ino, to).await?;
        let (mut firsts, mut copies, mut links) = (BTreeMap::new(), Vec::new(), Vec::new());
        for found in others {
            let attributes = &found.attributes;
            if attributes.kind == Kind::File && attributes.links > 1 {
                if let Some(first) = firsts.get(&attributes.ino) {
                    links.push((PathBuf::clone(first), found));
                    continue;
                }
                firsts.insert(attributes.ino, found.path.clone());
            }
            copies.push(found);
        }
        let work = self.clone();
        transfer::each(copies, move |found| {
            let exporter = work.clone();
            async move {
                let copied = exporter.copy(&found).await;
                copied.with_context(|| found.path.display().to_string())
            }
        })
        .await?;
        for (first, found) in links {
            self.link(&first, &found)
                .with_context(|| found.path.display().to_string())?;
        }
        // The deepest first: a new entry changes the time of its directory.
        for found in directories.iter().rev() {
            let set = self.attributes(found).await;
            set.with_context(|| found.path.display().to_string())?;
        }
        nix::unistd::sync();
        Ok(())
    }

    /// Makes the directories below `top`, and returns them and everything else.
    async fn walk(&self, top: Ino, to: &Path) -> anyhow::Result<(Vec<Found>, Vec<Found>)> {
        let (mut directories, mut others) = (Vec::<Found>::new(), Vec::new());
        let (mut next, mut here) = (0, (top, to.to_owned()));
        loop {
            for entry in self.list(here.0).await? {
                let path = here.1.join(OsStr::from_bytes(&entry.name));
                let mut transaction = self.files.begin_at(self.slot);
                let attributes = transaction.getattr(entry.ino).await;
                let attributes = attributes.with_context(|| path.display().to_string())?;
                let found = Found { path, attributes };
                if entry.kind == Kind::Directory {
                    make_directory(&found.path)
                        .with_context(|| found.path.display().to_string())?;
                    Counts::add(&self.counts.directories, 1);
                    directories.push(found);
                } else {
                    self.bar.inc_length(attributes_bytes(&found.attributes));
                    others.push(found);
                }
            }
            let Some(directory) = directories.get(next) else {
                return Ok((directories, others));
            };
            here = (directory.attributes.ino, directory.path.clone());
            next += 1;
        }
    }

    async fn list(&self, directory: Ino) -> anyhow::Result<Vec<DirectoryEntry>> {
        // The first two are the directory and its parent.
        let (mut listing, mut cookie, mut entries) = (Listing::new(directory), 2, Vec::new());
        loop {
            let mut transaction = self.files.begin_at(self.slot);
            let page = transaction
                .list(&mut listing, cookie, ENTRIES_AT_ONCE)
                .await?;
            let Some(last) = page.last() else {
                return Ok(entries);
            };
            cookie = last.cookie;
            entries.extend(page);
        }
    }

    async fn copy(&self, found: &Found) -> anyhow::Result<()> {
        let attributes = &found.attributes;
        if attributes.kind == Kind::Symlink {
            let mut transaction = self.files.begin_at(self.slot);
            let target = transaction.readlink(attributes.ino).await?;
            remove(&found.path)?;
            symlink(OsStr::from_bytes(&target), &found.path)?;
            set_attributes(&found.path, attributes)?;
            Counts::add(&self.counts.symlinks, 1);
            return Ok(());
        }
        if attributes.kind != Kind::File {
            Counts::add(&self.counts.left_out, 1);
            return Ok(());
        }
        if self.is_equal(found).await? {
            self.attributes(found).await?;
            Counts::add(&self.counts.equal, 1);
            return Ok(());
        }
        remove(&found.path)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&found.path)?;
        let (mut digest, mut offset) = (Sha256::new(), 0);
        while offset < attributes.size {
            let data = self.read(attributes, offset).await?;
            digest.update(&data);
            // Zeros stay a hole.
            if !transfer::is_zero(&data) {
                file.write_all_at(&data, offset)?;
            }
            offset += data.len() as u64;
            self.bar.inc(data.len() as u64);
        }
        file.set_len(attributes.size)?;
        if digest_here(&found.path)? != digest.finalize()[..] {
            bail!("it returns other bytes than were written; check this machine's disk");
        }
        self.attributes(found).await?;
        Counts::add(&self.counts.copied, 1);
        Counts::add(&self.counts.bytes, attributes.size);
        Ok(())
    }

    /// Gives a copied file or directory its attributes.
    async fn attributes(&self, found: &Found) -> anyhow::Result<()> {
        let ino = found.attributes.ino;
        let mut transaction = self.files.begin_at(self.slot);
        let mut wanted = Xattrs::new();
        for name in transaction.listxattr(ino).await? {
            if xattrs::is_copied(&name) {
                let value = transaction.getxattr(ino, &name).await?;
                wanted.insert(name, value);
            }
        }
        xattrs::write(&found.path, &wanted).context("its extended attributes")?;
        set_attributes(&found.path, &found.attributes)
    }

    /// Whether a regular file of the same length and time is there, with the same content.
    async fn is_equal(&self, found: &Found) -> anyhow::Result<bool> {
        let attributes = &found.attributes;
        let Ok(here) = fs::symlink_metadata(&found.path) else {
            return Ok(false);
        };
        let is_same_time = transfer::mtime(&here) == attributes.mtime;
        if !here.is_file() || here.len() != attributes.size || !is_same_time {
            return Ok(false);
        }
        let (mut digest, mut offset) = (Sha256::new(), 0);
        while offset < attributes.size {
            let data = self.read(attributes, offset).await?;
            digest.update(&data);
            offset += data.len() as u64;
            self.bar.inc(data.len() as u64);
        }
        Counts::add(&self.counts.bytes, attributes.size);
        Ok(digest_here(&found.path)? == digest.finalize()[..])
    }

    /// The next bytes of a file, as of the snapshot.
    async fn read(&self, of: &Attributes, offset: u64) -> anyhow::Result<Bytes> {
        let mut transaction = self.files.begin_at(self.slot);
        let data = transaction.read(of.ino, offset, STEP_BYTES as u64).await?;
        if data.is_empty() {
            bail!("the volume returns fewer bytes than the file has");
        }
        Ok(data)
    }

    fn link(&self, first: &Path, found: &Found) -> anyhow::Result<()> {
        remove(&found.path)?;
        fs::hard_link(first, &found.path)?;
        self.bar.inc(found.attributes.size);
        Counts::add(&self.counts.hard_links, 1);
        Ok(())
    }
}

fn attributes_bytes(attributes: &Attributes) -> u64 {
    match attributes.kind {
        Kind::File => attributes.size,
        _ => 0,
    }
}

/// Makes a directory, unless it is there. Any other file of its name is removed, so that nothing is
/// written through a link.
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(here) if here.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir(path)
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error)
            .context("it is in the way of a file of the volume; remove it, or export elsewhere"),
        _ => Ok(()),
    }
}

fn digest_here(path: &Path) -> io::Result<Vec<u8>> {
    let (mut source, mut digest) = (File::open(path)?, Sha256::new());
    let mut data = vec![0; STEP_BYTES];
    loop {
        let read = source.read(&mut data)?;
        if read == 0 {
            return Ok(digest.finalize().to_vec());
        }
        digest.update(&data[..read]);
    }
}

/// Sets owner, mode and times, in this order: a new owner takes bits of the mode away. Only root can
/// give files to others.
fn set_attributes(path: &Path, attributes: &Attributes) -> anyhow::Result<()> {
    let access = attributes.access;
    let owned = lchown(path, Some(access.uid), Some(access.gid));
    match owned {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error.into()),
        _ => {}
    }
    if attributes.kind == Kind::Symlink {
        let time = |time: Time| TimeSpec::new(time.seconds, i64::from(time.nanoseconds));
        let (accessed, changed) = (time(attributes.atime), time(attributes.mtime));
        let flags = UtimensatFlags::NoFollowSymlink;
        utimensat(AT_FDCWD, path, &accessed, &changed, flags)?;
        return Ok(());
    }
    let times = FileTimes::new()
        .set_accessed(system_time(attributes.atime)?)
        .set_modified(system_time(attributes.mtime)?);
    let opened = File::open(path)?;
    opened.set_permissions(fs::Permissions::from_mode(access.mode))?;
    opened.set_times(times)?;
    Ok(())
}

fn system_time(time: Time) -> anyhow::Result<SystemTime> {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let exact = whole.and_then(|whole| whole.checked_add(nanoseconds));
    exact.context("its time is out of this machine's range")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use transactions::serializable::{ModelVolume, model::BlockBytes};

    use super::*;
    use crate::commands::files::import::import;

    fn set_time(path: &Path, seconds: u64) {
        let file = File::open(path).expect("there");
        let time = UNIX_EPOCH + Duration::new(seconds, 123_456_789);
        file.set_times(FileTimes::new().set_modified(time))
            .expect("set");
    }

    /// The entries of a tree, as a user sees them.
    fn tree(root: &Path) -> Vec<String> {
        let mut lines = Vec::new();
        let mut rest = vec![root.to_owned()];
        while let Some(directory) = rest.pop() {
            for entry in fs::read_dir(&directory).expect("listed") {
                let path = entry.expect("an entry").path();
                let here = fs::symlink_metadata(&path).expect("there");
                let content = if here.is_file() {
                    format!("{:?}", digest_here(&path).expect("read"))
                } else if here.is_symlink() {
                    format!("{:?}", fs::read_link(&path).expect("read"))
                } else {
                    rest.push(path.clone());
                    String::new()
                };
                let name = path.strip_prefix(root).expect("below").display();
                let links = if here.is_file() { here.nlink() } else { 0 };
                let xattrs = xattrs::read(&path).expect("listed");
                lines.push(format!(
                    "{name} {:o} {} {}.{} {links} {content} {xattrs:?}",
                    here.mode(),
                    here.uid(),
                    here.mtime(),
                    here.mtime_nsec()
                ));
            }
        }
        lines.sort();
        lines
    }

    fn source(root: &Path) {
        fs::create_dir_all(root.join("d/e")).expect("made");
        let large: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte / 7) as u8).collect();
        fs::write(root.join("d/large"), &large).expect("written");
        fs::write(root.join("d/empty"), b"").expect("written");
        let sparse = File::create(root.join("sparse")).expect("made");
        sparse.write_all_at(b"end", 40 << 20).expect("written");
        fs::hard_link(root.join("d/large"), root.join("second")).expect("linked");
        symlink("d/large", root.join("link")).expect("linked");
        symlink("nowhere", root.join("dangling")).expect("linked");
        xattr::set(root.join("d/large"), "user.a", b"value").expect("set");
        xattr::set(root.join("d"), "user.empty", b"").expect("set");
        let mode = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(root.join("d/empty"), mode(0o4751)).expect("set");
        for name in ["d/large", "sparse", "d/e", "d"] {
            set_time(&root.join(name), 1_000_000_000);
        }
        fs::set_permissions(root.join("d/e"), mode(0o711)).expect("set");
    }

    #[test]
    fn a_tree_comes_back_as_it_was_and_is_not_copied_twice() {
        transfer::run(async {
            let directory = tempfile::tempdir()?;
            let (from, back) = (directory.path().join("from"), directory.path().join("back"));
            source(&from);
            let block_bytes = BlockBytes::new(4_096)?;
            let store = Arc::new(ModelVolume::new(block_bytes));
            let volume = Volume::over(store, None).await?;
            let place: Directory = "demo:/a/b".parse()?;
            let counts = import(&volume, &from, &place).await?;
            let line = counts.line(false);
            assert!(
                line.starts_with("copied 3 files and found 0 equal"),
                "{line}"
            );
            let counts = export(&volume, &place, &back).await?;
            let line = counts.line(false);
            assert!(
                line.starts_with("copied 3 files and found 0 equal"),
                "{line}"
            );
            assert_eq!(tree(&back), tree(&from));
            let blocks = fs::metadata(back.join("sparse"))?.blocks();
            assert!(blocks * 512 < 8 << 20, "holes stay holes: {blocks}");
            for counts in [
                import(&volume, &from, &place).await?,
                export(&volume, &place, &back).await?,
            ] {
                let line = counts.line(false);
                assert!(
                    line.starts_with("copied 0 files and found 3 equal"),
                    "{line}"
                );
            }
            // The same length and time, and another content: the checksum tells.
            fs::write(back.join("d/large"), vec![1; 3_000_000])?;
            xattr::set(back.join("d"), "user.more", b"more")?;
            set_time(&back.join("d/large"), 1_000_000_000);
            let counts = export(&volume, &place, &back).await?;
            let line = counts.line(false);
            assert!(
                line.starts_with("copied 1 files and found 2 equal"),
                "{line}"
            );
            assert_eq!(tree(&back), tree(&from));
            Ok(ExitCode::SUCCESS)
        })
        .expect("copied");
    }

    #[test]
    fn nothing_is_written_through_links_in_the_way() {
        transfer::run(async {
            let directory = tempfile::tempdir()?;
            let (from, back) = (directory.path().join("from"), directory.path().join("back"));
            let outside = directory.path().join("outside");
            fs::create_dir_all(from.join("d"))?;
            fs::write(from.join("d/f"), b"new")?;
            fs::create_dir_all(&back)?;
            fs::create_dir_all(&outside)?;
            symlink(&outside, back.join("d"))?;
            let block_bytes = BlockBytes::new(4_096)?;
            let volume = Volume::over(Arc::new(ModelVolume::new(block_bytes)), None).await?;
            let place: Directory = "demo".parse()?;
            import(&volume, &from, &place).await?;
            export(&volume, &place, &back).await?;
            assert_eq!(fs::read_dir(&outside)?.count(), 0);
            assert_eq!(fs::read(back.join("d/f"))?, b"new");
            Ok(ExitCode::SUCCESS)
        })
        .expect("copied");
    }

    #[test]
    fn a_place_is_a_volume_and_perhaps_a_path() {
        let place: Directory = "demo:/a//b/".parse().expect("a place");
        assert_eq!(
            place.names().collect::<Vec<_>>(),
            ["a", "b"].map(Bytes::from)
        );
        let root: Directory = "demo".parse().expect("a place");
        assert_eq!(root.names().count(), 0);
        for text in ["", "Demo", "demo:a", ":/a"] {
            assert!(text.parse::<Directory>().is_err(), "{text}");
        }
    }
}
