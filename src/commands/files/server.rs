//! The server whose volumes a command uses.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use transactions::serializable::{
    VolumeStore, Volumes as _,
    model::BlockBytes,
    volumes::{ModelVolumes, VolumeName, VolumeSettings},
};

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
}

impl Server {
    /// The volume `name` of the server.
    pub(crate) async fn volume(&self, name: &VolumeName) -> anyhow::Result<Arc<dyn VolumeStore>> {
        let volumes = ModelVolumes::default();
        let settings = VolumeSettings {
            block_bytes: BlockBytes::new(16384)?,
            quota_bytes: None,
        };
        volumes.create(name.clone(), settings).await?;
        volumes
            .open(name)
            .await
            .with_context(|| format!("volume {name} of {:?}", self.data_dir))
    }
}
