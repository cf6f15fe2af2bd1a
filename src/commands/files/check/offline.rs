//! The check of a volume in a data directory that no server uses.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
};

use anyhow::Context as _;
use bytes::Bytes;
use files::check::{self, Counts, Options};
use in_process::{SystemClock, SystemEntropy};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;
use transactions::{
    Error,
    serializable::{
        model::{CheckedObjects, Unreferenced},
        volumes::VolumeName,
    },
};

use super::Check;
use crate::{commands::runtime, wiring::QuietStore};

/// The report of the server's check, and what only a quiet store shows.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    files: check::Report,
    /// Without data: `null`.
    objects: Option<CheckedObjects>,
    store_damage: Option<String>,
}

/// Checks the volume. Returns the report as JSON.
pub(super) fn check(asked: &Check) -> anyhow::Result<Bytes> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .with_max_level(LevelFilter::WARN)
        .with_target(false)
        .init();
    let report = runtime()?.block_on(async {
        let name = VolumeName::new(asked.volume.volume.as_str())?;
        let store = QuietStore::open(&asked.places.settle()?, !asked.metadata).await?;
        let checked = checked(asked, &store, &name).await;
        store.close().await;
        checked
    })?;
    Ok(serde_json::to_vec(&report)?.into())
}

async fn checked(asked: &Check, store: &QuietStore, name: &VolumeName) -> anyhow::Result<Report> {
    let at_volume = || format!("the volume {name}");
    let mut store_damage = store.damage().map(str::to_owned);
    let at_damage = || store_damage.clone().unwrap_or_else(at_volume);
    let engine = store.engine();
    let volume = engine.volumes().open(name).await.with_context(at_volume)?;
    // Its error says more than that of the check.
    volume.snapshot().await.with_context(at_volume)?;
    let options = Options {
        blocks: !asked.metadata,
        repair: asked.repair,
    };
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy::default()));
    let mut ignored = |_: &Counts| ();
    let files = check::run(volume, clock, entropy, options, &mut ignored).await;
    let files = files.with_context(at_damage)?;
    let others = if asked.repair {
        Unreferenced::Delete
    } else {
        Unreferenced::Count
    };
    let mut objects = None;
    if !asked.metadata {
        match engine.check_objects(name, others).await {
            Err(Error::Corrupt(why)) => {
                store_damage.get_or_insert_with(|| why.to_string());
            }
            checked => objects = Some(checked.with_context(at_volume)?),
        }
    }
    Ok(Report {
        files,
        objects,
        store_damage,
    })
}
