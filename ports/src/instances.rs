//! Instances: processes that a caller starts, addresses one by one, talks to, and ends.
//!
//! A [runtime](crate::runtime) picks any warm instance for a call. A caller that keeps state in its
//! instances needs *this* one, for as long as it lives, and needs to learn of its death. It may
//! keep many instances, each with several channels.
//!
//! Promises
//! - **X1** A handle addresses the very instance that its [`Instances::start`] started, until that
//!   ends. The program sees the arguments and the environment of its [`Spec`], and shares no
//!   handle, channel or memory with another instance.
//! - **X2** Messages of one channel arrive whole, once, and in the order they were sent, in each
//!   direction. Channels of one instance are independent. Messages sent before the program accepts
//!   the channel wait for it.
//! - **X3** Where [`Limits::shared_memory_bytes_max`] is not 0, an instance shares a region of
//!   [`Spec::shared_bytes`] with its caller. It holds zeros at first. Bytes that one side writes
//!   before it sends a message are there when the other side has received that message.
//! - **X4** [`Instance::died`] returns for every caller once the instance is dead, with the cause,
//!   and not before. From then on its channels fail to send, and receive no more than what had
//!   arrived. Where [`Limits::bounds_memory`], an instance that exceeds [`Spec::memory_bytes`] dies
//!   of it.
//! - **X5** [`Instance::end`] ends the instance and every process it has started, busy or idle. So
//!   does dropping the last handle. Ending a dead instance changes nothing.
//! - **X6** Bytes that [`Region::discard`] discarded are zeros, for both sides, until one writes
//!   them again. The memory behind whole pages of them goes back to the system.
//! - **X7** Bytes that [`Region::share`] returned are those of the region, and stay as they are
//!   until the last clone is dropped. The death of the instance does not change them.
//!
//!
//! Not promised: that an instance outlives its caller's process, which memory limit the pages of a
//! shared region count against, that a message sent to an instance that dies was received, or X7 where
//! the instance itself writes shared bytes.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use crate::Result;

/// The program, environment and memory of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// The program and its arguments, in the provider's terms: locally the absolute path of an
    /// executable.
    pub command: Vec<String>,
    /// The environment, beside the provider's own variables.
    pub environment: BTreeMap<String, String>,
    /// The memory limit of the instance.
    pub memory_bytes: u64,
    /// The size of the region shared with it; 0: none.
    pub shared_bytes: u64,
}

/// Why an instance is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its program exited with this status.
    Exited(i32),
    /// A signal killed it: its own, the machine's, or that of [`Instance::end`].
    Killed(i32),
    /// It exceeded its memory limit.
    OutOfMemory,
}

/// The limits of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest message.
    pub message_bytes_max: usize,
    /// The largest shared region; 0: there are none.
    pub shared_memory_bytes_max: u64,
    /// Whether the memory limit of an instance is enforced.
    pub bounds_memory: bool,
}

/// Starts instances (X1 to X7).
#[async_trait]
pub trait Instances: Debug + Send + Sync {
    /// Starts an instance.
    ///
    /// Errors: `Invalid` if the spec exceeds the limits or its program cannot be run;
    /// `Unavailable`.
    async fn start(&self, spec: &Spec) -> Result<Arc<dyn Instance>>;

    /// The provider's limits.
    fn limits(&self) -> &Limits;
}

/// One instance. Dropping the last handle ends it (X5).
#[async_trait]
pub trait Instance: Debug + Send + Sync {
    /// Opens a further channel to it. The program accepts channels in the order they were opened.
    ///
    /// Errors: `Unavailable` if it is dead.
    async fn channel(&self) -> Result<Arc<dyn Channel>>;

    /// The region shared with it; none: its spec asked for none.
    fn memory(&self) -> Option<Arc<dyn Region>>;

    /// Waits until it is dead (X4).
    async fn died(&self) -> Death;

    /// Ends it (X5); returns at once. [`Self::died`] says when nothing is left of it.
    fn end(&self);
}

/// A channel of messages to an instance and back (X2). Dropping the last handle closes it.
#[async_trait]
pub trait Channel: Debug + Send + Sync {
    /// Sends a message; waits while too many bytes are on their way. A dropped call may have sent
    /// the message, and then completes it before a later one.
    ///
    /// Errors: `Invalid` if it is too long; `Unavailable` if the instance is dead or has closed the
    /// channel.
    async fn send(&self, message: Bytes) -> Result<()>;

    /// The next message from the instance; none: it is dead or has closed the channel. A dropped
    /// call loses no message.
    ///
    /// Errors: `Corrupt` if the instance breaks the channel's format.
    async fn receive(&self) -> Result<Option<Bytes>>;
}

/// A region of memory shared with an instance (X3).
pub trait Region: Debug + Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Copies the bytes from `offset` on into `buffer`.
    ///
    /// Errors: `Invalid` if they lie outside of the region.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The `bytes` bytes from `offset` on, without a copy where the provider can (X7).
    ///
    /// Errors: `Invalid` if they lie outside of the region, or some are being changed.
    fn share(self: Arc<Self>, offset: u64, bytes: usize) -> Result<Bytes> {
        let mut copy = vec![0; bytes];
        self.read(offset, &mut copy)?;
        Ok(copy.into())
    }

    /// Copies `bytes` into the region, from `offset` on.
    ///
    /// Errors: `Invalid` if they lie outside of the region, or some are shared.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Discards the `bytes` bytes from `offset` on (X6).
    ///
    /// Errors: `Invalid` if they lie outside of the region, or some are shared.
    fn discard(&self, offset: u64, bytes: u64) -> Result<()>;
}
