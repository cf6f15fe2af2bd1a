//! Backups: the whole store in one file, as of one position, while it is in use.
//!
//! A restored backup is a store that crashed at that position, with all objects of that moment and
//! perhaps some later ones. Services recover from a crash at any position, so they need nothing
//! else to start on it.
//!
//! 1. **Records.** A checkpoint is the state at the end of one group, so it never has half a
//!    transaction. A backup asks for a checkpoint, waits for it, and reads it in one transaction of
//!    redb, which later checkpoints do not change. The checkpoint covers every change that was
//!    ordered before the backup began. Writers wait no longer than for any other checkpoint.
//! 2. **Objects.** The backup holds deletions ([`hold`](crate::objects)) before it asks for the
//!    checkpoint, until it has read all objects. Each object of the checkpoint's moment is thus
//!    still there, under its name or a held one. Objects never change, so its content is the same.
//! 3. **Later objects.** An object that was created after that moment may be inside. To the
//!    services it is one whose record a crash lost. Most never trust an object without a record, and
//!    their garbage collection removes it. A service that derives names from numbers in durable
//!    records would take it for its own, because the restored store draws these numbers again. So
//!    each restore draws a **timeline** ([`Embedded::timeline`](crate::Embedded::timeline)), and such
//!    names contain it.
//! 4. **Interruptions.** If the checkpoint store is opened again meanwhile (after a failed write or
//!    on a full disk), its pages may be used again. The backup then fails, before it writes
//!    anything that it read since.
//!
//! Costs: pages of the checkpoint store that change meanwhile are freed after the backup, and
//! deleted objects too. Memory holds one frame.
//!
//! Not inside: messages of transient queues, which no crash survives either, and objects in a
//! distant store, which are listed.

mod error;
mod frames;
mod read;
mod restore;
mod take;

use std::{path::PathBuf, sync::Arc};

use ports::objects::ObjectStore;
use serde::Serialize;

pub use self::{
    error::BackupError,
    frames::is_begun,
    read::verify,
    restore::{is_locked_here, restore},
};
use crate::ObjectDirectory;

/// The place of the objects in the data directory.
const OBJECTS: &str = "objects";
/// The place of the objects of `--objects file://`.
const NAMED: &str = "--objects";
/// The place of single files of the data directory.
const FILES: &str = ".";

/// What belongs to the store beside what it keeps itself.
#[derive(Debug, Default)]
pub struct Beside {
    /// Another directory of objects, given by its user.
    pub named: Option<ObjectDirectory>,
    /// Directories of objects in the data directory, with their names there.
    pub directories: Vec<(String, ObjectDirectory)>,
    /// Names of files in the data directory, which may be missing.
    pub files: Vec<String>,
    /// A distant store of objects, whose objects are only listed, and its name for people.
    pub distant: Option<(String, Arc<dyn ObjectStore>)>,
}

/// Where a restored store goes.
#[derive(Debug, Clone)]
pub struct Target {
    /// The data directory, which is missing or empty.
    pub data_dir: PathBuf,
    /// The directory for the objects that lay in one given by the user.
    pub named: Option<PathBuf>,
}

/// What a backup holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// The release that wrote it.
    pub written_by: String,
    /// When it was taken, in milliseconds since the epoch.
    pub taken_ms: u64,
    /// The number of records: items, queues, messages.
    pub records: u64,
    /// The number of objects and files.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// The number of objects that are needed and not inside.
    pub absent_objects: u64,
    /// Where those are.
    pub absent_at: Option<String>,
    /// The bytes of the backup.
    pub bytes: u64,
}
