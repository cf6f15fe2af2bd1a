//! The caller, inodes and names that a mount notes for invocations: transactions that follow each
//! other on one mount.
//!
//! The kernel caches without end within a transaction. Before the next one it is told to forget
//! what it was given, so that each first look is a request, which enters the read set.
//!
//! Pages of files that are closed stay. A transaction that opens such a file depends on all blocks
//! that the kernel may have, since it does not tell which ones it uses. If one of them has changed,
//! the reply lets the kernel drop the pages of the whole file.
//!
//! Invariants
//! - A page that the kernel may use in a transaction is of its snapshot, or written by it.
//! - A file is opened with its pages only if its blocks are in the read set.
//! - Pages that a transaction has changed are dropped unless it commits.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use files::Ino;
use parking_lot::Mutex;
use transactions::serializable::model::Slot;

use crate::{
    handler::Notifier,
    wire::{self, Header, Notification},
};

/// The user and group that own what a function creates, as the first user of a machine would.
pub(super) const OWNER: (u32, u32) = (1_000, 1_000);

/// The most files whose pages stay. Beyond it, all of closed files are dropped.
const FILES_MAX: usize = 4_096;
/// The most blocks of a file that stay, and of all files that one transaction opens.
const BLOCKS_MAX: usize = 2_048;
const BLOCKS_OPENED_MAX: usize = 50_000;

/// The pages of a file that the kernel may have.
#[derive(Debug, Default)]
struct Pages {
    blocks: BTreeSet<u64>,
    /// The slot that they are of. None: none of them may be used.
    at: Option<Slot>,
    /// How often the file is open.
    opens: u32,
    /// Whether the transaction may use those of earlier ones; `None`: it has not opened the file.
    is_kept: Option<bool>,
    /// The transaction has changed the file.
    is_changed: bool,
}

impl Pages {
    /// Whether the transaction may have used or changed them.
    fn is_touched(&self) -> bool {
        self.opens > 0 || self.is_kept.is_some() || self.is_changed
    }
}

/// The answer to the first question about the pages of a file that is opened.
#[derive(Debug)]
pub(super) enum Opening {
    /// They stay, or are dropped.
    Decided(bool),
    /// They stay if the blocks have not changed since the slot.
    Check(Slot, BTreeSet<u64>),
}

/// The mount of a function's instance. Its user is made up, so every file appears as its own.
#[derive(Debug, Default)]
pub(super) struct Invocations {
    /// The user and group of the last request.
    caller: AtomicU64,
    /// Inodes whose attributes or pages the kernel may have.
    given: Mutex<BTreeSet<u64>>,
    /// Names that the kernel may resolve by itself, with their directories.
    names: Mutex<BTreeSet<(u64, Bytes)>>,
    pages: Mutex<BTreeMap<u64, Pages>>,
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
        let is_open = self.pages.lock().values().any(|pages| pages.opens > 0);
        is_open || !self.given.lock().is_empty() || !self.names.lock().is_empty()
    }

    /// A file is opened. A call that reads nothing, or truncates, drops its pages.
    pub(super) fn open(&self, ino: Ino, is_blind: bool) -> Opening {
        let all = &mut *self.pages.lock();
        if all.len() >= FILES_MAX {
            all.retain(|_, pages| pages.opens > 0);
        }
        let opened = all.values().filter(|pages| pages.is_kept == Some(true));
        let opened: usize = opened.map(|pages| pages.blocks.len()).sum();
        let pages = all.entry(ino.0).or_default();
        pages.opens += 1;
        match (pages.is_kept, pages.at) {
            (Some(is_kept), _) => Opening::Decided(is_kept),
            (None, Some(at)) if !is_blind && opened + pages.blocks.len() < BLOCKS_OPENED_MAX => {
                Opening::Check(at, pages.blocks.clone())
            }
            (None, _) => Opening::Decided(false),
        }
    }

    /// Notes whether the pages of a file stay, in a transaction at `at`.
    pub(super) fn decided(&self, ino: Ino, is_kept: bool, at: Option<Slot>) {
        if let Some(pages) = self.pages.lock().get_mut(&ino.0)
            && pages.is_kept.is_none()
        {
            if !is_kept {
                pages.blocks.clear();
            }
            (pages.is_kept, pages.at) = (Some(is_kept), at);
        }
    }

    pub(super) fn close(&self, ino: Ino) {
        if let Some(pages) = self.pages.lock().get_mut(&ino.0) {
            pages.opens = pages.opens.saturating_sub(1);
        }
    }

    /// Notes that the kernel gets blocks.
    pub(super) fn give_blocks(&self, ino: Ino, blocks: Range<u64>) {
        if let Some(pages) = self.pages.lock().get_mut(&ino.0)
            && pages.blocks.len() <= BLOCKS_MAX
        {
            pages.blocks.extend(blocks.take(BLOCKS_MAX + 1));
        }
    }

    /// Notes that the kernel changes a file.
    pub(super) fn change(&self, ino: Ino) {
        self.pages.lock().entry(ino.0).or_default().is_changed = true;
    }

    /// The transaction has committed: at `slot`, if it has written anything. Its reads held until
    /// then.
    pub(super) fn committed(&self, slot: Option<Slot>) {
        for pages in self.pages.lock().values_mut() {
            if pages.is_kept.is_some() && slot.is_some() {
                pages.at = slot;
            }
            pages.is_changed = false;
        }
    }

    /// Prepares for the next transaction. Whether the pages of `inode` stay.
    fn keeps(&self, inode: u64) -> bool {
        let all = &mut *self.pages.lock();
        let is_usable = |pages: &Pages| {
            pages.opens == 0 && !pages.is_changed && pages.blocks.len() <= BLOCKS_MAX
        };
        match all.get_mut(&inode) {
            Some(pages) if is_usable(pages) => {
                pages.is_kept = None;
                true
            }
            Some(pages) if pages.opens > 0 => {
                *pages = Pages {
                    opens: pages.opens,
                    ..Pages::default()
                };
                false
            }
            _ => {
                all.remove(&inode);
                false
            }
        }
    }

    /// Tells the kernel to forget what it was given, between transactions.
    pub(super) fn expire(&self, notifier: &Notifier) -> io::Result<()> {
        self.forget(notifier, |inode| self.keeps(inode))
    }

    /// Tells the kernel to forget all, as the transaction was changed beside the mount.
    pub(super) fn refresh(&self, notifier: &Notifier) -> io::Result<()> {
        self.forget(notifier, |inode| {
            if let Some(pages) = self.pages.lock().get_mut(&inode) {
                pages.blocks.clear();
            }
            false
        })
    }

    fn forget(&self, notifier: &Notifier, keeps: impl Fn(u64) -> bool) -> io::Result<()> {
        let mut given = std::mem::take(&mut *self.given.lock());
        // A file that stays open is read without another look at its name.
        let pages = self.pages.lock();
        let touched = pages.iter().filter(|(_, pages)| pages.is_touched());
        given.extend(touched.map(|(inode, _)| *inode));
        drop(pages);
        for inode in given {
            let offset = if keeps(inode) { -1 } else { 0 };
            notifier.send(&Notification::InvalidateInode {
                inode,
                offset,
                length: 0,
            })?;
        }
        // The kernel takes the directory's lock, which a lookup holds that waits for ours.
        let names = std::mem::take(&mut *self.names.lock());
        for (directory, name) in names {
            notifier.send(&Notification::ExpireEntry(directory, &name))?;
        }
        Ok(())
    }
}
