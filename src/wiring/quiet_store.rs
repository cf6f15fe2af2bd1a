//! The volumes of a data directory that no server uses, for a command that works without a server.
//!
//! The lock of the directory keeps servers away. The engine of transactions starts as in a server,
//! and ends in order. It sends no effects and collects no garbage, and the next server does. Nothing
//! listens.

use std::sync::Arc;

use anyhow::{Context as _, ensure};

use super::{not_started, start_in_time, transactions};
use crate::{
    provider::{self, NamedObjects, Provider},
    settings::{ObjectSettings, Settings, StoreSettings},
    startup_error,
};

/// The open store.
#[derive(Debug)]
pub(crate) struct QuietStore {
    provider: Provider,
    transactions: transactions::Service,
    /// The first damage of the checkpoint store, if it was read back and is damaged.
    damage: Option<String>,
}

impl QuietStore {
    /// Opens the store, which must be there. With `verifies` its checkpoint store is read back
    /// first.
    pub(crate) async fn open(settings: &Settings, verifies: bool) -> anyhow::Result<Self> {
        check_places(settings)?;
        let locked = provider::lock(settings).await.map_err(in_use)?;
        let mut damage = None;
        if let (true, Some(locked)) = (verifies, &locked) {
            damage = match locked.verify().await {
                // It has no checkpoint yet, or the start says what is missing.
                Ok(_) | Err(embedded::OpenError::Missing { .. }) => None,
                Err(error) => Some(startup_error::of(&error.into())),
            };
        }
        let provider = Provider::open(settings, locked).await?;
        let opened = Self::start(settings, &provider).await;
        match opened {
            Ok(transactions) => Ok(Self {
                provider,
                transactions,
                damage,
            }),
            Err(error) => {
                provider.close().await;
                Err(match damage {
                    Some(damage) => error.context(damage),
                    None => error,
                })
            }
        }
    }

    async fn start(
        settings: &Settings,
        provider: &Provider,
    ) -> anyhow::Result<transactions::Service> {
        let packs = NamedObjects::open(settings).await?;
        let config = transactions::Config {
            collects: false,
            ..Default::default()
        };
        let destinations = transactions::Destinations::default();
        let meter = Arc::default();
        let service = transactions(provider, &meter, packs.as_ref(), None, destinations, config);
        start_in_time(&service, false).await.map_err(not_started)?;
        Ok(service)
    }

    pub(crate) fn engine(&self) -> transactions::Engine {
        self.transactions.engine()
    }

    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Errors: the store has a place of objects, and the settings name none. What lies there would
    /// be left out.
    pub(crate) async fn require_objects(&self, settings: &Settings) -> anyhow::Result<()> {
        let home = self
            .provider
            .key_value
            .get(&transactions::layout::packs_home())
            .await?;
        ensure!(
            home.value.is_none() || settings.objects.is_some(),
            "the store keeps objects elsewhere: give with --objects (LANDFAST_OBJECTS) what its server was given"
        );
        Ok(())
    }

    /// The first damage of the checkpoint store.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Makes everything durable and frees the directory.
    pub(crate) async fn close(self) {
        self.transactions.leave().await;
        self.provider.close().await;
    }
}

/// Errors: a place does not exist, or has no store of this release. A command makes none.
fn check_places(settings: &Settings) -> anyhow::Result<()> {
    ensure!(
        settings.store == StoreSettings::Embedded,
        "several servers may use {}: run a server of it, and leave out --offline",
        settings.store.name()
    );
    let data_dir = &settings.data_dir;
    let named = || format!("--data-dir {}", data_dir.display());
    ensure!(
        data_dir.is_dir(),
        "{}: there is no such directory; give that of the server",
        named()
    );
    let format = embedded::format_of(data_dir).with_context(named)?;
    ensure!(
        format.is_some(),
        "{}: no server has kept anything there; give that of the server",
        named()
    );
    if let Some(ObjectSettings::Directory(directory)) = &settings.objects {
        ensure!(
            directory.is_dir(),
            "--objects file://{}: there is no such directory; give that of the server",
            directory.display()
        );
    }
    Ok(())
}

fn in_use(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(embedded::OpenError::Locked { .. }) => {
            error.context("leave out --offline while a server runs, and it does the work")
        }
        _ => error,
    }
}
