//! A volume that tells its reaper when there may be something to delete.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use files::reaper::may_unlink;
use futures_util::future::BoxFuture;
use ports::Read;
use tokio::sync::Notify;
use transactions::{
    Result,
    serializable::{
        VolumeStore,
        model::{Key, Proposal, SessionId, Verdict},
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
    transactions::forward_volume_calls! {
        block_bytes, snapshot, get_many, get_leased, recalled, scan, changed_since, stage,
        externalize, pin, unpin, pins, lock, hold, is_held, reserve_numbers, usage
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        let may_unlink = may_unlink(&proposal.writes);
        self.decided(may_unlink, self.inner.commit(proposal))
    }

    fn commit_leased(
        &self,
        session: SessionId,
        proposal: Proposal,
    ) -> BoxFuture<'_, Result<Read<Verdict>>> {
        let may_unlink = may_unlink(&proposal.writes);
        self.decided(may_unlink, self.inner.commit_leased(session, proposal))
    }

    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.inner.release(session, key).await?;
            self.wake.released();
            Ok(())
        })
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.inner.end_session(session).await?;
            self.wake.released();
            Ok(())
        })
    }
}

impl ReapedVolume {
    /// The verdict of `commit`, after which the task looks for unlinked files if there may be some.
    fn decided<'a>(
        &'a self,
        may_unlink: bool,
        commit: BoxFuture<'a, Result<Read<Verdict>>>,
    ) -> BoxFuture<'a, Result<Read<Verdict>>> {
        if !may_unlink {
            return commit;
        }
        Box::pin(async move {
            let decided = commit.await;
            self.wake.unlinked();
            decided
        })
    }
}
