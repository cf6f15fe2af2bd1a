//! The engine in this process, and a store on the disk for it.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use in_process::{SystemClock, SystemEntropy};
use ports::key_value::SharedKeyValue;
use tokio::task::JoinSet;
use transactions::{Config, Engine, Parts, Service, packing::SharedObjects};

/// The journal that is folded at a time, where it is folded often.
const FOLD_BYTES: u64 = 16 << 20;

/// An engine over `key_value`, and what runs beside it.
pub async fn start(key_value: SharedKeyValue, config: Config) -> Result<(Engine, JoinSet<()>)> {
    run(Service::new(parts(key_value), config)).await
}

/// The same with values in packs among `objects`.
pub async fn start_packing(
    key_value: SharedKeyValue,
    objects: SharedObjects,
    config: Config,
) -> Result<(Engine, JoinSet<()>)> {
    run(Service::builder(parts(key_value))
        .objects(objects)
        .build(config))
    .await
}

fn parts(key_value: SharedKeyValue) -> Parts {
    Parts {
        key_value,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    }
}

async fn run(service: Service) -> Result<(Engine, JoinSet<()>)> {
    service.start().await.context("the engine starts")?;
    let engine = service.engine();
    let mut background = JoinSet::new();
    background.spawn(async move { service.run().await });
    Ok((engine, background))
}

/// A fresh store on the disk at `data`.
pub async fn embedded(data: &Path) -> Result<embedded::Embedded> {
    embedded_as(embedded::Config::new(data), data).await
}

/// A fresh store that folds its journal into the checkpoint store often, so that this follows what is stored.
pub async fn embedded_that_folds_often(data: &Path) -> Result<embedded::Embedded> {
    let config = embedded::Config {
        checkpoint_bytes: FOLD_BYTES,
        ..embedded::Config::new(data)
    };
    embedded_as(config, data).await
}

async fn embedded_as(config: embedded::Config, data: &Path) -> Result<embedded::Embedded> {
    if data.exists() {
        fs::remove_dir_all(data)?;
    }
    fs::create_dir_all(data)?;
    Ok(embedded::Embedded::open(config).await?)
}

/// How long the checkpoint store at `data` is. The journal beside it is as long as it was made, whatever is in it.
pub fn stored_bytes(data: &Path) -> Result<u64> {
    Ok(fs::metadata(data.join("state.redb"))?.len())
}
