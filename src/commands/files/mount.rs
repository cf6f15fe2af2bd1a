//! `landfast files mount`: a volume as a directory, until a signal or an unmount.
//!
//! A signal takes the directory's name away at once. While programs still have files open on it, the
//! process goes on to serve them, until the last close or a second signal.

use std::{io, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use files::{FileSystem, leased::LeasedVolume, model::Access};
use fuse_frontend::{
    FileHandler, Handler, Unmounted,
    mount::{Options, Readers, mount},
};
use in_process::{SystemClock, SystemEntropy};
use nix::unistd::{getgid, getuid};
use ports::{Clock, Entropy};
use serde_json::json;
use tokio::{runtime::Handle, task::spawn_blocking};
use tracing_subscriber::filter::LevelFilter;
use transactions::serializable::{model::SessionId, volumes::VolumeName};

use super::server::{Place, Server};
use crate::commands::{runtime, signals::Stop};

/// The permissions of the root directory of a volume that has none yet.
const ROOT_MODE: u32 = 0o755;

/// The volume to mount, and its directory.
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// The volume
    #[arg(value_parser = |name: &str| VolumeName::new(name))]
    volume: VolumeName,
    /// The directory on which the volume appears
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Let other users in, as the permissions of the files allow
    #[arg(long)]
    allow_other: bool,
    /// Print one JSON object when it is mounted
    #[arg(long)]
    json: bool,
    /// The memory for blocks, names and attributes that were read
    #[arg(long, value_name = "MiB", default_value_t = 64)]
    cache_mb: u32,
    #[command(flatten)]
    server: Server,
}

impl Mount {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_max_level(LevelFilter::INFO)
            .with_target(false)
            .init();
        runtime()?.block_on(self.serve())
    }

    async fn serve(&self) -> anyhow::Result<ExitCode> {
        let mut stop = Stop::listen().context("signals")?;
        // Lives as long as the connection, which may have to be made again.
        let place = self.server.place()?;
        let files = self.open(&place).await?;
        let handler = FileHandler::each(Arc::clone(&files), Handle::current());
        let (served, options): (Arc<dyn Handler>, _) = (handler.clone(), self.options(&handler));
        let directory = self.directory.clone();
        let mounted = spawn_blocking(move || mount(&directory, &options, &served)).await??;
        super::super::print(&self.mounted_line(mounted.path()))?;
        tokio::select! {
            () = handler.unmounted() => {}
            () = stop.asked() => match spawn_blocking(|| mounted.unmount()).await?? {
                Unmounted::Now => {}
                Unmounted::WhenUnused => {
                    tracing::info!("programs have files open; they can go on until their last close or a second signal");
                    tokio::select! {
                        () = handler.unmounted() => {}
                        () = stop.asked() => {}
                    }
                }
            },
        }
        let synced = files.fsync().await;
        synced.context("the last changes may be lost: the server did not confirm them")?;
        Ok(ExitCode::SUCCESS)
    }

    async fn open(&self, place: &Place) -> anyhow::Result<Arc<FileSystem>> {
        let store = place.volume(&self.volume).await?;
        let root = Access {
            mode: ROOT_MODE,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let entropy: Arc<dyn Entropy> = Arc::<SystemEntropy>::default();
        let session = SessionId(entropy.next_u64());
        let bytes_max = (self.cache_mb as usize) << 20;
        let leased = LeasedVolume::new(store, Arc::clone(&clock), Arc::clone(&entropy), bytes_max);
        let leased = Arc::new(leased);
        let keeper = Arc::clone(&leased);
        tokio::spawn(async move { keeper.run().await });
        let opened = FileSystem::open_leased(leased, clock, entropy, session, root).await;
        let opened = opened.with_context(|| format!("the volume {} cannot be read", self.volume));
        Ok(Arc::new(opened?))
    }

    fn options(&self, handler: &FileHandler) -> Options {
        Options {
            source: format!("landfast:{}", self.volume),
            readers: Readers::Task(Handle::current()),
            wishes: handler.wishes(),
            is_read_only: self.read_only,
            allow_other: self.allow_other,
            // Root may do anything.
            checks_permissions: self.allow_other || !getuid().is_root(),
        }
    }

    fn mounted_line(&self, directory: &std::path::Path) -> String {
        let directory = directory.display().to_string();
        if self.json {
            let line = json!({"volume": self.volume.as_str(), "directory": directory});
            format!("{line}\n")
        } else {
            format!("mounted {} on {directory}\n", self.volume)
        }
    }
}
