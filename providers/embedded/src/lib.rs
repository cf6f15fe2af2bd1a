//! Key-value items, queues and objects in one process over one data directory.
//!
//! Key-value items and queue messages are records of one engine: a journal with group commit, an overlay of
//! what changed since the last checkpoint, and a checkpoint store below. A mutation changes memory and
//! returns; [`externalize`](ports::Externalize::externalize) waits for the disk, and one sync serves all who
//! wait. Why it is built this way, and what happens when each step fails: `docs/design/0001-embedded-journal.md`.
//!
//! Reading order: [`mod@record`], [`overlay`], [`store`], [`engine`]; then [`journal`], [`recovery`] and
//! [`checkpoint`]; then one module per port.
//!
//! What is in the data directory: `LOCK`, `format`, `journal/NNNNNNNN.log` with one `spare-N`, `state.redb`,
//! `ballast`, `objects/`, and now and then `objects-trial-...` ([`mod@objects`]).

#![allow(rustdoc::private_intra_doc_links)]
#![allow(
    clippy::disallowed_methods,
    reason = "clocks and threads live in providers"
)]

mod ballast;
mod base;
mod blocks;
mod checkpoint;
mod codec;
mod config;
mod durability;
mod engine;
mod error;
mod format;
mod journal;
mod key_value;
mod objects;
mod overlay;
mod queue;
mod record;
mod recovery;
mod status;
#[doc(hidden)]
pub mod storage;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use object_store::{Error as ObjectError, ObjectStore};
use ports::{KeyValue, Queue, QueueAdmin};

pub use config::Config;
pub use error::OpenError;
pub use objects::OBJECT_LIMITS;
pub use status::{Cut, Health, RecoveryReport, Room, Status};
pub use storage::in_the_way;

use crate::{engine::Engine, journal::segment, storage::DiskStorage};

/// Objects as files in a directory of their own. Clones share it.
#[derive(Debug, Clone)]
pub struct ObjectDirectory(Arc<objects::Objects>);

impl ObjectDirectory {
    /// The port.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as Arc<dyn ObjectStore>
    }

    /// Whether the disk had no room for what was refused last; it is asked anew, aside and at most once a second, for who asks next.
    pub fn is_full(&self) -> bool {
        self.0.is_refusing()
    }

    /// Looks whether the directory is still the one that was opened, and not what a mount that fell off has left.
    pub async fn look(&self) -> Result<(), ObjectError> {
        self.0.look().await
    }

    /// Whether the last look, of anybody who has put or missed an object, has found another directory, or none.
    pub fn is_missing(&self) -> bool {
        self.0.is_missing()
    }

    /// Removes the directories that opening it has made, as far as nothing is in them: for a start that is refused.
    pub fn remove_made(&self) {
        self.0.remove_made();
    }
}

/// Opens a directory of objects, which is made if it is not there.
pub async fn open_objects(directory: PathBuf) -> Result<ObjectDirectory, OpenError> {
    let opened = tokio::task::spawn_blocking(move || {
        objects::open(&directory, &directory, Arc::new(DiskStorage))
    });
    let opened = opened
        .await
        .map_err(|error| OpenError::io("open the objects")(std::io::Error::other(error)))?;
    Ok(ObjectDirectory(Arc::new(opened?)))
}

/// The format of a data directory, as far as its record says: none where nothing is kept yet. Changes nothing.
///
/// Errors: what [`Embedded::open`] would refuse the record for, or the lack of one.
pub fn format_of(data_dir: &Path) -> Result<Option<u32>, OpenError> {
    Ok(format::find(&DiskStorage, data_dir)?.map(|format| format.number))
}

/// Reads the whole checkpoint store of a data directory back: how many records it holds, or none where there is nothing,
/// or nothing with checksums, yet. Changes nothing. The store must not be open.
///
/// Errors: the first damage met, by file and place; `Locked` where the store is open.
pub fn verify(data_dir: &Path) -> Result<Option<u64>, OpenError> {
    let Some(format) = format::find(&DiskStorage, data_dir)? else {
        return Ok(None);
    };
    let _lock = format::DirectoryLock::take(data_dir)?;
    base::verify(&DiskStorage, data_dir, format)
}

/// What the next start of a data directory will find.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// In its journal; none where that is of an earlier format, which is converted before it is read.
    pub journal: Option<RecoveryReport>,
    /// The file of the checkpoint store, if one of its two heads is not whole, torn by a crash or damaged: a start goes by the
    /// other one, and writes both again.
    pub torn_head: Option<PathBuf>,
}

/// Reads the journal of a data directory as the next start would, or finds none where nothing is kept yet. Changes
/// nothing. The store must not be open.
///
/// Errors: what [`Embedded::open`] would refuse the journal for; `Locked` where the store is open.
pub fn look_at_journal(data_dir: &Path) -> Result<Option<Look>, OpenError> {
    let storage = &DiskStorage;
    let Some(format) = format::find(storage, data_dir)? else {
        return Ok(None);
    };
    let _lock = format::DirectoryLock::take(data_dir)?;
    let journal = data_dir.join(segment::DIRECTORY);
    engine::check_for_checkpoint(storage, data_dir, &journal)?;
    if format.number < format::CHECKED_BLOCKS {
        // How far its checkpoint goes is read once it is converted.
        return Ok(Some(Look::default()));
    }
    let base::Looked { place, torn } = base::look(storage, data_dir, format)?;
    let journal = recovery::look(storage, &journal, format, place)?;
    Ok(Some(Look {
        journal: Some(journal),
        torn_head: torn,
    }))
}

/// An open store. Dropping it without [`Embedded::close`] loses what was not externalized, as a crash would.
#[derive(Debug)]
pub struct Embedded {
    engine: Arc<Engine>,
    objects: Arc<objects::Objects>,
}

impl Embedded {
    /// Opens the data directory, recovering what is there. Where this is dropped before it has answered, the directory is
    /// given back as soon as it would have.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        // A whole store comes out of it, so that one that nobody waits for any more is dropped, which ends its threads.
        let opened = tokio::task::spawn_blocking(move || Self::open_now(config)).await;
        opened.map_err(|error| {
            OpenError::io("open the data directory")(std::io::Error::other(error))
        })?
    }

    fn open_now(config: Config) -> Result<Self, OpenError> {
        let engine = Engine::open(config)?;
        let directory = engine.objects_directory();
        match objects::open(
            &directory,
            &engine.config.data_dir,
            Arc::clone(&engine.config.storage),
        ) {
            Ok(objects) if engine.config.acknowledge_before_sync => Ok(Self {
                engine,
                objects: Arc::new(objects.acknowledging_before_sync()),
            }),
            Ok(objects) => Ok(Self {
                engine,
                objects: Arc::new(objects),
            }),
            Err(error) => {
                engine.shut_down(false);
                Err(error)
            }
        }
    }

    /// The key-value port.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        Arc::clone(&self.engine) as Arc<dyn KeyValue>
    }

    /// The key-value port for a service that may use the reserve which is kept back from everybody else, for what must
    /// go on when the disk is full. It asks [`KeyValue::room`] before it begins what would use it up.
    pub fn key_value_with_reserve(&self) -> Arc<dyn KeyValue> {
        Arc::new(key_value::WithReserve(Arc::clone(&self.engine)))
    }

    /// The queue port.
    pub fn queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.engine) as Arc<dyn Queue>
    }

    /// The administration of those queues.
    pub fn queue_admin(&self) -> Arc<dyn QueueAdmin> {
        Arc::clone(&self.engine) as Arc<dyn QueueAdmin>
    }

    /// Objects as files in the data directory.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects) as Arc<dyn ObjectStore>
    }

    /// What the store says about itself.
    pub fn status(&self) -> Status {
        let mut status = self.engine.status();
        if self.objects.is_refusing() {
            status.room = Room::Refusing;
        }
        status
    }

    /// Makes everything durable, checkpoints and gives the directory back. Every
    /// later call is `Unavailable`.
    pub async fn close(&self) {
        let engine = Arc::clone(&self.engine);
        if let Err(error) = tokio::task::spawn_blocking(move || engine.shut_down(true)).await {
            tracing::error!(%error, "the store was not closed in order; its journal has everything");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.engine.shut_down(false);
    }
}
