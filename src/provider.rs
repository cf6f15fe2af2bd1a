//! The configured provider for the rest of the program: its ports and its figures.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use embedded::{Embedded, Health, ObjectDirectory};
use http_frontend::status::{Journal, Store};
use in_process::{Functions, SystemEntropy};
use item_objects::ItemObjects;
use ports::{KeyValue, LogThrottle, Monotonic, Queue, QueueAdmin, objects::ObjectStore};
use redis_provider::{OpenError, Redis};
use tokio::time::Instant;

use crate::config::{Settings, StoreSettings};

/// The time for a shared store to respond at a start: it often starts beside us.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const OPEN_AGAIN: Duration = Duration::from_millis(250);
/// A message belongs to the process that received it for this long after its last sign of life.
/// Then the next process handles it.
const MESSAGES_HIDDEN: Duration = Duration::from_secs(2);
/// The interval of checks of the directory of objects.
const LOOK_AT_OBJECTS: Duration = Duration::from_secs(1);
/// The hash tag of coordination's items in a cluster. They share a slot, because they change
/// together.
const COORDINATION_SLOT: &str = "coordination";

/// The place of all data.
#[derive(Debug)]
pub(crate) enum Provider {
    /// One process, one data directory.
    Embedded(Embedded),
    /// Redis or Valkey.
    Redis(Box<Shared>),
}

/// A shared store with separate connections for coordination: after the large values of a
/// transaction a lease would expire before its renewal arrives.
#[derive(Debug)]
pub(crate) struct Shared {
    transactions: Redis,
    coordination: Redis,
}

impl Provider {
    /// Opens the store that the settings name.
    pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        match &settings.store {
            StoreSettings::Embedded => open_embedded(settings).await.map(Self::Embedded),
            StoreSettings::Redis(config) => {
                open_shared(config).await.map(Box::new).map(Self::Redis)
            }
        }
    }

    /// Whether other processes reach the store too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Items, spread over all servers. The embedded store includes its reserve: services check for
    /// space themselves before they take data that stays (rule P6).
    pub(crate) fn key_value(&self) -> Arc<dyn KeyValue> {
        match self {
            Self::Embedded(store) => store.key_value_with_reserve(),
            Self::Redis(store) => store.transactions.key_value(),
        }
    }

    /// Items that change together across partitions, which coordination needs.
    pub(crate) fn key_value_that_transacts(&self) -> Arc<dyn KeyValue> {
        match self {
            Self::Redis(store) if store.coordination.status().is_cluster => {
                store.coordination.key_value_in_one_slot(COORDINATION_SLOT)
            }
            Self::Redis(store) => store.coordination.key_value(),
            Self::Embedded(_) => self.key_value(),
        }
    }

    /// Internal queues.
    pub(crate) fn queue(&self) -> Arc<dyn Queue> {
        match self {
            Self::Embedded(store) => store.queue(),
            Self::Redis(store) => store.coordination.queue(),
        }
    }

    /// The administration of the house's queues.
    pub(crate) fn queue_admin(&self) -> Arc<dyn QueueAdmin> {
        match self {
            Self::Embedded(store) => store.queue_admin(),
            Self::Redis(store) => store.coordination.queue_admin(),
        }
    }

    /// Queues of clients.
    pub(crate) fn queue_of_effects(&self) -> Arc<dyn Queue> {
        match self {
            Self::Embedded(store) => store.queue(),
            Self::Redis(store) => store.transactions.queue(),
        }
    }

    /// Objects: files beside the embedded store, items in a shared one.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::Embedded(store) => store.objects(),
            Self::Redis(store) => Arc::new(ItemObjects::new(store.coordination.key_value())),
        }
    }

    /// Functions over the queues.
    pub(crate) fn functions(&self) -> Functions {
        match self {
            Self::Embedded(store) => Functions::new(store.queue()),
            Self::Redis(store) => Functions::over_shared_queue(
                store.coordination.queue(),
                MESSAGES_HIDDEN,
                &SystemEntropy::default(),
            ),
        }
    }

    /// The number of queue groups whose first message has failed permanently, if the provider knows
    /// it without a query.
    pub(crate) fn blocked_groups(&self) -> Option<u64> {
        match self {
            Self::Embedded(store) => Some(store.status().blocked_groups as u64),
            Self::Redis(_) => None,
        }
    }

    /// The journal's figures, if there is one.
    pub(crate) fn journal(&self) -> Option<Journal> {
        match self {
            Self::Embedded(store) => Some(journal(store.status())),
            Self::Redis(_) => None,
        }
    }

    /// The shared store's figures, if there is one.
    pub(crate) fn store(&self) -> Option<Store> {
        match self {
            Self::Embedded(_) => None,
            Self::Redis(store) => {
                let status = store.transactions.status();
                Some(Store {
                    servers: status.servers,
                    acknowledged: status.acknowledged.name(),
                    serving: status.trouble.is_none(),
                    trouble: status.trouble,
                })
            }
        }
    }

    /// Makes everything durable and closes the store.
    pub(crate) async fn close(&self) {
        match self {
            Self::Embedded(store) => store.close().await,
            // All acknowledged data is as durable as it will be.
            Self::Redis(_) => {}
        }
    }
}

/// The directory for the values of transactions, if the settings name one, with any provider.
pub(crate) async fn open_objects(settings: &Settings) -> anyhow::Result<Option<ObjectDirectory>> {
    let Some(directory) = &settings.objects else {
        return Ok(None);
    };
    let opened = embedded::open_objects(directory.clone()).await;
    opened
        .map(Some)
        .with_context(|| format!("--objects file://{}", directory.display()))
}

/// Checks repeatedly that the directory of objects is the one that was opened, so that a lost mount
/// is noticed without writes.
pub(crate) async fn look_at_objects(objects: Option<ObjectDirectory>) {
    let Some(objects) = objects else { return };
    loop {
        if let Err(error) = objects.check().await {
            tracing::debug!(%error, "the directory of objects is missing");
        }
        tokio::time::sleep(LOOK_AT_OBJECTS).await;
    }
}

async fn open_embedded(settings: &Settings) -> anyhow::Result<Embedded> {
    let opened = Embedded::open(embedded::Config::new(&settings.data_dir)).await;
    let store = opened.with_context(|| format!("--data-dir {}", settings.data_dir.display()))?;
    let cut = store.status().recovery.cut;
    if let Some(cut) = cut.as_ref().filter(|cut| cut.missing > 0) {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            missing = cut.missing,
            "the journal's last file was truncated, which no crash does: the last acknowledged writes may be lost"
        );
    } else if let Some(cut) = cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            bytes = cut.bytes,
            "the journal ended in the middle of a record, which was cut off: a crash tore it before it was acknowledged, or the disk has damaged it since"
        );
    }
    Ok(store)
}

async fn open_shared(config: &redis_provider::Config) -> anyhow::Result<Shared> {
    Ok(Shared {
        transactions: open_redis(config).await?,
        coordination: open_redis(config).await?,
    })
}

async fn open_redis(config: &redis_provider::Config) -> anyhow::Result<Redis> {
    let started = Instant::now();
    let mut outage = LogThrottle::default();
    let store = loop {
        match Redis::open(config).await {
            Err(error @ OpenError::Unreachable { .. }) if started.elapsed() < OPEN_MAX => {
                if let Some(lasts) = outage.failed(Monotonic(started.elapsed()), &error.to_string())
                {
                    tracing::warn!(%error, ?lasts, "--store cannot be reached yet; trying for {OPEN_MAX:?}");
                }
                tokio::time::sleep(OPEN_AGAIN).await;
            }
            opened => break opened.context("--store")?,
        }
    };
    if let Some(lasted) = outage.ended(Monotonic(started.elapsed())) {
        tracing::info!(?lasted, "--store can be reached");
    }
    for warning in store.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(store)
}

fn journal(status: embedded::Status) -> Journal {
    let failed = match &status.health {
        Health::FallingBack(reason) => Some(reason.clone()),
        Health::Serving | Health::Closed => None,
    };
    Journal {
        serving: status.health == Health::Serving,
        full: status.is_full,
        trouble: failed.or(status.damage).or(status.checkpoint_error),
        bytes: status.journal_bytes,
        position: status.ordered.position.0,
        durable: status.durable.position.0,
        syncs: status.fsyncs,
        checkpoints: status.checkpoints,
    }
}
