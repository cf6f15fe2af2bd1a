//! A transactional POSIX file system over strictly serializable volumes.
//!
//! ```text
//!  FileSystem: one call        one transaction, again after a conflict
//!  Transaction: many calls     lookup, write, rename, ... in program order
//!    ──▶ overlay: its changes over the state of one slot
//!    ──▶ one proposal: keys read, ranges and numbers it depends on, writes
//!  VolumeStore                 decides it
//! ```
//!
//! An inode is several keys, a directory is a key for each entry, and a file is a key for each
//! block that is not a hole. A call reads and writes as few of them as its result depends on, so
//! calls on different names, or blind writes to one block, do not conflict. The table of the keys
//! that each call reads is in `docs/design/0007-files.md`, section 3.2.
//!
//! - [`file_system`] is for one call at a time, [`transaction`] for many that take effect together.
//! - [`cache`] keeps values that a client has read from a volume, for later transactions.
//! - [`leased`] answers reads at the tail from memory, as long as the client has a lease.
//! - [`check`] verifies the rules of a whole volume, and repairs violations.
//! - `overlay` holds the reads and pending writes of a transaction. It knows keys, and no inodes.
//! - `inode` has the keys and their values, [`path_rules`] the limits of names.
//! - `names` finds the path that a conflict was about.
//! - `remembered` spares a change the reads that an earlier call has made.
//! - [`reaper`] deletes unlinked files that no session has open any more.

pub mod broken;
pub mod cache;
pub mod check;
mod entries;
pub mod error;
pub mod file_system;
mod inode;
pub mod leased;
pub mod model;
mod names;
mod overlay;
pub mod path_rules;
pub mod reaper;
mod remembered;
pub mod transaction;

#[cfg(test)]
mod tests;

pub use self::{
    error::{Errno, Result},
    file_system::FileSystem,
    model::Ino,
    transaction::{Block, Listing, Outcome, Transaction},
};
