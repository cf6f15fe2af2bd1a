//! The configured provider for the rest of the program: its ports and its figures.

use std::{env, io::Write, sync::Arc, time::Duration};

use anyhow::Context as _;
use embedded::{
    Embedded, Health, LockedDirectory, ObjectDirectory,
    backup::{Beside, Contents},
};
use http_frontend::status::{Journal, Store};
use in_process::{Functions, SystemEntropy};
use item_objects::ItemObjects;
use ports::{KeyValue, LogThrottle, Monotonic, Queue, QueueAdmin, objects::ObjectStore};
use redis_provider::{OpenError, Redis};
use tokio::time::Instant;

use crate::settings::{ObjectSettings, Settings, StoreSettings};
use s3_objects::Keys;

/// The time for a shared store to respond at a start: it often starts beside us.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const OPEN_AGAIN: Duration = Duration::from_millis(250);
/// A message belongs to the process that received it for this long after its last sign of life.
/// Then the next process handles it.
const MESSAGES_HIDDEN: Duration = Duration::from_secs(2);
/// How long a start waits for the lock of the data directory. Its last owner may be about to end.
const LOCK_MAX: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const LOCK_AGAIN: Duration = Duration::from_millis(50);
/// The interval of checks of the directory of objects.
const LOOK_AT_OBJECTS: Duration = Duration::from_secs(1);
/// The hash tag of coordination's items in a cluster. They share a slot, because they change
/// together.
const COORDINATION_SLOT: &str = "coordination";
/// The hash tag of the rows of S3's objects in a cluster, for the same reason.
const MEMORY_SLOT: &str = "memory";

/// The place of all data: its ports.
#[derive(Debug)]
pub(crate) struct Provider {
    /// Items, spread over all servers. The embedded store includes its reserve: services check for
    /// space themselves before they take data that stays (rule P6).
    pub(crate) key_value: Arc<dyn KeyValue>,
    /// Items that change together across partitions, which coordination needs.
    pub(crate) key_value_that_transacts: Arc<dyn KeyValue>,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) queue_admin: Arc<dyn QueueAdmin>,
    /// Queues of clients.
    pub(crate) queue_of_effects: Arc<dyn Queue>,
    /// Objects: files beside the embedded store, items in a shared one.
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The rows of S3's objects, which change together across partitions.
    pub(crate) memory_rows: Arc<dyn KeyValue>,
    /// The content of S3's objects.
    pub(crate) memory_objects: Arc<dyn ObjectStore>,
    /// Functions over the internal queues.
    pub(crate) functions: Arc<Functions>,
    store: Opened,
}

#[derive(Debug)]
enum Opened {
    Embedded(Embedded),
    /// Redis or Valkey, as transactions use it.
    Redis(Redis),
}

impl Provider {
    /// `locked` is the data directory, if everything is kept there.
    pub(crate) async fn open(
        settings: &Settings,
        locked: Option<LockedDirectory>,
    ) -> anyhow::Result<Self> {
        match (&settings.store, locked) {
            (StoreSettings::Embedded, locked) => {
                let locked = locked.context("the data directory is not locked")?;
                open_embedded(settings, locked).await.map(Self::embedded)
            }
            (StoreSettings::Redis(config), _) => {
                // After the large values of a transaction a lease would expire before its renewal
                // arrives, so coordination has connections of its own.
                let transactions = open_redis(config).await?;
                Ok(Self::redis(transactions, &open_redis(config).await?))
            }
        }
    }

    fn embedded(store: Embedded) -> Self {
        Self {
            key_value: store.key_value_with_reserve(),
            key_value_that_transacts: store.key_value_with_reserve(),
            queue: store.queue(),
            queue_admin: store.queue_admin(),
            queue_of_effects: store.queue(),
            objects: store.objects(),
            memory_rows: store.key_value_with_reserve(),
            memory_objects: store.objects(),
            functions: Arc::new(Functions::with_busy_thread(store.queue())),
            store: Opened::Embedded(store),
        }
    }

    fn redis(transactions: Redis, coordination: &Redis) -> Self {
        let in_one_slot = |store: &Redis, slot| {
            if store.status().is_cluster {
                store.key_value_in_one_slot(slot)
            } else {
                store.key_value()
            }
        };
        let (queue, entropy) = (coordination.queue(), SystemEntropy::default());
        let functions = Functions::over_shared_queue(queue, MESSAGES_HIDDEN, &entropy);
        Self {
            key_value: transactions.key_value(),
            key_value_that_transacts: in_one_slot(coordination, COORDINATION_SLOT),
            queue: coordination.queue(),
            queue_admin: coordination.queue_admin(),
            queue_of_effects: transactions.queue(),
            objects: Arc::new(ItemObjects::new(coordination.key_value())),
            // Content is large, so it must not pass coordination's connections.
            memory_rows: in_one_slot(&transactions, MEMORY_SLOT),
            memory_objects: Arc::new(ItemObjects::new(transactions.key_value())),
            functions: Arc::new(functions),
            store: Opened::Redis(transactions),
        }
    }

    /// Whether other processes reach the store too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.store, Opened::Redis(_))
    }

    /// The number of queue groups whose first message has failed permanently, if the provider knows
    /// it without a query.
    pub(crate) fn blocked_groups(&self) -> Option<u64> {
        let store = self.embedded_store()?;
        Some(store.status().blocked_groups as u64)
    }

    pub(crate) fn journal(&self) -> Option<Journal> {
        Some(journal(self.embedded_store()?.status()))
    }

    pub(crate) fn shared_store(&self) -> Option<Store> {
        let Opened::Redis(store) = &self.store else {
            return None;
        };
        let status = store.status();
        Some(Store {
            servers: status.servers,
            acknowledged: status.acknowledged.name(),
            serving: status.trouble.is_none(),
            trouble: status.trouble,
        })
    }

    /// The number of the restore that made the store, if one did.
    pub(crate) fn timeline(&self) -> Option<u64> {
        self.embedded_store()?.timeline()
    }

    /// Writes a backup of everything. It blocks; call it where a runtime can be waited for.
    pub(crate) fn back_up(&self, beside: &Beside, out: &mut dyn Write) -> anyhow::Result<Contents> {
        let store = self.embedded_store();
        let store = store.context("only the embedded store has backups of its own")?;
        Ok(store.back_up(beside, out)?)
    }

    /// Makes everything durable and closes the store. In a shared one all acknowledged data is as
    /// durable as it will be.
    pub(crate) async fn close(&self) {
        if let Some(store) = self.embedded_store() {
            store.close().await;
        }
    }

    fn embedded_store(&self) -> Option<&Embedded> {
        match &self.store {
            Opened::Embedded(store) => Some(store),
            Opened::Redis(_) => None,
        }
    }
}

/// The place of objects that the settings name beside any provider.
#[derive(Debug, Clone)]
pub(crate) enum NamedObjects {
    Directory(ObjectDirectory),
    /// Elsewhere: slow, and away at times.
    Distant(Arc<dyn ObjectStore>),
}

impl NamedObjects {
    /// Opens the object store that the settings name. A distant store may be away.
    pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Option<Self>> {
        match &settings.objects {
            None => Ok(None),
            Some(ObjectSettings::Directory(directory)) => {
                let opened = embedded::open_objects(directory.clone()).await;
                let named = || format!("--objects file://{}", directory.display());
                Ok(Some(Self::Directory(opened.with_context(named)?)))
            }
            Some(ObjectSettings::S3(config)) => {
                let named = || format!("--objects {config}");
                let keys = Keys::from_environment(|name| env::var(name).ok());
                let opened = s3_objects::open(config, &keys.with_context(named)?);
                Ok(Some(Self::Distant(opened.with_context(named)?)))
            }
        }
    }

    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::Directory(directory) => directory.objects(),
            Self::Distant(objects) => Arc::clone(objects),
        }
    }

    pub(crate) fn directory(&self) -> Option<&ObjectDirectory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Distant(_) => None,
        }
    }
}

/// Checks repeatedly that the directory of objects is the one that was opened, so that a lost mount
/// is noticed without writes.
pub(crate) async fn look_at_objects(objects: Option<NamedObjects>) {
    let Some(objects) = objects.as_ref().and_then(NamedObjects::directory) else {
        return;
    };
    loop {
        if let Err(error) = objects.check().await {
            tracing::debug!(%error, "the directory of objects is missing");
        }
        tokio::time::sleep(LOOK_AT_OBJECTS).await;
    }
}

/// Locks the data directory, if everything is kept there.
///
/// A killed server may still be about to end, or have left a child that has not executed its program
/// yet. For that moment they have the lock.
pub(crate) async fn lock(settings: &Settings) -> anyhow::Result<Option<LockedDirectory>> {
    if settings.store != StoreSettings::Embedded {
        return Ok(None);
    }
    let began = Instant::now();
    let mut is_waiting = false;
    loop {
        match LockedDirectory::take(embedded::Config::new(&settings.data_dir)).await {
            Err(embedded::OpenError::Locked { pid }) if began.elapsed() < LOCK_MAX => {
                if !std::mem::replace(&mut is_waiting, true) {
                    tracing::info!(
                        "{}: process {pid} has it; trying for {LOCK_MAX:?}",
                        at_data_dir(settings)
                    );
                }
                tokio::time::sleep(LOCK_AGAIN).await;
            }
            taken => {
                let taken = taken.with_context(|| at_data_dir(settings));
                return taken.map(Some);
            }
        }
    }
}

fn at_data_dir(settings: &Settings) -> String {
    format!("--data-dir {}", settings.data_dir.display())
}

async fn open_embedded(settings: &Settings, locked: LockedDirectory) -> anyhow::Result<Embedded> {
    let opened = locked.open().await;
    let store = opened.with_context(|| at_data_dir(settings))?;
    if let Some(cut) = store.status().recovery.cut {
        let (file, offset) = (cut.file.display(), cut.offset);
        let (missing, bytes) = (cut.missing, cut.bytes);
        if missing > 0 {
            tracing::warn!(%file, offset, missing, "the journal's last file was truncated, which no crash does: the last acknowledged writes may be lost");
        } else {
            tracing::warn!(%file, offset, bytes, "the journal ended in the middle of a record, which was cut off: a crash tore it before it was acknowledged, or the disk has damaged it since");
        }
    }
    Ok(store)
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
