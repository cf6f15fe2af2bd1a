//! A client's view of a volume: each call is one transaction, which runs again after a conflict.

mod open_inodes;
mod unsynced;

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use ports::{Clock, DurabilityPoint, Entropy};
use primitives::Mutant;
use transactions::serializable::{
    VolumeStore,
    model::{Granted, Key, Lock, Owner, SessionId, Slot},
};

use self::{open_inodes::OpenInodes, unsynced::Unsynced};
use crate::{
    broken::Broken,
    error::{Errno, Result},
    inode::{self, Field},
    leased::LeasedVolume,
    model::{
        Access, Allocation, Attributes, DirectoryEntry, Follow, Found, Ino, Privileges, RenameMode,
        Seek, SetAttributes, SetMode, Space,
    },
    transaction::{Context, Listing, Outcome, Steps, Transaction},
};

/// The time for which a call runs again after conflicts, or waits for a volume that does not
/// answer. Then it fails with `EIO`.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest pause after a conflict, in milliseconds. Pauses are random and become longer.
const PAUSE_MS_MAX: u64 = 64;

/// A file system on a volume, for one session. Its calls are those of [`Transaction`], each of
/// them a transaction of its own and so linearizable. They wait for no disk; [`fsync`] does.
///
/// Errors of all calls: `EIO` if the volume does not answer or conflicts do not end within 30 s.
///
/// [`fsync`]: Self::fsync
#[derive(Debug)]
pub struct FileSystem {
    context: Arc<Context>,
    session: SessionId,
    opened: OpenInodes,
    unsynced: Mutex<Unsynced>,
}

impl FileSystem {
    /// Opens the file system on `store`, and makes its root directory with `root` if it is missing.
    pub async fn open(
        store: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        session: SessionId,
        root: Access,
    ) -> Result<Self> {
        Self::broken(store, clock, entropy, session, root, Mutant::NONE).await
    }

    /// As [`open`](Self::open), with a rule dropped; only for tests.
    #[doc(hidden)]
    pub async fn broken(
        store: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        session: SessionId,
        root: Access,
        mutant: Mutant<Broken>,
    ) -> Result<Self> {
        let context = Context::new(store, clock, entropy, mutant);
        Self::opened(context, session, root).await
    }

    /// As [`open`](Self::open), on a volume whose memory answers the calls that are transactions of
    /// their own.
    pub async fn open_leased(
        store: Arc<LeasedVolume>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        session: SessionId,
        root: Access,
    ) -> Result<Self> {
        let leased = Some(Arc::clone(&store));
        let mut context = Context::new(store, clock, entropy, Mutant::NONE);
        context.leased = leased;
        Self::opened(context, session, root).await
    }

    async fn opened(context: Context, session: SessionId, root: Access) -> Result<Self> {
        let files = Self {
            context: Arc::new(context),
            session,
            opened: OpenInodes::default(),
            unsynced: Mutex::default(),
        };
        files
            .transact(move |transaction| transaction.make_root(root).boxed())
            .await?;
        Ok(files)
    }

    /// Begins a transaction of many calls. Its end is [`Transaction::commit`].
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.context.clone(), None)
    }

    /// Begins a transaction that reads the state at `at`. Errors of its calls: `ESTALE` once that is
    /// too old.
    pub fn begin_at(&self, at: Slot) -> Transaction {
        Transaction::new(self.context.clone(), Some(at))
    }

    /// Runs `work` as one transaction, again after each conflict. Errors: those of `work`, and
    /// those of [`Transaction::commit`].
    pub async fn transact<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        self.run(Steps::None, work).await
    }

    /// As [`transact`](Self::transact). Blocks that `work` clears may be deleted before, if they
    /// are too many for one transaction. Other clients then read zeros in their place for a while,
    /// and a crash may leave that state.
    pub async fn transact_in_steps<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        self.run(Steps::Ahead, work).await
    }

    async fn run<T, F>(&self, steps: Steps, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        Ok(self.run_to(steps, work).await?.0)
    }

    /// Also returns the point of the commit.
    async fn run_to<T, F>(&self, steps: Steps, work: F) -> Result<(T, DurabilityPoint)>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        let clock = &self.context.clock;
        let mut deadline = clock.monotonic() + CALL_TIME_MAX;
        let mut pause_ms_max = 1;
        // The next tries read at one slot: others change what the first one has read.
        let mut leased = self.context.leased.clone();
        loop {
            let is_late = || clock.monotonic() >= deadline;
            let mut transaction = self.begin();
            transaction.overlay.read_leased(leased.take());
            transaction.steps = steps;
            let result = work(&mut transaction).await;
            self.saw(transaction.point());
            if let (Steps::Ahead, Some((ino, first, end))) = (steps, transaction.too_long) {
                self.clear_ahead(ino, first, Some(end)).await?;
                deadline = clock.monotonic() + CALL_TIME_MAX;
                continue;
            }
            let errno = match result {
                Ok(value) => {
                    let inodes = transaction.changed();
                    match transaction.commit(None, is_late).await? {
                        Outcome::Committed { point } => {
                            self.committed(inodes, point).await?;
                            return Ok((value, point));
                        }
                        Outcome::Conflict { .. } => Errno::EIO,
                    }
                }
                Err(errno) if transaction.is_final() => {
                    transaction.learn(None);
                    return Err(errno);
                }
                Err(_) => Errno::EIO,
            };
            if is_late() {
                return Err(errno);
            }
            let pause_ms = self.context.entropy.below(pause_ms_max + 1);
            clock.sleep(Duration::from_millis(pause_ms)).await;
            pause_ms_max = (pause_ms_max * 2).min(PAUSE_MS_MAX);
        }
    }

    /// Deletes the blocks of a range, as many as there are. Blocks that are written meanwhile may
    /// stay.
    pub(crate) fn clear_ahead(
        &self,
        ino: Ino,
        first: u64,
        end: Option<u64>,
    ) -> BoxFuture<'_, Result<()>> {
        async move {
            let mut rest = Some(first);
            while let Some(next) = rest {
                let step = self
                    .transact(move |transaction| transaction.clear_step(ino, next, end).boxed());
                rest = step.await?;
            }
            Ok(())
        }
        .boxed()
    }

    /// As [`transact`](Self::transact), for work that changes something. Its first attempt uses
    /// values that earlier calls of this client have read. Where they still hold, it costs no
    /// reads.
    pub async fn change<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        let clock = &self.context.clock;
        let deadline = clock.monotonic() + CALL_TIME_MAX;
        let mut transaction = self.begin();
        let leased = self.context.leased.clone();
        transaction.overlay.read_leased(leased);
        let remembered = self.context.remembered.clone();
        transaction.overlay.rest_on(remembered, clock.monotonic());
        let result = work(&mut transaction).await;
        self.saw(transaction.point());
        if self.context.mutant.breaks(Broken::TrustsMemory) {
            transaction.overlay.forget_reads();
        }
        // Only a commit tells whether its reads hold, so refusals and reads alone do not count.
        if let Ok(value) = result
            && !transaction.overlay.is_read_only()
        {
            let is_late = || clock.monotonic() >= deadline;
            let inodes = transaction.changed();
            if let Outcome::Committed { point } = transaction.commit(None, is_late).await? {
                self.committed(inodes, point).await?;
                return Ok(value);
            }
        }
        self.transact_in_steps(work).await
    }

    /// Fetches the blocks of a range of bytes, so that the cache of the volume has them when they are
    /// read. The range has at most 1 MiB.
    pub async fn read_ahead(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        self.transact(move |transaction| transaction.read_ahead(ino, range.clone()).boxed())
            .await
    }

    /// Up to `count` entries after position `cookie`. All pages of a listing are of one moment,
    /// while that can be read; then it continues at a newer one. Errors: `ENOTDIR`, `ENOENT`.
    pub async fn list(
        &self,
        listing: &mut Listing,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let clock = &self.context.clock;
        let deadline = clock.monotonic() + CALL_TIME_MAX;
        let mut leased = self.context.leased.clone();
        loop {
            let mut transaction = Transaction::new(self.context.clone(), listing.at);
            transaction.overlay.read_leased(leased.take());
            let found = transaction.list(listing, cookie, count).await;
            self.saw(transaction.point());
            if found.is_ok() || transaction.is_final() || clock.monotonic() >= deadline {
                listing.at = transaction.overlay.at();
                return found;
            }
            if found == Err(Errno::ESTALE) {
                listing.at = None;
            } else {
                clock.sleep(Duration::from_millis(PAUSE_MS_MAX)).await;
            }
        }
    }

    /// Waits until all that this client has written or read survives a crash. Errors: `EIO`, once
    /// also if the server has started again since, as changes that were not synced may be lost.
    pub async fn fsync(&self) -> Result<()> {
        if self.unsynced.lock().take_any_lost() {
            return Err(Errno::EIO);
        }
        self.settle().await
    }

    /// As [`fsync`](Self::fsync), on behalf of one inode: once `EIO` if changes of it may be lost.
    pub async fn fsync_of(&self, ino: Ino) -> Result<()> {
        if self.unsynced.lock().take_lost(ino) {
            return Err(Errno::EIO);
        }
        self.settle().await
    }

    /// Waits until all that this client has seen survives a crash. It reports no earlier loss.
    pub async fn settle(&self) -> Result<()> {
        let point = self.unsynced.lock().point();
        let externalized = self.context.store.externalize(point).await;
        externalized.map_err(|_| Errno::EIO)?;
        self.unsynced.lock().synced(point);
        Ok(())
    }

    /// As [`transact`](Self::transact), and waits until this transaction survives a crash. Errors:
    /// also `EIO` if the server has lost it.
    pub async fn transact_durably<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        let (value, point) = self.run_to(Steps::None, work).await?;
        let externalized = self.context.store.externalize(point).await;
        externalized.map_err(|_| Errno::EIO)?;
        self.unsynced.lock().synced(point);
        Ok(value)
    }

    /// The space that the volume takes, as of a second ago.
    pub async fn statfs(&self) -> Result<Space> {
        let usage = self.context.store.usage().await.map_err(|_| Errno::EIO)?;
        let block_bytes = self.context.store.block_bytes().get();
        let bytes = usage.quota_bytes.unwrap_or(Space::BYTES_WITHOUT_QUOTA);
        let blocks = |bytes: u64| bytes / u64::from(block_bytes);
        Ok(Space {
            block_bytes,
            blocks: blocks(bytes),
            blocks_free: blocks(bytes.saturating_sub(usage.bytes)),
            keys: usage.keys,
        })
    }

    /// Takes, tests or frees a lock on the [`lock_key`] of an inode. `owner` is one of this session.
    pub async fn lock(&self, owner: u64, lock: Lock) -> Result<Granted> {
        let session = self.session;
        let owner = Owner { session, id: owner };
        let granted = self.context.store.lock(owner, lock).await;
        granted.map_err(|_| Errno::EIO)
    }

    /// Ends all locks and holds of this session. No call may follow.
    pub async fn end_session(&self) -> Result<()> {
        let ended = self.context.store.end_session(self.session).await;
        ended.map_err(|_| Errno::EIO)
    }

    /// The size of the volume's blocks.
    pub fn block_bytes(&self) -> u32 {
        self.context.store.block_bytes().get()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn saw(&self, point: DurabilityPoint) {
        if self.unsynced.lock().saw(point) {
            self.context.remembered.forget();
        }
    }

    /// Notes a commit of `inodes`.
    async fn committed(&self, inodes: Vec<Ino>, point: DurabilityPoint) -> Result<()> {
        self.saw(point);
        let are_many = self.unsynced.lock().changed(inodes, point);
        if are_many {
            self.settle().await
        } else {
            Ok(())
        }
    }
}

/// The key that sessions hold while an inode is open.
pub(crate) fn hold_key(ino: Ino) -> Key {
    inode::field(ino, Field::Existence)
}

pub use crate::inode::lock_key;

/// Defines calls that are one transaction each: arguments by value, then ones by reference.
macro_rules! calls {
    ($($name:ident($($value:ident: $type:ty),*; $($reference:ident),*) -> $answer:ty;)*) => {
        impl FileSystem {
            $(
                #[doc = concat!("As [`Transaction::", stringify!($name), "`].")]
                pub async fn $name(
                    &self,
                    $($value: $type,)*
                    $($reference: &Bytes,)*
                ) -> Result<$answer> {
                    $(let $reference = $reference.clone();)*
                    self.transact_in_steps(move |transaction| {
                        $(let $reference = $reference.clone();)*
                        async move { transaction.$name($($value,)* $(&$reference),*).await }.boxed()
                    })
                    .await
                }
            )*
        }
    };
}

calls! {
    lookup(parent: Ino; name) -> Found;
    stat(parent: Ino; name) -> Attributes;
    resolve(start: Ino, follow: Follow; path) -> Found;
    getattr(ino: Ino;) -> Attributes;
    setattr(ino: Ino, set: SetAttributes;) -> ();
    create(parent: Ino, access: Access; name) -> Ino;
    mknod(parent: Ino, access: Access, device: u32; name) -> Ino;
    mkdir(parent: Ino, access: Access; name) -> Ino;
    symlink(parent: Ino, access: Access; name, target) -> Ino;
    readlink(ino: Ino;) -> Bytes;
    link(ino: Ino, parent: Ino; name) -> ();
    unlink(parent: Ino; name) -> ();
    rmdir(parent: Ino; name) -> ();
    rename(from: Ino, to: Ino, mode: RenameMode; from_name, to_name) -> ();
    read(ino: Ino, offset: u64, count: u64;) -> Bytes;
    write(ino: Ino, offset: u64, privileges: Privileges; data) -> ();
    append(ino: Ino, privileges: Privileges; data) -> ();
    copy(from: Ino, from_offset: u64, to: Ino, to_offset: u64, count: u64, privileges: Privileges;) -> u64;
    note_access(ino: Ino;) -> ();
    truncate(ino: Ino, size: u64;) -> ();
    fallocate(ino: Ino, allocation: Allocation, offset: u64, count: u64;) -> ();
    seek(ino: Ino, seek: Seek, offset: u64;) -> u64;
    getxattr(ino: Ino; name) -> Bytes;
    setxattr(ino: Ino, mode: SetMode; name, value) -> ();
    removexattr(ino: Ino; name) -> ();
    listxattr(ino: Ino;) -> Vec<Bytes>;
}
