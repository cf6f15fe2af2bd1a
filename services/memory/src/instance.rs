//! One instance of function memory as the daemon sees it.
//!
//! The daemon reserves space for a chunk, copies the bytes into the shared region, and seals the
//! chunk. A reader keeps a [`HeldChunk`]. Once the last clone is dropped, the instance's task
//! removes the chunk. Space is therefore never reused under a reader.
//!
//! ```text
//!  chunk  a chunk from its reservation to its removal
//!  link   the two channels to the instance, its task, and its death
//! ```
//!
//! An instance is dead once its process has died, a channel is closed, a reply is no reply to this
//! daemon (promise M3), or its insertion log is not the one that the daemon knows. The daemon then ends it. All pending calls fail, and so do all reads.
//! A call to an instance that hangs waits. Callers bound it with their clock and drop the call,
//! which frees what it reserved.

mod chunk;
mod link;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
};

use chunk::Piece;
pub use chunk::{HeldChunk, Slot};
use link::{Lane, Link, Live};
use ports::{
    Clock, Error,
    instances::{Instances, Spec},
};
use primitives::Mutant;

use crate::broken::Broken;
use crate::function::{Call, ChunkId, Counts, EPOCH_VARIABLE, Outcome, Partition, REGION_VARIABLE};
pub use crate::function::{ChunkName, Epoch};

/// The number of an instance. No other instance of this daemon has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

/// The program and the size of instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceOptions {
    /// The program and its arguments, as in [`Spec::command`].
    pub command: Vec<String>,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// The memory limit of its process, without the region.
    pub memory_bytes: u64,
    /// The size of its region, which holds the chunks.
    pub shared_bytes: u64,
    /// The rule that tests break.
    pub mutant: Mutant<Broken>,
}

/// The instance is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the instance of function memory is dead")]
pub struct Dead;

/// The reason why an instance reserves no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// It has no range of this size.
    #[error("the instance of function memory is full")]
    Full,
    /// It is dead.
    #[error("the instance of function memory is dead")]
    Dead,
}

impl From<Dead> for ReserveError {
    fn from(Dead: Dead) -> Self {
        Self::Dead
    }
}

/// A running instance. Dropping the last handle, with its last chunk, ends it.
pub struct Instance {
    id: InstanceId,
    link: Arc<Link>,
    chunks: AtomicU64,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("id", &self.id)
            .field("is_dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

impl Instance {
    /// Starts an instance, and returns once it serves.
    ///
    /// Errors: `Invalid` if the provider shares no region of this size; the provider's errors;
    /// `Unavailable` if the program dies at once.
    pub async fn start(
        instances: &Arc<dyn Instances>,
        options: &InstanceOptions,
        id: InstanceId,
        epoch: Epoch,
        clock: Arc<dyn Clock>,
    ) -> ports::Result<Arc<Self>> {
        let (bytes, bytes_max) = (
            options.shared_bytes,
            instances.limits().shared_memory_bytes_max,
        );
        if bytes == 0 || bytes > bytes_max {
            return Err(Error::invalid(format!(
                "start function memory with a region of {bytes} bytes: \
                 this provider of instances shares 1 to {bytes_max}"
            )));
        }
        let mut environment = options.environment.clone();
        environment.insert(EPOCH_VARIABLE.to_owned(), epoch.0.to_string());
        environment.insert(REGION_VARIABLE.to_owned(), bytes.to_string());
        let spec = Spec {
            command: options.command.clone(),
            environment,
            memory_bytes: options.memory_bytes,
            shared_bytes: bytes,
        };
        let live = Live::connect(instances.start(&spec).await?).await?;
        let link = Link::run(id, epoch, live, clock, options.mutant);
        let instance = Arc::new(Self {
            id,
            link,
            chunks: AtomicU64::new(0),
        });
        // The first reply says that the program serves, and has the size of its memory.
        let served = instance.link.call(Lane::Small, Call::Counts).await;
        served.map_err(|dead| Error::unavailable("start function memory").caused_by(dead))?;
        Ok(instance)
    }

    /// Its number.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// Whether it is known to be dead.
    pub fn is_dead(&self) -> bool {
        self.link.is_dead()
    }

    /// Waits until it is known to be dead.
    pub async fn died(&self) {
        self.link.died().await;
    }

    /// Waits until it is known to be dead. The wait does not keep it alive.
    pub fn death(&self) -> impl Future<Output = ()> + Send + use<> {
        let link = Arc::clone(&self.link);
        async move { link.died().await }
    }

    /// Ends it, with all of its chunks.
    pub fn end(&self) {
        self.link.end();
    }

    /// The bytes of its region in use, by its latest reply.
    pub fn used_bytes(&self) -> u64 {
        let counts = self.link.counts();
        counts.storage_bytes.saturating_add(counts.cache_bytes)
    }

    /// Its memory by its latest reply.
    pub fn counts(&self) -> Counts {
        self.link.counts()
    }

    /// The bytes of its region.
    pub fn capacity_bytes(&self) -> u64 {
        self.link.counts().capacity_bytes
    }

    /// Calls it without an effect. Whether it lives.
    pub(crate) async fn warm_up(&self) -> bool {
        self.link.call(Lane::Small, Call::Counts).await.is_ok()
    }

    /// Changes a byte of its region.
    #[cfg(test)]
    pub(crate) fn damage(&self, offset: u64) {
        let (region, mut byte) = (self.link.region().expect("it is alive"), [0]);
        region.read(offset, &mut byte).expect("inside");
        region.write(offset, &[byte[0] ^ 1]).expect("inside");
    }

    /// Reserves space for a stored chunk of `bytes` bytes. A dropped call reserves nothing.
    pub async fn reserve(
        self: &Arc<Self>,
        chunk: ChunkName,
        bytes: u64,
    ) -> Result<Slot, ReserveError> {
        self.reserve_in(Partition::Storage, chunk, bytes).await
    }

    /// The same in either partition.
    pub(crate) async fn reserve_in(
        self: &Arc<Self>,
        partition: Partition,
        chunk: ChunkName,
        bytes: u64,
    ) -> Result<Slot, ReserveError> {
        let id = ChunkId(self.chunks.fetch_add(1, Ordering::Relaxed));
        let mut piece = Piece::expected(self, id, bytes);
        let call = Call::Reserve {
            id,
            name: chunk,
            bytes,
            partition,
        };
        match self.link.call(piece.lane(), call).await? {
            Outcome::Reserved { offset } => Ok(piece.reserved(offset)),
            Outcome::Full => {
                piece.refused();
                Err(ReserveError::Full)
            }
            Outcome::Done | Outcome::Unknown | Outcome::Diverged => {
                self.link.end();
                Err(ReserveError::Dead)
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.link.end();
    }
}

#[cfg(test)]
mod tests;
