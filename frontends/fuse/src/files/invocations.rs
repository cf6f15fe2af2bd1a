//! The caller, inodes and names that a mount notes for invocations: transactions that follow each
//! other on one mount.
//!
//! The kernel caches without end within a transaction. Before the next one it is told to forget
//! what it was given, so that each first look is a request, which enters the read set.

use std::{
    collections::BTreeSet,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use files::Ino;
use parking_lot::Mutex;

use crate::{
    handler::Notifier,
    wire::{self, Header, Notification},
};

/// The user and group that own what a function creates, as the first user of a machine would.
pub(super) const OWNER: (u32, u32) = (1_000, 1_000);

/// The mount of a function's instance. Its user is made up, so every file appears as its own.
#[derive(Debug, Default)]
pub(super) struct Invocations {
    /// The user and group of the last request.
    caller: AtomicU64,
    /// Inodes whose attributes or pages the kernel may have.
    given: Mutex<BTreeSet<u64>>,
    /// Names that the kernel may resolve by itself, with their directories.
    names: Mutex<BTreeSet<(u64, Bytes)>>,
}

impl Invocations {
    pub(super) fn called_by(&self, header: &Header) {
        let caller = u64::from(header.uid) << 32 | u64::from(header.gid);
        self.caller.store(caller, Ordering::Relaxed);
    }

    /// Notes that the kernel gets these attributes, with the caller as the owner.
    pub(super) fn give(&self, attributes: &mut wire::Attributes) {
        let caller = self.caller.load(Ordering::Relaxed);
        (attributes.uid, attributes.gid) = ((caller >> 32) as u32, caller as u32);
        self.given.lock().insert(attributes.inode);
    }

    /// Notes that the kernel knows whether `name` is in `directory`.
    pub(super) fn give_name(&self, directory: Ino, name: Bytes) {
        self.names.lock().insert((directory.0, name));
    }

    /// Whether the kernel has anything to forget.
    pub(super) fn has_given(&self) -> bool {
        !self.given.lock().is_empty() || !self.names.lock().is_empty()
    }

    /// Tells the kernel to forget what it was given.
    pub(super) fn expire(&self, notifier: &Notifier) -> io::Result<()> {
        for inode in std::mem::take(&mut *self.given.lock()) {
            let (offset, length) = (0, 0);
            notifier.send(&Notification::InvalidateInode {
                inode,
                offset,
                length,
            })?;
        }
        for (directory, name) in std::mem::take(&mut *self.names.lock()) {
            notifier.send(&Notification::ExpireEntry(directory, &name))?;
        }
        Ok(())
    }
}
