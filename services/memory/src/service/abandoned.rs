//! The removal of uploads in parts: of those that have ended, and of those that their client abandoned.
//!
//! A loop aborts each upload that has been open for too long. It sleeps until the oldest is due. While
//! no upload is open it makes no call, and the next one that begins wakes it. An abort is one
//! conditional change, so that a completion at the same time decides for one of both.
//!
//! Invariant: each upload whose rows remain is in [`UploadLimit`], or another scan is due.

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use futures_util::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Service;
use crate::{
    Error, Result,
    model::UploadId,
    storage::{buckets, rows::BucketId, uploads},
};

/// The rows of parts that one change removes, with their pending rows.
const PARTS_AT_ONCE: usize = 16;
/// The pause in a shared store, where other servers begin uploads too.
const LOOK_AGAIN: Duration = Duration::from_hours(1);
/// The pause after a failure.
const RETRY: Duration = Duration::from_mins(1);

/// The uploads that the process remembers. Once there are more, a scan also looks for those that have
/// ended.
const REMEMBERED_MAX: usize = 100_000;

/// How long an upload may be open, and which are.
#[derive(Debug)]
pub(super) struct UploadLimit {
    age_max: Duration,
    /// There is something to look for.
    changed: Notify,
    /// An upload may have ended, whose parts remain then: the next scan is due at once.
    has_ended: Notify,
    open: Mutex<Open>,
}

/// The uploads whose rows remain.
#[derive(Debug, Default)]
struct Open {
    uploads: BTreeSet<UploadId>,
    has_forgotten: bool,
}

impl UploadLimit {
    pub(super) fn new(age_max: Duration) -> Arc<Self> {
        Arc::new(Self {
            age_max,
            changed: Notify::new(),
            has_ended: Notify::new(),
            // Those of earlier starts.
            open: Mutex::new(Open {
                uploads: BTreeSet::new(),
                has_forgotten: true,
            }),
        })
    }

    /// An upload has begun, or may have begun, or its rows could not be removed.
    pub(super) fn remains(&self, upload: UploadId) {
        self.add(upload);
        self.changed.notify_one();
    }

    /// An upload may have ended: the answer was lost.
    pub(super) fn may_have_ended(&self, upload: UploadId) {
        self.remains(upload);
        self.has_ended.notify_one();
    }

    fn add(&self, upload: UploadId) {
        let mut open = self.open.lock();
        if open.uploads.len() < REMEMBERED_MAX {
            open.uploads.insert(upload);
        } else {
            open.has_forgotten = true;
        }
    }

    /// The rows of an upload are removed.
    fn is_gone(&self, upload: UploadId) {
        self.open.lock().uploads.remove(&upload);
    }

    fn is_none_open(&self) -> bool {
        let open = self.open.lock();
        open.uploads.is_empty() && !open.has_forgotten
    }
}

impl Service {
    /// Removes what remains of ended uploads, and aborts abandoned ones, until it is dropped.
    pub(super) async fn collect_uploads(&self) {
        loop {
            if self.upload_limit.is_none_open() && self.members.is_none() {
                self.upload_limit.changed.notified().await;
                continue;
            }
            match self.collect_due_uploads().await {
                Ok(Some(pause)) => self.sleep_until_due(pause).await,
                Ok(None) if self.members.is_some() => self.sleep_until_due(LOOK_AGAIN).await,
                Ok(None) => self.upload_limit.changed.notified().await,
                Err(error) => {
                    self.upload_limit.open.lock().has_forgotten = true;
                    tracing::warn!(%error, "uploads cannot be collected yet");
                    self.table.clock.sleep(RETRY).await;
                }
            }
        }
    }

    /// Sleeps until an upload is due, or one has ended.
    async fn sleep_until_due(&self, pause: Duration) {
        let pause = if self.members.is_some() {
            pause.min(LOOK_AGAIN)
        } else {
            pause
        };
        let ended = pin!(self.upload_limit.has_ended.notified());
        select(ended, self.table.clock.sleep(pause)).await;
    }

    /// The time until the oldest open upload is due; none: no upload is open.
    async fn collect_due_uploads(&self) -> Result<Option<Duration>> {
        *self.upload_limit.open.lock() = Open::default();
        let mut next = None;
        for bucket in self.buckets().await? {
            match self.collect_due_in(&bucket.name).await {
                Ok(due) => next = [next, due].into_iter().flatten().min(),
                Err(Error::NoSuchBucket) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    async fn collect_due_in(&self, bucket: &str) -> Result<Option<Duration>> {
        self.clean_bucket(bucket).await?;
        let (mut next, mut has_aborted) = (None, false);
        for upload in self.uploads(bucket, "", None, usize::MAX).await? {
            let age = Duration::from_millis(self.table.now().ms_since(upload.begun));
            let rest = self.upload_limit.age_max.saturating_sub(age);
            if !rest.is_zero() {
                self.upload_limit.add(upload.id);
                next = [next, Some(rest)].into_iter().flatten().min();
                continue;
            }
            match self.abort(bucket, &upload.key, upload.id).await {
                Ok(()) => {
                    tracing::info!(bucket, key = upload.key, "aborted an abandoned upload");
                    has_aborted = true;
                }
                // Its client has ended it.
                Err(Error::NoSuchUpload) => {}
                Err(error) => return Err(error),
            }
        }
        if has_aborted {
            self.clean_bucket(bucket).await?;
        }
        Ok(next)
    }

    pub(super) fn remove_parts_later(&self, bucket: BucketId, upload: UploadId) {
        let service = self.clone();
        tokio::spawn(async move {
            // If it fails, the next look at the uploads removes them.
            if let Err(error) = service.remove_parts(bucket, upload).await {
                tracing::debug!(%error, "the parts of an upload cannot be removed yet");
                service.upload_limit.remains(upload);
            }
        });
    }

    /// Removes the rows of an upload that has ended.
    async fn remove_parts(&self, bucket: BucketId, upload: UploadId) -> Result<()> {
        let (found, _) = uploads::read(&self.table, bucket, upload).await?;
        let Some(used) = found.and_then(|found| found.row.ended) else {
            return Ok(());
        };
        let parts = uploads::parts_of(&self.table, bucket, upload, 0, None).await?;
        for parts in parts.chunks(PARTS_AT_ONCE) {
            let (mut writes, mut unused) = (Vec::new(), Vec::new());
            for (number, part) in parts {
                writes.push(uploads::remove_part(bucket, (upload, *number), part));
                if used.binary_search(number).is_err() {
                    unused.extend_from_slice(&part.row.place.segments);
                }
            }
            if !self.change_segments(&unused, writes).await? {
                return Ok(());
            }
        }
        uploads::forget(&self.table, bucket, upload).await?;
        self.upload_limit.is_gone(upload);
        Ok(())
    }

    /// Removes the rows of uploads that have ended. Errors: `NoSuchBucket`.
    pub(super) async fn clean_bucket(&self, bucket: &str) -> Result<()> {
        let known = buckets::find(&self.table, bucket).await?;
        for (upload, found) in uploads::all(&self.table, known.id).await? {
            if found.row.ended.is_some() {
                self.remove_parts(known.id, upload).await?;
            }
        }
        Ok(())
    }
}
