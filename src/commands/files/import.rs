//! `landfast files import`: copies a directory of this machine into a volume.
//!
//! A copy gets the source's time of change last. So the next run continues an interrupted one: it
//! compares a file of the same length and time by its checksum, and does not copy it. Each copy is
//! read back and compared, too.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use files::{
    Errno, FileSystem, Ino,
    model::{Attributes, Kind, Privileges, SetAttributes, SetMode, SetTime},
};
use indicatif::ProgressBar;
use sha2::{Digest as _, Sha256};

use super::{
    server::Server,
    transfer::{self, Counts, Directory, STEP_BYTES, Volume},
    xattrs,
};
use crate::commands::progress;

/// The source and the target of a copy.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The directory to copy from
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// The directory to copy into; it is made if it is missing
    #[arg(value_name = "VOLUME[:/PATH]")]
    to: Directory,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Import {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        transfer::run(async {
            let volume = Volume::open(&self.server, &self.to.volume).await?;
            let counts = import(&volume, &self.from, &self.to).await?;
            super::super::print(&counts.line(self.json))
        })
    }
}

/// Something to copy.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    name: Bytes,
    /// The place of its directory among the directories.
    parent: usize,
    metadata: Metadata,
}

#[derive(Debug)]
struct Importer {
    files: Arc<FileSystem>,
    counts: Counts,
    bar: ProgressBar,
}

/// Copies the content of the directory `from`.
pub(super) async fn import(volume: &Volume, from: &Path, to: &Directory) -> anyhow::Result<Counts> {
    let (directories, others) = walk(from)?;
    let bytes = others.iter().map(|found| found.metadata.len()).sum();
    let importer = Arc::new(Importer {
        files: volume.files.clone(),
        counts: Counts::default(),
        bar: progress::bytes(Some(bytes)),
    });
    let mut top = Ino::ROOT;
    for name in to.names() {
        top = importer
            .directory(top, &name)
            .await
            .with_context(|| format!("/{}", to.path))?;
    }
    let mut inodes = vec![top];
    for found in &directories[1..] {
        let made = importer.directory(inodes[found.parent], &found.name).await;
        inodes.push(made.with_context(|| found.path.display().to_string())?);
        Counts::add(&importer.counts.directories, 1);
    }
    importer.clone().copy_all(others, &inodes).await?;
    // The deepest first: a new entry changes the time of its directory.
    for (found, ino) in directories.iter().zip(&inodes).skip(1).rev() {
        let set = importer.attributes(*ino, found).await;
        set.with_context(|| found.path.display().to_string())?;
    }
    volume
        .files
        .fsync()
        .await
        .context("the server did not confirm that all is durable")?;
    importer.bar.finish_and_clear();
    let importer = Arc::into_inner(importer).context("a copy goes on")?;
    Ok(importer.counts)
}

impl Importer {
    /// Copies everything but directories. The first name of each inode is copied, and the others
    /// become links to it.
    async fn copy_all(self: Arc<Self>, others: Vec<Found>, inodes: &[Ino]) -> anyhow::Result<()> {
        let (mut names, mut copies, mut links) = (BTreeMap::new(), Vec::new(), Vec::new());
        for found in others {
            let parent = inodes[found.parent];
            let inode = (found.metadata.dev(), found.metadata.ino());
            let is_linked = found.metadata.is_file() && found.metadata.nlink() > 1;
            if let (true, Some(first)) = (is_linked, names.get(&inode)) {
                links.push((Bytes::clone(first), parent, found));
                continue;
            }
            if is_linked {
                names.insert(
                    inode,
                    Bytes::copy_from_slice(found.path.as_os_str().as_bytes()),
                );
            }
            copies.push((parent, found));
        }
        let firsts = Arc::new(Mutex::new(BTreeMap::new()));
        let work = self.clone();
        let made = firsts.clone();
        transfer::each(copies, move |(parent, found)| {
            let (importer, made) = (work.clone(), made.clone());
            async move {
                let copied = importer.copy(parent, &found).await;
                let ino = copied.with_context(|| found.path.display().to_string())?;
                if let (Some(ino), true) = (ino, found.metadata.nlink() > 1) {
                    let path = Bytes::copy_from_slice(found.path.as_os_str().as_bytes());
                    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                    made.insert(path, ino);
                }
                Ok(())
            }
        })
        .await?;
        for (first, parent, found) in links {
            let ino = {
                let made = firsts.lock().unwrap_or_else(PoisonError::into_inner);
                made.get(&first).copied()
            };
            let linked = self.link(ino, parent, &found).await;
            linked.with_context(|| found.path.display().to_string())?;
        }
        Ok(())
    }

    /// The directory `name`, which is made if it is missing.
    async fn directory(&self, parent: Ino, name: &Bytes) -> anyhow::Result<Ino> {
        let access = files::model::Access {
            mode: 0o755,
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
        };
        match self.files.lookup(parent, name).await {
            Ok(found) if found.kind == Kind::Directory => Ok(found.ino),
            Ok(_) => bail!("a file of this name is in the volume; remove it, or import elsewhere"),
            Err(Errno::ENOENT) => Ok(self.files.mkdir(parent, access, name).await?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Copies an entry that is no directory. Returns the inode of a regular file.
    async fn copy(&self, parent: Ino, found: &Found) -> anyhow::Result<Option<Ino>> {
        let kind = found.metadata.file_type();
        if kind.is_symlink() {
            self.symlink(parent, found).await?;
            return Ok(None);
        }
        if !kind.is_file() {
            Counts::add(&self.counts.left_out, 1);
            return Ok(None);
        }
        let existing = match self.files.stat(parent, &found.name).await {
            Ok(existing) => Some(existing),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let is_same = |existing: &Attributes| {
            existing.kind == Kind::File
                && existing.size == found.metadata.len()
                && existing.mtime == transfer::mtime(&found.metadata)
        };
        if let Some(existing) = existing.filter(is_same) {
            let here = self.digest_here(&found.path)?;
            if self.digest_there(existing.ino, existing.size).await? == here {
                self.attributes(existing.ino, found).await?;
                Counts::add(&self.counts.equal, 1);
                return Ok(Some(existing.ino));
            }
        }
        if existing.is_some() {
            self.remove(parent, &found.name).await?;
        }
        let ino = self.copy_data(parent, found).await?;
        Counts::add(&self.counts.copied, 1);
        Ok(Some(ino))
    }

    async fn copy_data(&self, parent: Ino, found: &Found) -> anyhow::Result<Ino> {
        let mut source = File::open(&found.path)?;
        let access = transfer::access(&found.metadata);
        let ino = self.files.create(parent, access, &found.name).await?;
        let (mut digest, mut offset) = (Sha256::new(), 0);
        loop {
            let mut data = Vec::with_capacity(STEP_BYTES);
            let read = source
                .by_ref()
                .take(STEP_BYTES as u64)
                .read_to_end(&mut data)?;
            if read == 0 {
                break;
            }
            digest.update(&data);
            // Zeros stay a hole.
            if !transfer::is_zero(&data) {
                self.files
                    .write(ino, offset, Privileges::Keep, &data.into())
                    .await?;
            }
            offset += read as u64;
            self.bar.inc(read as u64);
        }
        let now = fs::symlink_metadata(&found.path)?;
        let is_changed = transfer::mtime(&now) != transfer::mtime(&found.metadata);
        if is_changed || offset != found.metadata.len() {
            bail!("it has changed while it was copied; import again");
        }
        if self.digest_there(ino, offset).await? != digest.finalize()[..] {
            bail!("the volume returns other bytes than were written; run landfast files check");
        }
        let set = SetAttributes {
            size: Some(offset),
            ..attributes(&found.metadata)
        };
        self.xattrs(ino, &found.path).await?;
        self.files.setattr(ino, set).await?;
        Counts::add(&self.counts.bytes, offset);
        Ok(ino)
    }

    /// Gives a file or directory the attributes that it has here.
    async fn attributes(&self, ino: Ino, found: &Found) -> anyhow::Result<()> {
        self.xattrs(ino, &found.path).await?;
        let set = attributes(&found.metadata);
        Ok(self.files.setattr(ino, set).await.map(drop)?)
    }

    async fn xattrs(&self, ino: Ino, path: &Path) -> anyhow::Result<()> {
        let here = xattrs::read(path)?;
        let there = self.files.listxattr(ino).await?;
        let gone = there.iter().filter(|name| xattrs::is_copied(name));
        for name in gone.filter(|name| !here.contains_key(*name)) {
            self.files.removexattr(ino, name).await?;
        }
        for (name, value) in &here {
            self.files.setxattr(ino, SetMode::Any, name, value).await?;
        }
        Ok(())
    }

    async fn symlink(&self, parent: Ino, found: &Found) -> anyhow::Result<()> {
        let target = fs::read_link(&found.path)?;
        let target = Bytes::copy_from_slice(target.as_os_str().as_bytes());
        let existing = match self.files.lookup(parent, &found.name).await {
            Ok(existing) => Some(existing),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let ino = match existing {
            Some(existing)
                if existing.kind == Kind::Symlink
                    && self.files.readlink(existing.ino).await? == target =>
            {
                existing.ino
            }
            existing => {
                if existing.is_some() {
                    self.remove(parent, &found.name).await?;
                }
                let access = transfer::access(&found.metadata);
                self.files
                    .symlink(parent, access, &found.name, &target)
                    .await?
            }
        };
        self.files.setattr(ino, attributes(&found.metadata)).await?;
        Counts::add(&self.counts.symlinks, 1);
        Ok(())
    }

    /// Makes a further name of an inode.
    async fn link(&self, ino: Option<Ino>, parent: Ino, found: &Found) -> anyhow::Result<()> {
        let ino = ino.context("its first name was not copied")?;
        match self.files.lookup(parent, &found.name).await {
            Ok(existing) if existing.ino == ino => {}
            Ok(_) => {
                self.remove(parent, &found.name).await?;
                self.files.link(ino, parent, &found.name).await?;
            }
            Err(Errno::ENOENT) => self.files.link(ino, parent, &found.name).await?,
            Err(errno) => return Err(errno.into()),
        }
        self.bar.inc(found.metadata.len());
        Counts::add(&self.counts.hard_links, 1);
        Ok(())
    }

    async fn remove(&self, parent: Ino, name: &Bytes) -> anyhow::Result<()> {
        let removed = self.files.unlink(parent, name).await;
        removed.context("a directory of this name is in the volume; remove it, or import elsewhere")
    }

    fn digest_here(&self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let (mut source, mut digest) = (File::open(path)?, Sha256::new());
        let mut data = vec![0; STEP_BYTES];
        loop {
            let read = source.read(&mut data)?;
            if read == 0 {
                return Ok(digest.finalize().to_vec());
            }
            digest.update(&data[..read]);
            self.bar.inc(read as u64);
        }
    }

    /// The checksum of a file, as the volume returns it. A file that ends before is followed by
    /// zeros.
    async fn digest_there(&self, ino: Ino, size: u64) -> anyhow::Result<Vec<u8>> {
        let (mut digest, mut offset) = (Sha256::new(), 0);
        while offset < size {
            let count = (size - offset).min(STEP_BYTES as u64);
            let data = self.files.read(ino, offset, count).await?;
            digest.update(&data);
            digest.update(vec![0; count as usize - data.len()]);
            offset += count;
        }
        Ok(digest.finalize().to_vec())
    }
}

fn attributes(metadata: &Metadata) -> SetAttributes {
    let access = transfer::access(metadata);
    SetAttributes {
        mode: Some(access.mode),
        uid: Some(access.uid),
        gid: Some(access.gid),
        mtime: Some(SetTime::To(transfer::mtime(metadata))),
        ..SetAttributes::default()
    }
}

/// The directories below `root`, each after its parent, and everything else. The first one is
/// `root`.
fn walk(root: &Path) -> anyhow::Result<(Vec<Found>, Vec<Found>)> {
    let metadata = fs::metadata(root).with_context(|| root.display().to_string())?;
    if !metadata.is_dir() {
        bail!("{}: it must be a directory", root.display());
    }
    let first = Found {
        path: root.to_owned(),
        name: Bytes::new(),
        parent: 0,
        metadata,
    };
    let (mut directories, mut others, mut next) = (vec![first], Vec::new(), 0);
    while next < directories.len() {
        let path = directories[next].path.clone();
        let entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
        let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let metadata = entry
                .metadata()
                .with_context(|| path.display().to_string())?;
            let is_directory = metadata.is_dir();
            let found = Found {
                name: Bytes::copy_from_slice(entry.file_name().as_bytes()),
                path,
                parent: next,
                metadata,
            };
            if is_directory {
                directories.push(found);
            } else {
                others.push(found);
            }
        }
        next += 1;
    }
    Ok((directories, others))
}
