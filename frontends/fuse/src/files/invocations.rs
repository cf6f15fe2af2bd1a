//! The caller and inodes that a mount notes for invocations: transactions that follow each other on
//! one mount.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use files::Ino;
use parking_lot::Mutex;

use crate::wire::{self, Header};

/// The user and group that own what a function creates, as the first user of a machine would.
pub(super) const OWNER: (u32, u32) = (1_000, 1_000);

/// The mount of a function's instance. Its user is made up, so every file appears as its own.
#[derive(Debug, Default)]
pub(super) struct Invocations {
    /// The user and group of the last request.
    caller: AtomicU64,
    /// Inodes whose attributes or pages the kernel may have.
    given: Mutex<BTreeSet<u64>>,
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

    /// Takes the inodes that the kernel is to forget.
    pub(super) fn take_given(&self) -> Vec<Ino> {
        std::mem::take(&mut *self.given.lock())
            .into_iter()
            .map(Ino)
            .collect()
    }
}
