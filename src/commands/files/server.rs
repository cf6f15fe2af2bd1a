//! The server whose volumes a command uses.

use std::{
    ffi::OsString,
    fs::File,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use clap::Args;
use in_process::SystemEntropy;
use transactions::serializable::{VolumeStore, Volumes as _, volumes::VolumeName};
use volumes_frontend::{RemoteVolumes, remote::Config};

/// The name of the server's socket in its data directory.
const SOCKET: &str = "volumes.sock";

/// How to reach the server.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The data directory of the server, which runs on this machine
    #[arg(
        long,
        env = "LANDFAST_DATA_DIR",
        value_name = "DIR",
        default_value = "landfast-data"
    )]
    data_dir: PathBuf,
    /// The server's socket for volumes [default: volumes.sock in the data directory]
    #[arg(long, env = "LANDFAST_VOLUMES_SOCKET", value_name = "PATH")]
    volumes_socket: Option<PathBuf>,
}

/// The place of a server's socket.
#[derive(Debug)]
pub(crate) struct Place {
    /// For errors.
    path: PathBuf,
    /// By this descriptor the socket is found even if a mount covers its path.
    directory: File,
    name: OsString,
}

impl Server {
    /// The place of its socket. Find it before a mount may cover its path.
    pub(crate) fn place(&self) -> anyhow::Result<Place> {
        let path = self.volumes_socket.clone();
        let path = path.unwrap_or_else(|| self.data_dir.join(SOCKET));
        let path = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("{}: it must be the path of a socket", path.display());
        };
        let directory = File::open(parent).with_context(|| no_server(&path))?;
        let name = name.to_owned();
        Ok(Place {
            path,
            directory,
            name,
        })
    }
}

impl Place {
    /// The volume `name` of the server. This place must live as long as it is used.
    pub(crate) async fn volume(&self, name: &VolumeName) -> anyhow::Result<Arc<dyn VolumeStore>> {
        let directory = self.directory.as_raw_fd().to_string();
        let path = Path::new("/proc/self/fd").join(directory).join(&self.name);
        let entropy = SystemEntropy::default();
        let connected = RemoteVolumes::connect(Config::new(path), &entropy).await;
        let volumes = connected.with_context(|| no_server(&self.path))?;
        let opened = volumes.open(name).await;
        opened.with_context(|| format!("the volume {name}"))
    }
}

fn no_server(path: &Path) -> String {
    let path = path.display();
    format!(
        "no server answers at {path}; start one by landfast serve, or name its data directory by --data-dir"
    )
}
