//! Key-value items, queues and objects in one process over one data directory.
//!
//! Items and queue messages are records of one engine: a journal with group commit, an overlay of
//! the records changed since the last checkpoint, and a checkpoint store below it. A mutation
//! changes memory and returns. [`externalize`](ports::Externalize::externalize) waits for the disk,
//! and one sync serves all waiting callers. The design and its behaviour when a step fails are in
//! `docs/design/0001-embedded-journal.md`.
//!
//! Reading order: [`records`], [`store`], [`engine`]; then [`journal`] and [`checkpoint_store`];
//! then one module per port.
//!
//! The data directory holds `LOCK`, `format`, `journal/NNNNNNNN.log` with one `spare-N`,
//! `state.redb`, `ballast` and `objects/`.

#![allow(rustdoc::private_intra_doc_links)]
#![allow(
    clippy::disallowed_methods,
    reason = "clocks and threads live in providers"
)]

pub mod backup;
mod ballast;
mod checkpoint_store;
mod config;
mod directory;
mod durability;
mod engine;
mod error;
mod externalize;
mod journal;
mod key_value;
mod objects;
mod queue;
mod queues;
mod records;
mod status;
#[doc(hidden)]
pub mod storage;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use object_store::ObjectStore;
use ports::{KeyValue, Queue, QueueAdmin};
use tokio::task::JoinError;

pub use config::Config;
pub use error::OpenError;
pub use objects::{OBJECT_LIMITS, ObjectDirectory};
pub use status::{Cut, Health, RecoveryReport, Status};
pub use storage::in_the_way;

use crate::{
    directory::{format, layout, lock::DirectoryLock},
    engine::Engine,
    journal::recovery,
    key_value::Items,
    objects::Writers,
    storage::DiskStorage,
    store::UseReserve,
};

/// Opens a directory of objects, and creates it if it is missing.
pub async fn open_objects(directory: PathBuf) -> Result<ObjectDirectory, OpenError> {
    let opened = tokio::task::spawn_blocking(move || {
        objects::open(&directory, Arc::new(DiskStorage), Writers::Others)
    });
    opened
        .await
        .map_err(|error| OpenError::io("open the objects")(std::io::Error::other(error)))?
}

/// Reads the format of a data directory from its format record; none if the directory holds nothing
/// yet. Changes nothing.
///
/// Errors: those with which [`Embedded::open`] refuses a bad or missing record.
pub fn format_of(data_dir: &Path) -> Result<Option<u32>, OpenError> {
    Ok(format::find(&DiskStorage, data_dir)?.map(|_| format::FORMAT))
}

/// Reads the whole checkpoint store of a data directory back and counts its records. Answers none
/// if the directory holds nothing yet. Changes nothing. The store must not be open.
///
/// Errors: the first damage met, with file and offset; `Locked` if the store is open.
pub fn verify(data_dir: &Path) -> Result<Option<u64>, OpenError> {
    if format::find(&DiskStorage, data_dir)?.is_none() {
        return Ok(None);
    }
    let _lock = DirectoryLock::take(data_dir)?;
    verify_locked(data_dir)
}

fn verify_locked(data_dir: &Path) -> Result<Option<u64>, OpenError> {
    let Some(format) = format::find(&DiskStorage, data_dir)? else {
        return Ok(None);
    };
    checkpoint_store::verify(&DiskStorage, data_dir, format).map(Some)
}

/// The result of [`inspect_journal`]: a preview of the next start of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// The state of the journal.
    pub journal: RecoveryReport,
    /// The file of the checkpoint store, if a crash or damage tore one of its two heads. A start
    /// uses the other head and writes both again.
    pub torn_head: Option<PathBuf>,
}

/// Reads the journal of a data directory as the next start would; none if the directory holds
/// nothing yet. Changes nothing. The store must not be open.
///
/// Errors: those with which [`Embedded::open`] refuses the journal; `Locked` if the store is open.
pub fn inspect_journal(data_dir: &Path) -> Result<Option<Inspection>, OpenError> {
    let storage = &DiskStorage;
    let Some(format) = format::find(storage, data_dir)? else {
        return Ok(None);
    };
    let _lock = DirectoryLock::take(data_dir)?;
    let journal = data_dir.join(layout::JOURNAL);
    recovery::check_for_checkpoint(storage, data_dir, &journal)?;
    let checkpoint_store::Inspection {
        checkpoint_end,
        torn,
    } = checkpoint_store::inspect(storage, data_dir, format)?;
    Ok(Some(Inspection {
        journal: recovery::inspect(storage, &journal, format, checkpoint_end)?,
        torn_head: torn,
    }))
}

/// A data directory that no other process can open, before its store is opened.
///
/// A server takes the lock first: until then, its addresses may belong to another server that
/// works on this directory.
#[derive(Debug)]
pub struct LockedDirectory {
    config: Config,
    lock: DirectoryLock,
}

impl LockedDirectory {
    /// Locks the data directory, and creates it if it is missing.
    ///
    /// Errors: `Locked` with the process that has it, and others.
    pub async fn take(config: Config) -> Result<Self, OpenError> {
        let taken = tokio::task::spawn_blocking(move || {
            let lock = DirectoryLock::take_or_make(&config)?;
            Ok(Self { config, lock })
        });
        joined(taken.await)
    }

    /// Reads the whole checkpoint store back, as [`verify`] does.
    pub async fn verify(&self) -> Result<Option<u64>, OpenError> {
        let data_dir = self.config.data_dir.clone();
        joined(tokio::task::spawn_blocking(move || verify_locked(&data_dir)).await)
    }

    /// Opens the store and recovers its content. If the caller drops this future, the directory is
    /// released as soon as the open would have ended.
    pub async fn open(self) -> Result<Embedded, OpenError> {
        // The task returns a whole store. If the caller is gone, dropping that store ends its
        // threads.
        joined(tokio::task::spawn_blocking(move || Embedded::open_now(self)).await)
    }
}

fn joined<T>(ended: Result<Result<T, OpenError>, JoinError>) -> Result<T, OpenError> {
    let broken = OpenError::io("open the data directory");
    ended.map_err(|error| broken(std::io::Error::other(error)))?
}

/// An open store. Dropping it without [`Embedded::close`] loses what was not externalized, as a crash would.
#[derive(Debug)]
pub struct Embedded {
    engine: Arc<Engine>,
    objects: ObjectDirectory,
}

impl Embedded {
    /// Opens the data directory and recovers its content. If the caller drops this future, the
    /// directory is released as soon as the open would have ended.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        let opened = tokio::task::spawn_blocking(move || {
            let lock = DirectoryLock::take_or_make(&config)?;
            Self::open_now(LockedDirectory { config, lock })
        });
        joined(opened.await)
    }

    fn open_now(LockedDirectory { config, lock }: LockedDirectory) -> Result<Self, OpenError> {
        let engine = Engine::open_locked(config, lock)?;
        let directory = engine.parts.config.data_dir.join(layout::OBJECTS);
        let storage = Arc::clone(&engine.parts.config.storage);
        let opened = objects::open(&directory, storage, Writers::ThisProcess);
        let mut objects = opened.inspect_err(|_| engine.shut_down(false))?;
        if engine.parts.config.acknowledge_before_sync {
            objects = objects.acknowledging_before_sync();
        }
        if engine.parts.config.release_deleted_objects {
            objects = objects.releasing_deleted();
        }
        Ok(Self { engine, objects })
    }

    /// The key-value port.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        self.items(UseReserve::No)
    }

    /// The key-value port for a service whose changes must go on when the disk is full: it may use
    /// the reserve, except a part for deletions alone. The service asks [`KeyValue::has_room`] before it begins work that adds data.
    pub fn key_value_with_reserve(&self) -> Arc<dyn KeyValue> {
        self.items(UseReserve::Shared)
    }

    fn items(&self, reserve: UseReserve) -> Arc<dyn KeyValue> {
        let engine = Arc::clone(&self.engine);
        Arc::new(Items { engine, reserve })
    }

    /// The queue port.
    pub fn queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.engine) as Arc<dyn Queue>
    }

    /// The administration of the queues.
    pub fn queue_admin(&self) -> Arc<dyn QueueAdmin> {
        Arc::clone(&self.engine) as Arc<dyn QueueAdmin>
    }

    /// Objects as files in the data directory.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        self.objects.objects()
    }

    /// The random number of the restore that made this store, none if it was never restored. Names
    /// derived from stored numbers contain it: the store went on after the backup, and its objects
    /// of that time may still be there.
    pub fn timeline(&self) -> Option<u64> {
        self.engine.parts.format.timeline
    }

    /// The present state of the store, in figures.
    pub fn status(&self) -> Status {
        let mut status = self.engine.status();
        if self.objects.is_full() {
            status.is_full = true;
        }
        status
    }

    /// Makes everything durable, writes a checkpoint and releases the directory. Later calls return
    /// `Unavailable`.
    pub async fn close(&self) {
        let engine = Arc::clone(&self.engine);
        if let Err(error) = tokio::task::spawn_blocking(move || engine.shut_down(true)).await {
            tracing::error!(%error, "the store was not closed in order; its journal holds everything");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.engine.shut_down(false);
    }
}
