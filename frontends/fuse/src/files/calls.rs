//! Calls as transactions: each its own, or all together.

use std::sync::Arc;

use bytes::Bytes;
use files::{
    Errno, FileSystem, Ino, Listing, Result, Transaction,
    model::{Access, Attributes, DirectoryEntry},
};
use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use tokio::sync::Notify;
use transactions::serializable::{
    lock_table::LockTable,
    model::{Granted, Lock, Owner, SessionId, Slot, Wait},
};

/// How calls become transactions.
#[derive(Debug)]
pub(super) enum Calls {
    /// Each is one.
    Each(Arc<FileSystem>),
    /// All are one.
    Together(Box<Together>),
}

/// One transaction for all calls, and the locks among its processes.
#[derive(Debug)]
pub(super) struct Together {
    files: Arc<FileSystem>,
    /// `None` once it is taken.
    transaction: tokio::sync::Mutex<Option<Transaction>>,
    locks: Mutex<LockTable>,
    /// Locks were freed.
    freed: Notify,
}

impl Calls {
    pub(super) fn each(files: Arc<FileSystem>) -> Self {
        Self::Each(files)
    }

    pub(super) fn together(files: Arc<FileSystem>, transaction: Transaction) -> Self {
        Self::Together(Box::new(Together {
            files,
            transaction: tokio::sync::Mutex::new(Some(transaction)),
            locks: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    pub(super) fn files(&self) -> &Arc<FileSystem> {
        match self {
            Self::Each(files) => files,
            Self::Together(together) => &together.files,
        }
    }

    pub(super) async fn take(&self) -> Option<Transaction> {
        match self {
            Self::Each(_) => None,
            Self::Together(together) => together.transaction.lock().await.take(),
        }
    }

    /// The one transaction; `None`: each call is one.
    pub(super) fn shared(&self) -> Option<&tokio::sync::Mutex<Option<Transaction>>> {
        match self {
            Self::Each(_) => None,
            Self::Together(together) => Some(&together.transaction),
        }
    }

    /// Begins the next transaction, unless the present one is not taken yet.
    pub(super) async fn begin(&self) {
        if let Self::Together(together) = self {
            let transaction = &mut *together.transaction.lock().await;
            transaction.get_or_insert_with(|| together.files.begin());
        }
    }

    /// Runs `work` as a transaction, perhaps several times; or once, as a part of the one.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        match self {
            Self::Each(files) => files.transact_in_steps(work).await,
            Self::Together(together) => {
                let transaction = &mut *together.transaction.lock().await;
                work(transaction.as_mut().ok_or(Errno::EIO)?).await
            }
        }
    }

    /// As [`run`](Self::run), for work that changes something. Of a mount, it costs no reads where
    /// those of earlier calls hold.
    pub(super) async fn change<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<T>>,
    {
        match self {
            Self::Each(files) => files.change(work).await,
            Self::Together(_) => self.run(work).await,
        }
    }

    pub(super) async fn list(
        &self,
        listing: &mut Listing,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        match self {
            Self::Each(files) => files.list(listing, cookie, count).await,
            Self::Together(together) => {
                let transaction = &mut *together.transaction.lock().await;
                let transaction = transaction.as_mut().ok_or(Errno::EIO)?;
                transaction.list(listing, cookie, count).await
            }
        }
    }

    /// Creates a file, and keeps its data until it is closed.
    pub(super) async fn open_created(
        &self,
        parent: Ino,
        access: Access,
        name: Bytes,
    ) -> Result<Attributes> {
        match self {
            Self::Each(files) => files.open_created(parent, access, &name).await,
            Self::Together(_) => {
                self.run(move |transaction| {
                    let name = name.clone();
                    async move {
                        let ino = transaction.create(parent, access, &name).await?;
                        transaction.getattr(ino).await
                    }
                    .boxed()
                })
                .await
            }
        }
    }

    /// Creates a file without a name, and keeps its data until it is closed or has a name.
    pub(super) async fn open_unnamed(&self, parent: Ino, access: Access) -> Result<Ino> {
        match self {
            Self::Each(files) => files.open_unnamed(parent, access).await,
            Self::Together(_) => {
                self.run(move |transaction| transaction.create_unnamed(parent, access).boxed())
                    .await
            }
        }
    }

    /// Keeps the data of an open file. A transaction reads versions, which stay without a hold.
    pub(super) async fn hold(&self, ino: Ino) -> Result<()> {
        match self {
            Self::Each(files) => files.hold(ino).await,
            Self::Together(_) => Ok(()),
        }
    }

    pub(super) async fn close(&self, ino: Ino) -> Result<()> {
        match self {
            Self::Each(files) => files.close(ino).await,
            Self::Together(_) => Ok(()),
        }
    }

    /// Waits for the disk. Of a transaction nothing survives before its commit.
    pub(super) async fn sync(&self, ino: files::Ino) -> Result<()> {
        match self {
            Self::Each(files) => files.fsync_of(ino).await,
            Self::Together(_) => Ok(()),
        }
    }

    pub(super) async fn lock(&self, owner: u64, lock: Lock) -> Result<Granted> {
        match self {
            Self::Each(files) => files.lock(owner, lock).await,
            Self::Together(together) => Ok(together.lock(owner, lock).await),
        }
    }
}

impl Together {
    async fn lock(&self, id: u64, lock: Lock) -> Granted {
        // The table is of this mount alone, so the session does not matter.
        let session = SessionId(0);
        let owner = Owner { session, id };
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            let granted = self.ask(owner, &lock).await;
            if granted == Granted::Yes || lock.wait != Wait::UntilGranted {
                // An unlock frees bytes, and so does an exclusive lock that becomes shared.
                self.freed.notify_waiters();
                return granted;
            }
            freed.await;
        }
    }

    /// Takes or tests a lock now. No process outside is asked, so the commit checks that none was in
    /// the way. Nothing waits once it is granted: an interrupt there would leave it to its process.
    async fn ask(&self, owner: Owner, lock: &Lock) -> Granted {
        let transaction = &mut *self.transaction.lock().await;
        let locks = &mut *self.locks.lock();
        let granted = match lock.wait {
            Wait::Test => locks.test(owner, lock),
            _ => locks.take(owner, lock, Slot::default()),
        };
        if granted == Granted::Yes
            && let Some(transaction) = transaction
        {
            transaction.elide_lock(lock);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use files::{file_system::lock_key, model::Access};
    use futures_util::poll;
    use in_process::{SystemClock, SystemEntropy};
    use transactions::serializable::{
        ModelVolume,
        model::{BlockBytes, LockBytes, LockFamily, LockMode},
    };

    use super::*;

    /// A call that is interrupted while it waits leaves no lock.
    #[tokio::test]
    async fn an_interrupted_call_leaves_no_lock() {
        let block_bytes = BlockBytes::new(16 << 10).expect("a power of two");
        let volume = Arc::new(ModelVolume::new(block_bytes));
        let (clock, entropy) = (Arc::new(SystemClock), Arc::<SystemEntropy>::default());
        let (uid, gid, mode) = (0, 0, 0o755);
        let root = Access { mode, uid, gid };
        let files = FileSystem::open(volume, clock, entropy, SessionId(1), root).await;
        let files = Arc::new(files.expect("it opens"));
        let calls = Calls::together(Arc::clone(&files), files.begin());
        let Calls::Together(together) = &calls else {
            unreachable!("as it was made")
        };
        let lock = |wait| Lock {
            key: lock_key(Ino::ROOT),
            family: LockFamily::Flock,
            bytes: LockBytes::ALL,
            mode: LockMode::Exclusive,
            pid: 1,
            wait,
        };
        let running = together.transaction.lock().await;
        {
            let mut waiting = calls.lock(1, lock(Wait::UntilGranted)).boxed();
            assert!(matches!(poll!(&mut waiting), Poll::Pending));
        }
        drop(running);
        assert_eq!(calls.lock(2, lock(Wait::Never)).await, Ok(Granted::Yes));
        assert!(matches!(
            calls.lock(1, lock(Wait::Never)).await,
            Ok(Granted::No { .. })
        ));
    }
}
