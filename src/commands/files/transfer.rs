//! The parts that import and export share: the place in a volume, checksums, progress and counts.

use std::{
    fs::Metadata,
    future::Future,
    os::unix::fs::MetadataExt as _,
    process::ExitCode,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use files::{
    FileSystem,
    model::{Access, Time},
};
use in_process::{SystemClock, SystemEntropy};
use nix::unistd::{getgid, getuid};
use ports::Entropy as _;
use serde_json::json;
use tokio::task::JoinSet;
use transactions::serializable::{VolumeStore, model::SessionId, volumes::VolumeName};

use super::server::{Place, Server};
use crate::commands::runtime;

/// How many files are copied at the same time.
const FILES_AT_ONCE: usize = 8;
/// The bytes that are copied in one step.
pub(super) const STEP_BYTES: usize = 1 << 20;

/// A directory of a volume: `VOLUME` or `VOLUME:/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) volume: VolumeName,
    /// From the root; it may be empty.
    pub(super) path: String,
}

impl FromStr for Directory {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (volume, path) = text.split_once(':').unwrap_or((text, "/"));
        let volume = VolumeName::new(volume)?;
        let Some(path) = path.strip_prefix('/') else {
            bail!("write VOLUME or VOLUME:/PATH");
        };
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { volume, path })
    }
}

impl Directory {
    /// The names on the way from the root.
    pub(super) fn names(&self) -> impl Iterator<Item = Bytes> {
        let names = self.path.split('/').filter(|name| !name.is_empty());
        names.map(|name| Bytes::copy_from_slice(name.as_bytes()))
    }
}

/// An open volume.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) files: Arc<FileSystem>,
    pub(super) store: Arc<dyn VolumeStore>,
    /// It lives as long as the connection.
    _place: Option<Place>,
}

impl Volume {
    pub(super) async fn open(server: &Server, name: &VolumeName) -> anyhow::Result<Self> {
        let place = server.place()?;
        let store = place.volume(name).await?;
        Self::over(store, Some(place)).await
    }

    pub(super) async fn over(
        store: Arc<dyn VolumeStore>,
        place: Option<Place>,
    ) -> anyhow::Result<Self> {
        let root = Access {
            mode: 0o755,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
        };
        let (clock, entropy) = (Arc::new(SystemClock), Arc::<SystemEntropy>::default());
        let session = SessionId(entropy.next_u64());
        let opened = FileSystem::open(store.clone(), clock, entropy, session, root).await;
        Ok(Self {
            files: Arc::new(opened.context("the volume cannot be read")?),
            store,
            _place: place,
        })
    }
}

/// The counts of the work done so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) directories: AtomicU64,
    pub(super) symlinks: AtomicU64,
    pub(super) hard_links: AtomicU64,
    /// Files that were copied.
    pub(super) copied: AtomicU64,
    /// Files that were there already, with the same content.
    pub(super) equal: AtomicU64,
    /// Bytes of both, whose checksums were compared.
    pub(super) bytes: AtomicU64,
    /// Sockets, devices and pipes, which are left out.
    pub(super) left_out: AtomicU64,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    /// One line for people, or one JSON object.
    pub(super) fn line(&self, is_json: bool) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (copied, equal, bytes) = (of(&self.copied), of(&self.equal), of(&self.bytes));
        let (directories, symlinks) = (of(&self.directories), of(&self.symlinks));
        let (hard_links, left_out) = (of(&self.hard_links), of(&self.left_out));
        if is_json {
            let line = json!({
                "copied": copied, "equal": equal, "bytes": bytes, "directories": directories,
                "symlinks": symlinks, "hard_links": hard_links, "left_out": left_out,
            });
            return format!("{line}\n");
        }
        let left_out = if left_out > 0 {
            format!("; left out {left_out} sockets, devices and pipes")
        } else {
            String::new()
        };
        format!(
            "copied {copied} files and found {equal} equal ({bytes} bytes, checksums compared), \
             {directories} directories, {symlinks} symbolic links, {hard_links} hard links{left_out}\n"
        )
    }
}

/// Runs a command to its end.
pub(super) fn run(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(work)
}

/// Runs `work` on all items, several at the same time. Ends at the first error.
pub(super) async fn each<T, F, W>(items: impl IntoIterator<Item = T>, work: W) -> anyhow::Result<()>
where
    W: Fn(T) -> F,
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for item in items {
        if running.len() >= FILES_AT_ONCE
            && let Some(ended) = running.join_next().await
        {
            ended.context("a copy ended")??;
        }
        running.spawn(work(item));
    }
    while let Some(ended) = running.join_next().await {
        ended.context("a copy ended")??;
    }
    Ok(())
}

pub(super) fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

pub(super) fn mtime(metadata: &Metadata) -> Time {
    Time {
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec() as u32,
    }
}

pub(super) fn access(metadata: &Metadata) -> Access {
    Access {
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    }
}
