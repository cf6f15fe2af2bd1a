//! Copies from the buffer to the store behind, until each is confirmed.

use std::time::Duration;

use futures_util::{TryStreamExt as _, future::join_all};
use ports::objects::{
    MultipartUpload, ObjectError, ObjectPath, ObjectStoreExt as _, PutMode, PutOptions,
};
use primitives::Backoff;

use super::{Buffer, delete};
use crate::{broken::Broken, fragment::FragmentName, stored_name};

/// The copies under way.
const COPIES_MAX: usize = 4;
/// A larger fragment is copied in parts of this size, one after the other. S3 takes no smaller ones
/// than 5 MiB.
const PART_BYTES: u64 = 8 << 20;
/// The pauses of a worker whose copies fail. It never gives up.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(30),
    attempts_max: u32::MAX,
};

impl Buffer {
    /// Copies until the service ends. Takes up what an earlier start left.
    pub(crate) async fn run(&self) {
        let mut pauses = PAUSES.delays();
        while let Err(error) = self.list().await {
            tracing::warn!(%error, "the buffer before the object store cannot be listed yet");
            self.wait(&mut pauses).await;
        }
        join_all((0..COPIES_MAX).map(|_| self.copy_all())).await;
    }

    /// Finds the fragments of earlier starts.
    async fn list(&self) -> Result<(), ObjectError> {
        let listed = self.parts.files.list(Some(&stored_name::folder()));
        let listed: Vec<_> = listed.try_collect().await?;
        let mut state = self.state.lock();
        for found in listed {
            if let Some(name) = stored_name::name(&found.location) {
                state.bytes += found.size;
                state.add(name, found.size, true);
            }
        }
        state.is_listed = true;
        drop(state);
        self.freed.notify_waiters();
        Ok(())
    }

    /// One worker. A fragment that cannot be copied goes to the end of the queue, so that it keeps
    /// no other waiting (P1).
    async fn copy_all(&self) {
        let mut pauses = PAUSES.delays();
        loop {
            let Some((name, bytes)) = self.next() else {
                self.added.notified().await;
                continue;
            };
            let copied = self.copy(name, bytes).await;
            if self.settle(name, copied).await {
                pauses = PAUSES.delays();
            } else {
                self.wait(&mut pauses).await;
            }
        }
    }

    fn next(&self) -> Option<(FragmentName, u64)> {
        let mut state = self.state.lock();
        loop {
            let name = state.waiting.pop_front()?;
            let buffered = state.fragments.get_mut(&name);
            if let Some(buffered) = buffered.filter(|one| !one.is_deleted && !one.is_copying) {
                (buffered.is_copying, buffered.was_sent) = (true, true);
                return Some((name, buffered.bytes));
            }
        }
    }

    /// Ends a copy. Whether the fragment needs no other attempt.
    async fn settle(&self, name: FragmentName, copied: Result<(), ObjectError>) -> bool {
        let is_copied = copied.is_ok() || self.parts.mutant.breaks(Broken::RemovesUncopied);
        let removed = match copied {
            Err(error) if !is_copied => Err(error),
            _ if self.is_deleted(name) => Ok(()),
            _ => delete(&*self.parts.files, &stored_name::path(name)).await,
        };
        let now = self.parts.clock.monotonic();
        let mut state = self.state.lock();
        let Err(error) = removed else {
            if let Some(lasted) = state.outage.ended(now) {
                tracing::info!(?lasted, "the object store takes fragments again");
            }
            let is_deleted = state.end_copy(name);
            drop(state);
            if !is_deleted {
                self.remove(name);
            }
            return true;
        };
        state.note_late(name, now);
        if !state.end_copy(name) {
            state.waiting.push_back(name);
            let (fragments, bytes) = (state.fragments.len(), state.bytes);
            if let Some(lasts) = state.outage.failed(now, &error.to_string()) {
                tracing::warn!(
                    %error, ?lasts, fragments, bytes,
                    "the object store does not take fragments; they wait in the buffer"
                );
            }
        }
        false
    }

    fn is_deleted(&self, name: FragmentName) -> bool {
        let state = self.state.lock();
        state.fragments.get(&name).is_none_or(|one| one.is_deleted)
    }

    async fn copy(&self, name: FragmentName, bytes: u64) -> Result<(), ObjectError> {
        let path = stored_name::path(name);
        if bytes <= PART_BYTES {
            let whole = self.parts.files.get(&path).await?.bytes().await?;
            let options = PutOptions::from(PutMode::Create);
            return match self
                .parts
                .behind
                .put_opts(&path, whole.into(), options)
                .await
            {
                // An earlier attempt took effect.
                Ok(_) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        let mut upload = self.parts.behind.put_multipart(&path).await?;
        let copied = self.copy_parts(name, &path, bytes, &mut *upload).await;
        if copied.is_err() {
            let _ = upload.abort().await;
        }
        copied
    }

    async fn copy_parts(
        &self,
        name: FragmentName,
        path: &ObjectPath,
        bytes: u64,
        upload: &mut dyn MultipartUpload,
    ) -> Result<(), ObjectError> {
        for start in (0..bytes).step_by(PART_BYTES as usize) {
            if self.is_deleted(name) {
                return Err(ObjectError::Generic {
                    store: "buffer",
                    source: "the fragment was deleted".into(),
                });
            }
            let range = start..bytes.min(start + PART_BYTES);
            let part = self.parts.files.get_range(path, range).await?;
            upload.put_part(part.into()).await?;
        }
        upload.complete().await.map(drop)
    }
}

impl super::State {
    /// Whether the fragment was deleted during its copy.
    fn end_copy(&mut self, name: FragmentName) -> bool {
        self.fragments.get_mut(&name).is_none_or(|buffered| {
            buffered.is_copying = false;
            buffered.is_deleted
        })
    }
}
