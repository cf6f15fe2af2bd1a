//! Open directories: each lists one moment, and a cookie is a position in the listing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use files::{Ino, Listing, model::DirectoryEntry};
use futures_util::future::FutureExt as _;
use parking_lot::Mutex;

use super::{
    Node,
    answer::{self, Answer, Outcome},
};
use crate::wire::{self, DirectoryList, Entry, Errno, Read};

/// The bytes that a short entry takes in a reply to READDIR, and in one to READDIRPLUS.
const ENTRY_BYTES: u32 = 32;
const ENTRY_BYTES_WITH_ATTRIBUTES: u32 = 160;
/// The most entries that one request reads.
const ENTRIES_MAX: u32 = 1_000;

/// The listing of an open directory. Only one request at a time continues it.
type Open = Arc<tokio::sync::Mutex<(Ino, Listing)>>;

/// The open directories of a mount, by their handles.
#[derive(Debug, Default)]
pub(super) struct Directories {
    last_handle: AtomicU64,
    open: Mutex<BTreeMap<u64, Open>>,
}

impl Directories {
    fn open(&self, ino: Ino) -> u64 {
        let handle = self.last_handle.fetch_add(1, Ordering::Relaxed) + 1;
        let listing = (ino, Listing::new(ino));
        let open = Arc::new(tokio::sync::Mutex::new(listing));
        self.open.lock().insert(handle, open);
        handle
    }

    fn get(&self, handle: u64) -> Result<Open, Errno> {
        let found = self.open.lock().get(&handle).cloned();
        found.ok_or(Errno::EIO)
    }

    pub(super) fn close(&self, handle: u64) {
        self.open.lock().remove(&handle);
    }
}

impl Node {
    pub(super) fn open_directory(&self, ino: Ino) -> Answer {
        answer::opened(self.directories.open(ino), 0)
    }

    pub(super) async fn list(self: Arc<Self>, read: Read) -> Outcome {
        let mut list = DirectoryList::new(read.size);
        for entry in self.page(read, ENTRY_BYTES).await? {
            if !list.push(listed(&entry)) {
                break;
            }
        }
        Ok(Answer::List(list))
    }

    /// Lists with attributes, which are those of the end of the call. A name that is gone by then is
    /// listed without them.
    pub(super) async fn list_with_attributes(self: Arc<Self>, read: Read) -> Outcome {
        let mut list = DirectoryList::new(read.size);
        for entry in self.page(read, ENTRY_BYTES_WITH_ATTRIBUTES).await? {
            let ino = entry.ino;
            let found = match &entry.name[..] {
                // The kernel knows both, and must not count a lookup for them.
                b"." | b".." => Err(files::Errno::ENOENT),
                _ => {
                    self.calls
                        .run(move |transaction| transaction.getattr(ino).boxed())
                        .await
                }
            };
            let found = match found {
                Ok(attributes) => self.entry(&attributes),
                Err(_) => Entry::default(),
            };
            if !list.push_with(&found, listed(&entry)) {
                break;
            }
        }
        Ok(Answer::List(list))
    }

    async fn page(&self, read: Read, entry_bytes: u32) -> Result<Vec<DirectoryEntry>, Errno> {
        let open = self.directories.get(read.handle)?;
        let (ino, listing) = &mut *open.lock().await;
        if read.offset == 0 {
            // A rewind.
            *listing = Listing::new(*ino);
        }
        let count = (read.size / entry_bytes).clamp(1, ENTRIES_MAX);
        let page = self.calls.list(listing, read.offset, count as usize).await;
        match page {
            // The directory is removed, and other file systems return an empty listing then.
            Err(files::Errno::ENOENT) => Ok(Vec::new()),
            page => Ok(page?),
        }
    }
}

fn listed(entry: &DirectoryEntry) -> wire::DirectoryEntry<'_> {
    wire::DirectoryEntry {
        inode: entry.ino.0,
        cookie: entry.cookie,
        mode: entry.kind.type_bits(),
        name: &entry.name,
    }
}
