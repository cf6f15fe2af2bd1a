//! The removal of uploads in parts: of those that have ended, and of those that their client abandoned.
//!
//! A loop aborts each upload that has been open for too long. It sleeps until the oldest is due. While
//! no upload is open it makes no call, and the next one that begins wakes it. An abort is one
//! conditional change, so that a completion at the same time decides for one of both.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::Service;
use crate::{
    Error, Result,
    model::UploadId,
    storage::{buckets, rows::BucketId, uploads},
};

/// The rows of parts that one change removes, with their pending rows.
const PARTS_AT_ONCE: usize = 16;
/// The pause after a failure.
const RETRY: Duration = Duration::from_mins(1);

/// How long an upload may be open.
#[derive(Debug)]
pub(super) struct UploadLimit {
    pub(super) age_max: Duration,
    /// An upload has begun.
    pub(super) begun: Notify,
}

impl UploadLimit {
    pub(super) fn new(age_max: Duration) -> Arc<Self> {
        Arc::new(Self {
            age_max,
            begun: Notify::new(),
        })
    }
}

impl Service {
    /// Removes what remains of ended uploads, and aborts abandoned ones, until it is dropped.
    pub(super) async fn collect_uploads(&self) {
        loop {
            match self.collect_due_uploads().await {
                Ok(Some(pause)) => self.table.clock.sleep(pause).await,
                Ok(None) => self.upload_limit.begun.notified().await,
                Err(error) => {
                    tracing::warn!(%error, "uploads cannot be collected yet");
                    self.table.clock.sleep(RETRY).await;
                }
            }
        }
    }

    /// The time until the oldest open upload is due; none: no upload is open.
    async fn collect_due_uploads(&self) -> Result<Option<Duration>> {
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
                service.upload_limit.begun.notify_one();
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
        uploads::forget(&self.table, bucket, upload).await
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
