//! The FUSE protocol of the Linux kernel in front of the file service.
//!
//! The kernel writes one request to each read of `/dev/fuse`, and expects one write for each reply:
//!
//! ```text
//! /dev/fuse -> wire::Request -> Handler::handle
//! /dev/fuse <- wire::Reply   <- Responder::send      (from any thread, in any order)
//! ```
//!
//! - [`wire`] is the codec: bytes to values and back, no I/O.
//! - [`handler`] is the interface to a file system, and the owner of each reply.
//! - [`files`] answers requests from a volume: each call a transaction, or all calls in one.
//! - [`mod@mount`] is the thin shell: mount(2), the threads that read, the unmount.
//!
//! Invariants
//! - Each request that expects a reply gets exactly one, even if the handler drops its responder.
//! - An interrupt reaches the handler after its request is registered. We never answer an interrupt
//!   with ENOSYS, because the kernel would then stop sending them, and nothing could kill a blocked
//!   process.
//! - Bytes from the device lead to a reply, an error number or a log line, never to a panic.
//!
//! The formats are those of `include/uapi/linux/fuse.h`, protocol 7.31 to 7.45.

// The device blocks its readers, and this front end is outside the part that a seed replays.
#![allow(clippy::disallowed_methods)]

pub mod files;
pub mod handler;
pub mod mount;
pub mod wire;

pub use self::files::FileHandler;
pub use handler::{Handler, Notifier, Responder};
pub use mount::{Mount, MountError, Unmounted, mount};
