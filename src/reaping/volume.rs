//! A volume that tells its reaper when there may be something to delete.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use files::reaper::may_unlink;
use futures_util::future::BoxFuture;
use ports::{DurabilityPoint, Read};
use tokio::sync::Notify;
use transactions::{
    Result,
    serializable::{
        VolumeStore,
        model::{
            At, BlockBytes, Changed, Granted, Groups, Key, KeyRange, Lock, Owner, Page, PageLimits,
            PinName, Proposal, SessionId, Slot, Snapshot, StageId, Usage, Values, Verdict,
        },
    },
};

/// Wakes the task that deletes unlinked files.
#[derive(Debug, Default)]
pub(super) struct Wake {
    notify: Notify,
    /// Unlinked files are held, so that the end of a hold matters.
    expects_releases: AtomicBool,
    is_ended: AtomicBool,
}

impl Wake {
    /// Returns when there may be something to delete.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Whether the end of a hold wakes the task.
    pub(super) fn expect_releases(&self, are_expected: bool) {
        self.expects_releases.store(are_expected, Ordering::SeqCst);
    }

    /// The volume is gone.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Whether the volume is gone.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn unlinked(&self) {
        self.notify.notify_one();
    }

    fn released(&self) {
        if self.expects_releases.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}

/// A volume whose unlinked files are deleted.
#[derive(Debug)]
pub(super) struct ReapedVolume {
    pub(super) inner: Arc<dyn VolumeStore>,
    pub(super) wake: Arc<Wake>,
}

impl VolumeStore for ReapedVolume {
    fn block_bytes(&self) -> BlockBytes {
        self.inner.block_bytes()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        self.inner.snapshot()
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        self.inner.get_many(at, keys)
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        self.inner.scan(at, range, limits)
    }

    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>> {
        self.inner.changed_since(slot, groups)
    }

    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>> {
        self.inner.stage(stage, part, writes)
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        if !may_unlink(&proposal.writes) {
            return self.inner.commit(proposal);
        }
        Box::pin(async move {
            let decided = self.inner.commit(proposal).await;
            self.wake.unlinked();
            decided
        })
    }

    fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        self.inner.externalize(point)
    }

    fn pin(&self, name: PinName, slot: Slot) -> BoxFuture<'_, Result<()>> {
        self.inner.pin(name, slot)
    }

    fn unpin<'a>(&'a self, name: &'a PinName) -> BoxFuture<'a, Result<()>> {
        self.inner.unpin(name)
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<(PinName, Slot)>>> {
        self.inner.pins()
    }

    fn lock(&self, owner: Owner, lock: Lock) -> BoxFuture<'_, Result<Granted>> {
        self.inner.lock(owner, lock)
    }

    fn hold(&self, session: SessionId, key: Key) -> BoxFuture<'_, Result<()>> {
        self.inner.hold(session, key)
    }

    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.inner.release(session, key).await?;
            self.wake.released();
            Ok(())
        })
    }

    fn is_held<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        self.inner.is_held(key)
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.inner.end_session(session).await?;
            self.wake.released();
            Ok(())
        })
    }

    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>> {
        self.inner.reserve_numbers()
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        self.inner.usage()
    }
}
