//! The servers under test, each with an empty directory on the same disk.
//!
//! A peer that is not installed is left out. A peer that waits is halted, so that its deferred work
//! does not fall into another server's measurement. Landfast is not: its instances would take the
//! halt for a crash. Each measurement therefore begins once it uses little CPU.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{
    client::{Connection, Protocol},
    signing::{ACCESS_KEY, SECRET_KEY},
    tree,
};
use crate::server::{Process, free_address, fresh};

/// A server is quiet if its processes use little CPU for this long.
const QUIET_LOOK: Duration = Duration::from_millis(100);
/// The bound of "little": two ticks of the kernel's CPU accounting.
const QUIET_CPU: Duration = Duration::from_millis(20);
/// A measurement begins after this wait in any case.
const QUIET_WAIT: Duration = Duration::from_secs(5);
/// How long a started server may refuse to create a bucket.
const BUCKET_WAIT: Duration = Duration::from_secs(30);
const BUCKET_POLL: Duration = Duration::from_millis(100);

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Landfast's S3.
    Landfast,
    /// `redis-server` without persistence.
    Redis,
    /// MinIO with one drive.
    Minio,
    /// versitygw over a directory.
    Versitygw,
}

impl Kind {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Landfast => "Landfast",
            Self::Redis => "Redis",
            Self::Minio => "MinIO",
            Self::Versitygw => "versitygw",
        }
    }

    /// Its language.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Redis => Protocol::Redis,
            Self::Landfast | Self::Minio | Self::Versitygw => Protocol::S3,
        }
    }
}

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Ours.
    pub landfast: PathBuf,
    /// The directory of MinIO and versitygw.
    pub peers: PathBuf,
}

impl Programs {
    /// The peer's program; none: it is not installed.
    fn peer(&self, kind: Kind) -> Option<PathBuf> {
        let name = match kind {
            Kind::Landfast => return Some(self.landfast.clone()),
            Kind::Redis => return Some("redis-server".into()),
            Kind::Minio => "minio",
            Kind::Versitygw => "versitygw",
        };
        Some(self.peers.join(name)).filter(|path| path.is_file())
    }

    /// Those of `kinds` that are installed, and a line for each that is not.
    pub fn installed(&self, kinds: &[Kind]) -> (Vec<Kind>, Vec<String>) {
        let (there, missing): (Vec<Kind>, Vec<Kind>) =
            kinds.iter().partition(|kind| self.peer(**kind).is_some());
        let skipped = missing.iter().map(|kind| {
            let (name, directory) = (kind.name(), self.peers.display());
            format!(
                "{name} is left out: it is not in {directory}; scripts/install-s3-peers installs it"
            )
        });
        (there, skipped.collect())
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Its kind.
    pub kind: Kind,
    /// Where it listens.
    pub address: SocketAddr,
    process: Process,
}

impl Server {
    /// Starts a server with an empty directory under `directory`, and creates the bucket.
    pub async fn start(kind: Kind, programs: &Programs, directory: &Path) -> Result<Self> {
        let program = programs.peer(kind).context("the peer is installed")?;
        let (process, address) = match kind {
            Kind::Landfast => {
                Process::landfast_s3(&program, directory, (ACCESS_KEY, SECRET_KEY)).await?
            }
            Kind::Redis => {
                let process = Process::redis(directory, "none").await?;
                let address = process.address;
                (process, address)
            }
            Kind::Minio | Kind::Versitygw => {
                let address = free_address()?;
                let command = peer_command(kind, &program, directory, address)?;
                let log = directory.join(format!("{}.log", kind.name()));
                (
                    Process::peer(kind.name(), command, address, &log).await?,
                    address,
                )
            }
        };
        let server = Self {
            kind,
            address,
            process,
        };
        server.create_bucket().await?;
        Ok(server)
    }

    /// A started server refuses requests for a moment.
    async fn create_bucket(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let mut connection = Connection::to(self.address, Arc::default()).await?;
            let created = connection.create_bucket(self.kind.protocol(), self.address);
            match created.await {
                Err(error) if started.elapsed() > BUCKET_WAIT => return Err(error),
                Err(_) => tokio::time::sleep(BUCKET_POLL).await,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// The CPU time of all of its processes so far.
    pub fn cpu(&self) -> Result<Duration> {
        tree::cpu(self.process.id())
    }

    /// The anonymous memory of its first process, and of the others together, in bytes.
    pub fn anonymous_bytes(&self) -> Result<(u64, u64)> {
        tree::anonymous_bytes(self.process.id())
    }

    /// Waits until it has done what its last load left it to do.
    pub async fn quiet(&self) -> Result<()> {
        let started = Instant::now();
        let mut taken = self.cpu()?;
        while started.elapsed() < QUIET_WAIT {
            tokio::time::sleep(QUIET_LOOK).await;
            let before = taken;
            taken = self.cpu()?;
            if taken.saturating_sub(before) <= QUIET_CPU {
                break;
            }
        }
        Ok(())
    }

    /// Halts it, unless it is Landfast.
    pub fn pause(&self) -> Result<()> {
        match self.kind {
            Kind::Landfast => Ok(()),
            Kind::Redis | Kind::Minio | Kind::Versitygw => self.process.pause(),
        }
    }

    /// Resumes it.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Ends it.
    pub async fn stop(self) -> Result<()> {
        self.process.resume()?;
        self.process.stop().await
    }
}

fn peer_command(
    kind: Kind,
    program: &Path,
    directory: &Path,
    address: SocketAddr,
) -> Result<Command> {
    let name = kind.name().to_lowercase();
    let data = fresh(&directory.join(&name))?;
    let mut command = Command::new(program);
    if kind == Kind::Minio {
        command
            .args(["server", "--address", &address.to_string()])
            .arg(&data)
            .env("MINIO_ROOT_USER", ACCESS_KEY)
            .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
            .env("MINIO_BROWSER", "off");
    } else {
        ensure!(kind == Kind::Versitygw, "no command is known for {name}");
        // The metadata lies beside the data, because not every disk has extended attributes. Its path must not begin with that of
        // the data: versitygw takes it for a folder of it.
        let sidecar = fresh(&directory.join(format!("metadata-{name}")))?;
        command
            .args([
                "--quiet",
                "--keep-alive",
                "--port",
                &address.to_string(),
                "posix",
                "--sidecar",
            ])
            .arg(&sidecar)
            .arg(&data)
            .env("ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("ROOT_SECRET_KEY", SECRET_KEY);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_installed_is_left_out() {
        let programs = Programs {
            landfast: "landfast".into(),
            peers: "/nonexistent".into(),
        };
        let (there, skipped) = programs.installed(&[Kind::Landfast, Kind::Redis, Kind::Minio]);
        assert_eq!(there, [Kind::Landfast, Kind::Redis]);
        assert_eq!(skipped.len(), 1);
        assert!(skipped[0].starts_with("MinIO is left out"), "{skipped:?}");
    }
}
