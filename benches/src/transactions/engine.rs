//! The engine in this process, and a store on the disk for it.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use in_process::{SystemClock, SystemEntropy};
use ports::key_value::SharedKeyValue;
use tokio::task::JoinSet;
use transactions::{Config, Engine, Parts, Service};

/// An engine over `key_value`, and what runs beside it.
pub async fn start(key_value: SharedKeyValue, config: Config) -> Result<(Engine, JoinSet<()>)> {
    let parts =
        Parts { key_value, clock: Arc::new(SystemClock::new()), entropy: Arc::new(SystemEntropy::default()) };
    let service = Service::new(parts, config);
    service.start().await.context("the engine starts")?;
    let engine = service.engine();
    let mut background = JoinSet::new();
    background.spawn(async move { service.run().await });
    Ok((engine, background))
}

/// A fresh store on the disk at `data`.
pub async fn embedded(data: &Path) -> Result<embedded::Embedded> {
    if data.exists() {
        fs::remove_dir_all(data)?;
    }
    fs::create_dir_all(data)?;
    Ok(embedded::Embedded::open(embedded::Config::new(data)).await?)
}

/// How many bytes the files below `directory` have, as the disk counts them.
pub fn stored_bytes(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A file may be gone by now: the journal drops segments.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { stored_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
