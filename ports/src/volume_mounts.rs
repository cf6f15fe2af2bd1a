//! Volumes, mounted for instances of functions. The program wires a file service to a runtime by it.
//!
//! Promises
//! - **VM1** What an instance does on its mount between [`VolumeMount::begin`] and
//!   [`VolumeMount::commit`] is one transaction: it reads one state, and takes effect as a whole
//!   and durably, or not at all.
//! - **VM2** After [`VolumeMount::abort`], or once the mount is dropped, nothing of the transaction
//!   takes effect.

use std::{any::Any, fmt::Debug, path::Path, sync::Arc};

use async_trait::async_trait;

/// A volume that a function sees in its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAt {
    /// The folder in which it appears, an absolute path.
    pub folder: String,
    /// Its name.
    pub volume: String,
    /// Whether the function only reads. Its invocations then never conflict.
    pub is_read_only: bool,
}

/// Mounts volumes.
#[async_trait]
pub trait VolumeMounts: Debug + Send + Sync {
    /// Mounts a volume for one instance. Errors: why it cannot, and what to do about it.
    async fn mount(&self, volume: &VolumeAt) -> Result<Arc<dyn VolumeMount>, String>;
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeCommit {
    /// It took effect, and survives any crash.
    Committed,
    /// Another transaction wrote what it read. Nothing took effect.
    Conflict,
}

/// The mount of one instance. When it is dropped, it is unmounted. The program that has made it finds
/// it again, by its type, for requests of the instance that belong to the same transaction.
#[async_trait]
pub trait VolumeMount: Any + Debug + Send + Sync {
    /// Where it is mounted on the host.
    fn path(&self) -> &Path;

    /// Begins a transaction at the present state. Errors: why the volume cannot be read.
    async fn begin(&self) -> Result<(), String>;

    /// Commits the transaction. Errors: why it cannot be, or why its outcome is not known.
    async fn commit(&self) -> Result<VolumeCommit, String>;

    /// What the last conflict was about, as a sentence. It may take long.
    async fn cause(&self) -> String;

    /// Ends the transaction without an effect.
    async fn abort(&self);
}
