//! The file service behind a mount.
//!
//! ```text
//! Handler::handle ─▶ Node::work   copies what outlives the request
//!                 ─▶ in_flight    polls it once on the reader's thread; if it must wait, a task
//!                                 ends it, and an interrupt finds it there
//!                 ─▶ calls        each call a transaction, or all calls in one
//! ```
//!
//! - [`FileHandler::each`] is for mounts that several machines share. The kernel caches nothing: each
//!   call is linearizable, except mapped memory, which is coherent within one mount.
//! - [`FileHandler::transaction`] is for a private mount whose calls take effect together. The kernel
//!   caches without end, and gathers writes, because all changes come from this mount. Its
//!   [`FileHandler::invocations`] follow each other, so lengths change between them: the kernel
//!   writes through.
//!
//! Invariants
//! - Open files are held until their release, so their data outlive their last name. Lookups hold
//!   nothing: numbers of inodes are never used again, so a late call finds no other file.
//! - An interrupt ends a wait for a lock at once. Other calls get a second more, since programs do
//!   not expect that a timer's signal ends a write. After `EINTR` a change may still have happened.

mod answer;
mod calls;
mod data;
mod directories;
mod in_flight;
mod invocations;
mod locks;
mod names;
mod read_ahead;
mod writers;
mod xattrs;

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use files::{
    FileSystem, Ino, Transaction,
    model::{Attributes, Kind},
};
use tokio::{runtime::Handle, sync::watch};
use transactions::serializable::model::Slot;

use self::{
    answer::{Answer, Outcome},
    calls::Calls,
    directories::Directories,
    in_flight::{InFlight, Patience, Work},
    invocations::{Invocations, OWNER},
    locks::Locks,
    read_ahead::ReadAhead,
    writers::Writers,
};
use crate::{
    handler::{Handler, Notifier, Responder},
    wire::{
        self, Entry, Errno, Header, LockKind, OPEN_DIRECT_IO, OPEN_KEEP_CACHE,
        OPEN_PARALLEL_DIRECT_WRITES, Operation, Request,
        init::{READDIRPLUS, WRITEBACK_CACHE, Wishes},
    },
};

/// How long the kernel may cache names and attributes where all changes come from one mount.
const ENDLESS: Duration = Duration::from_hours(365 * 24);
/// The mode bits that set the user or the group of a program.
const SET_ID: u32 = 0o6000;

/// Serves the requests of one mount from a volume.
#[derive(Debug)]
pub struct FileHandler {
    runtime: Handle,
    node: Arc<Node>,
    in_flight: Arc<InFlight>,
    is_unmounted: watch::Sender<bool>,
}

/// The state that the calls of a mount share.
#[derive(Debug)]
struct Node {
    calls: Calls,
    caching: Caching,
    block_bytes: u32,
    directories: Directories,
    locks: Locks,
    read_ahead: ReadAhead,
    /// Of a mount whose kernel keeps writes.
    writers: Writers,
    /// Of a mount whose transactions are invocations.
    invocations: Option<Invocations>,
}

/// The attributes, names and pages that the kernel may cache.
#[derive(Debug, Clone, Copy)]
struct Caching {
    /// Of attributes.
    ttl: Duration,
    name_ttl: Duration,
    /// The flags of the reply to OPEN.
    open_flags: u32,
}

impl Caching {
    const NONE: Self = Self {
        ttl: Duration::ZERO,
        name_ttl: Duration::ZERO,
        open_flags: OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES,
    };
    const ALL: Self = Self {
        ttl: ENDLESS,
        name_ttl: ENDLESS,
        open_flags: OPEN_KEEP_CACHE,
    };
    /// For transactions that follow each other. A new name is looked up once, and then noted.
    const INODES: Self = Self {
        name_ttl: Duration::ZERO,
        ..Self::ALL
    };
}

impl FileHandler {
    /// A mount whose calls are transactions of their own. Calls that wait are tasks of `runtime`,
    /// which needs its timers.
    pub fn each(files: Arc<FileSystem>, runtime: Handle) -> Arc<Self> {
        Self::new(Calls::each(files), Caching::NONE, None, runtime)
    }

    /// A private mount whose calls are one transaction, which begins now. After the unmount,
    /// [`take`](Self::take) returns it for its commit.
    pub fn transaction(files: Arc<FileSystem>, runtime: Handle) -> Arc<Self> {
        let transaction = files.begin();
        Self::part_of(files, transaction, runtime)
    }

    /// As [`transaction`](Self::transaction), but the calls are a part of `transaction` of `files`.
    pub fn part_of(files: Arc<FileSystem>, transaction: Transaction, runtime: Handle) -> Arc<Self> {
        Self::new(
            Calls::together(files, transaction),
            Caching::ALL,
            None,
            runtime,
        )
    }

    /// A private mount for transactions that follow each other. The first one begins now. After
    /// [`take`](Self::take), calls fail with `EIO` until [`begin`](Self::begin). All files appear as
    /// the caller's own, so mount it without checks of permissions.
    pub fn invocations(files: Arc<FileSystem>, runtime: Handle) -> Arc<Self> {
        let invocations = Some(Invocations::default());
        let transaction = files.begin();
        let calls = Calls::together(files, transaction);
        Self::new(calls, Caching::INODES, invocations, runtime)
    }

    fn new(
        calls: Calls,
        caching: Caching,
        invocations: Option<Invocations>,
        runtime: Handle,
    ) -> Arc<Self> {
        let block_bytes = calls.files().block_bytes();
        Arc::new(Self {
            runtime,
            node: Arc::new(Node {
                calls,
                caching,
                block_bytes,
                directories: Directories::default(),
                locks: Locks::default(),
                read_ahead: ReadAhead::default(),
                writers: Writers::default(),
                invocations,
            }),
            in_flight: Arc::default(),
            is_unmounted: watch::Sender::default(),
        })
    }

    /// The parameters that such a mount asks of the kernel. It does not look names up while it
    /// lists them, because the kernel could not keep the attributes. A transaction would also
    /// depend on all of them.
    pub fn wishes(&self) -> Wishes {
        Wishes {
            declined: READDIRPLUS,
            flags: if self.node.gathers_writes() {
                WRITEBACK_CACHE
            } else {
                0
            },
            ..Wishes::default()
        }
    }

    /// Waits until the mount is gone.
    pub async fn unmounted(&self) {
        let mut is_unmounted = self.is_unmounted.subscribe();
        // The sender is here, so this ends with the right answer only.
        let _ = is_unmounted.wait_for(|is| *is).await;
    }

    /// Takes the transaction of a mount that is made by [`transaction`](Self::transaction). It waits
    /// for a call that runs; later calls fail with `EIO`. `None` if it is taken, or if the mount has
    /// none.
    pub async fn take(&self) -> Option<Transaction> {
        self.node.calls.take().await
    }

    /// The transaction of the mount, for calls that are a part of it; nothing once it is taken. After
    /// they have changed a file, [note](Self::note_changes) it and let the kernel
    /// [forget](Self::refresh) it.
    pub fn shared(&self) -> Option<&tokio::sync::Mutex<Option<Transaction>>> {
        self.node.calls.shared()
    }

    /// Begins the next transaction of a mount that is made by [`invocations`](Self::invocations),
    /// unless the last one was not taken.
    pub async fn begin(&self) {
        self.node.calls.begin().await;
    }

    /// The transaction that was taken has committed, at `slot` if it has written anything. Without
    /// this, the next one drops what it has changed from the kernel.
    pub fn committed(&self, slot: Option<Slot>) {
        if let Some(invocations) = &self.node.invocations {
            invocations.committed(slot);
        }
    }

    /// Whether the kernel may have names, attributes or pages of earlier transactions.
    pub fn has_given(&self) -> bool {
        let invocations = self.node.invocations.as_ref();
        invocations.is_some_and(Invocations::has_given)
    }

    /// Notes that calls beside the mount have changed files of its transaction.
    pub async fn note_changes(&self) {
        if let (Some(shared), Some(invocations)) = (self.shared(), &self.node.invocations) {
            let transaction = shared.lock().await;
            let changed = transaction.as_ref().map(Transaction::changed);
            changed
                .into_iter()
                .flatten()
                .for_each(|ino| invocations.change(ino));
        }
    }

    /// Lets the kernel forget them, before the next transaction begins. It waits for the kernel, so
    /// a thread calls it that handles no requests.
    ///
    /// # Errors
    /// The kernel refuses a notification.
    pub fn expire(&self, notifier: &Notifier) -> io::Result<()> {
        let invocations = self.node.invocations.as_ref();
        invocations.map_or(Ok(()), |invocations| invocations.expire(notifier))
    }

    /// As [`expire`](Self::expire), within a transaction that was changed beside the mount.
    ///
    /// # Errors
    /// The kernel refuses a notification.
    pub fn refresh(&self, notifier: &Notifier) -> io::Result<()> {
        let invocations = self.node.invocations.as_ref();
        invocations.map_or(Ok(()), |invocations| invocations.refresh(notifier))
    }
}

impl Handler for FileHandler {
    fn handle(&self, request: Request<'_>, responder: Responder) {
        match self.node.work(request) {
            Work::Done(outcome) => answer::send(outcome, responder),
            Work::Later(patience, work) => {
                self.in_flight.run(&self.runtime, patience, work, responder);
            }
        }
    }

    fn forget(&self, _inode: u64, _lookups: u64) {}

    fn interrupt(&self, unique: u64) {
        self.in_flight.interrupt(unique);
    }

    fn ended(&self) {
        self.is_unmounted.send_replace(true);
        let node = Arc::clone(&self.node);
        self.runtime.spawn(async move {
            if let Err(error) = node.calls.files().end_session().await {
                tracing::info!(%error, "the server ends the locks of this mount by itself");
            }
        });
    }
}

impl Node {
    /// Starts a request about names or attributes; passes others on.
    fn work(self: &Arc<Self>, request: Request<'_>) -> Work {
        let Header { inode, .. } = request.header;
        let (ino, node) = (Ino(inode), Arc::clone(self));
        let by = self.creator(&request.header);
        match request.operation {
            Operation::Lookup(name) => self.later(node.lookup(ino, copied(name))),
            Operation::GetAttr(_) => self.later(node.get_attributes(ino)),
            Operation::SetAttr(set) => self.later(node.set_attributes(ino, set)),
            Operation::ReadLink => self.later(node.read_link(ino)),
            Operation::Symlink { name, target } => {
                self.later(node.symlink(ino, by, copied(name), copied(target)))
            }
            Operation::MkNod {
                mode,
                rdev,
                umask,
                name,
            } => self.later(node.make_node(ino, by.with(mode & !umask), rdev, copied(name))),
            Operation::MkDir { mode, umask, name } => {
                self.later(node.make_directory(ino, by.with(mode & !umask), copied(name)))
            }
            Operation::Create {
                flags,
                mode,
                umask,
                name,
                ..
            } => self.later(node.create(ino, by.with(mode & !umask), flags, copied(name))),
            Operation::TmpFile {
                flags, mode, umask, ..
            } => self.later(node.create_unnamed(ino, by.with(mode & !umask), flags)),
            Operation::Unlink(name) => self.later(node.unlink(ino, copied(name))),
            Operation::RmDir(name) => self.later(node.remove_directory(ino, copied(name))),
            Operation::Rename {
                directory_new,
                flags,
                name,
                name_new,
            } => {
                let to = Ino(directory_new);
                self.later(node.rename(ino, to, flags, copied(name), copied(name_new)))
            }
            Operation::Link { inode, name } => self.later(node.link(Ino(inode), ino, copied(name))),
            _ => self.work_on_files(request),
        }
    }

    /// Starts a request about the content of a file or a directory; passes others on.
    fn work_on_files(self: &Arc<Self>, request: Request<'_>) -> Work {
        let (ino, node) = (Ino(request.header.inode), Arc::clone(self));
        match request.operation {
            Operation::Open {
                flags,
                kills_privileges,
            } => self.later(node.open(ino, flags, kills_privileges)),
            Operation::Read(read) => self.later(node.read(ino, read.offset, read.size)),
            Operation::Write(write) => {
                let target = data::Target::of(&write);
                self.later(node.write(ino, target, copied(write.data)))
            }
            Operation::Fallocate {
                offset,
                length,
                mode,
                ..
            } => self.later(node.allocate(ino, mode, offset, length)),
            // The kernel asks without the writes that it keeps. From then on it takes the whole of
            // each file for data.
            Operation::LSeek { .. } if self.writers.has(ino) => Work::Done(Err(Errno::ENOSYS)),
            Operation::LSeek { offset, whence, .. } => self.later(node.seek(ino, whence, offset)),
            Operation::FSync { .. } | Operation::FSyncDir { .. } | Operation::SyncFs => {
                self.later(node.sync(ino))
            }
            Operation::Flush { lock_owner, .. } => {
                if self.locks.has(ino, lock_owner) {
                    self.later(node.unlock_process(ino, lock_owner))
                } else {
                    Work::Done(Ok(Answer::Done))
                }
            }
            Operation::Release(release) => {
                self.writers.close(ino, release.flags);
                self.later(node.release(ino, release.flock_owner))
            }
            Operation::OpenDir(_) => Work::Done(Ok(self.open_directory(ino))),
            Operation::ReadDir(read) => self.later(node.list(read)),
            Operation::ReadDirPlus(read) => self.later(node.list_with_attributes(read)),
            Operation::ReleaseDir(release) => {
                self.directories.close(release.handle);
                Work::Done(Ok(Answer::Done))
            }
            _ => self.work_on_rest(request),
        }
    }

    /// Starts a request about locks, extended attributes or the volume.
    fn work_on_rest(self: &Arc<Self>, request: Request<'_>) -> Work {
        let (ino, node) = (Ino(request.header.inode), Arc::clone(self));
        match request.operation {
            Operation::StatFs => self.later(node.usage()),
            Operation::GetXattr { size, name } => match xattrs::check(name) {
                Ok(()) => self.later(node.get_xattr(ino, size, copied(name))),
                Err(errno) => Work::Done(Err(errno)),
            },
            Operation::SetXattr { name, value, flags } => match xattrs::check(name) {
                Ok(()) => self.later(node.set_xattr(ino, flags, copied(name), copied(value))),
                Err(errno) => Work::Done(Err(errno)),
            },
            Operation::ListXattr(size) => self.later(node.list_xattrs(ino, size)),
            Operation::RemoveXattr(name) => self.later(node.remove_xattr(ino, copied(name))),
            Operation::GetLock(lock) => self.later(node.get_lock(ino, lock)),
            Operation::SetLock(lock) => self.later(node.set_lock(ino, lock)),
            Operation::SetLockWait(lock) if lock.lock.kind == LockKind::Unlocked => {
                self.later(node.set_lock(ino, lock))
            }
            Operation::SetLockWait(lock) => {
                Work::Later(Patience::None, Box::pin(node.wait_for_lock(ino, lock)))
            }
            // The kernel checks permissions itself, has stat for statx, reads and writes for
            // copy_file_range.
            _ => Work::Done(Err(Errno::ENOSYS)),
        }
    }

    /// Whether the kernel keeps writes. Only while all changes come from this mount.
    fn gathers_writes(&self) -> bool {
        matches!(self.calls, Calls::Together(_)) && self.invocations.is_none()
    }

    /// The owner of an inode that a request creates.
    fn creator(&self, header: &Header) -> Creator {
        let Header { uid, gid, .. } = *header;
        let (uid, gid) = match &self.invocations {
            None => (uid, gid),
            Some(invocations) => {
                invocations.called_by(header);
                OWNER
            }
        };
        Creator { uid, gid }
    }

    /// Attributes for the kernel.
    fn given(&self, attributes: &Attributes) -> wire::Attributes {
        let mut given = answer::attributes(attributes, self.block_bytes);
        if let Some(invocations) = &self.invocations {
            invocations.give(&mut given);
        }
        given
    }

    /// A name for the kernel, with the attributes of its inode.
    fn entry(&self, attributes: &Attributes) -> Entry {
        Entry {
            attributes: self.given(attributes),
            // Numbers are never used again.
            generation: 0,
            name_ttl: self.caching.name_ttl,
            attributes_ttl: self.ttl(attributes),
        }
    }

    /// How long the kernel may cache attributes. It does not notice that a write takes
    /// set-user-ID bits, so it asks for a mode that has them each time.
    fn ttl(&self, attributes: &Attributes) -> Duration {
        match attributes.kind {
            Kind::File if attributes.access.mode & SET_ID != 0 => Duration::ZERO,
            _ => self.caching.ttl,
        }
    }

    /// A call that may wait for the volume.
    fn later(&self, work: impl Future<Output = Outcome> + Send + 'static) -> Work {
        let patience = match self.calls {
            Calls::Each(_) => Patience::Short,
            // A call that ends half way would leave a part of it in the transaction.
            Calls::Together(_) => Patience::Endless,
        };
        Work::Later(patience, Box::pin(work))
    }
}

/// The user and group that own a new inode.
#[derive(Debug, Clone, Copy)]
struct Creator {
    uid: u32,
    gid: u32,
}

impl Creator {
    /// The access of the inode, with the type bits of its mode.
    fn with(self, mode: u32) -> files::model::Access {
        let Self { uid, gid } = self;
        files::model::Access { mode, uid, gid }
    }
}

fn copied(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
