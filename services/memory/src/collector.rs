//! Garbage collection of segments that no row names.
//!
//! A pending row names each of them ([`crate::storage::pending`]). Segments that are being written or
//! read are held ([`crate::holds`]), and are looked at again later. The collector deletes the others,
//! and then the row. Each step may be repeated, so a crash between any two of them loses nothing.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Result,
    durable::DurableFragments,
    holds::Holds,
    residency::Residency,
    storage::{
        pending::{self, PendingId},
        table::Table,
    },
};

/// The rows that the collector remembers. Those beyond are found by another scan of the rows.
const REMEMBERED_MAX: usize = 100_000;
/// The pause after a failure.
const RETRY: std::time::Duration = std::time::Duration::from_secs(5);

/// Deletes segments. Clones share the queue.
#[derive(Debug, Clone)]
pub(crate) struct Collector {
    pub(crate) table: Table,
    pub(crate) durable: DurableFragments,
    pub(crate) residency: Arc<Residency>,
    pub(crate) holds: Holds,
    pub(crate) queue: Arc<Queue>,
}

/// Pending rows to look at.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeSet<PendingId>,
    has_forgotten: bool,
}

impl Queue {
    /// Has the collector look at a pending row.
    pub(crate) fn add(&self, id: PendingId) {
        let mut state = self.state.lock();
        if state.rows.len() < REMEMBERED_MAX {
            state.rows.insert(id);
        } else {
            state.has_forgotten = true;
        }
        drop(state);
        self.changed.notify_one();
    }

    fn take(&self) -> BTreeSet<PendingId> {
        std::mem::take(&mut self.state.lock().rows)
    }

    fn must_scan(&self) -> bool {
        std::mem::take(&mut self.state.lock().has_forgotten)
    }
}

impl Collector {
    /// Collects until the service ends. It begins with all pending segments of earlier starts.
    pub(crate) async fn run(self) {
        self.scan().await;
        loop {
            let mut failed = false;
            for id in self.queue.take() {
                match self.look_at(id).await {
                    Ok(true) => {}
                    // It is in use. The end of its use wakes this loop.
                    Ok(false) => self.keep(id),
                    Err(error) => {
                        tracing::debug!(%error, "pending segments cannot be collected yet");
                        self.keep(id);
                        failed = true;
                    }
                }
            }
            if failed {
                self.table.clock.sleep(RETRY).await;
                continue;
            }
            if self.queue.must_scan() {
                self.scan().await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.queue.changed.notified() => {}
                () = self.holds.released() => {}
            }
        }
    }

    fn keep(&self, id: PendingId) {
        self.queue.state.lock().rows.insert(id);
    }

    async fn scan(&self) {
        let mut from = Bytes::new();
        loop {
            match pending::page(&self.table, from.clone()).await {
                Ok((page, next)) => {
                    let ids = page.into_iter().map(|(id, _)| id);
                    self.queue.state.lock().rows.extend(ids);
                    let Some(next) = next else { return };
                    from = next;
                }
                Err(error) => {
                    tracing::debug!(%error, "the rows of pending segments cannot be read yet");
                    self.table.clock.sleep(RETRY).await;
                }
            }
        }
    }

    /// Whether the row needs no further look.
    async fn look_at(&self, id: PendingId) -> Result<bool> {
        let Some(segments) = pending::read(&self.table, id).await? else {
            return Ok(true);
        };
        let deletions = segments
            .iter()
            .map(|segment| self.holds.begin_deletion(segment.id));
        let Some(_deletions) = deletions.collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        // A commit may have come between the read and the deletion.
        if pending::read(&self.table, id).await?.is_none() {
            return Ok(true);
        }
        let mut deleted = Ok(());
        for segment in segments {
            self.residency.forget(segment.id);
            for fragment in segment.fragments() {
                // One that cannot be deleted yet keeps no other.
                deleted = deleted.and(self.durable.delete(fragment).await);
            }
        }
        deleted?;
        pending::forget(&self.table, id).await?;
        Ok(true)
    }
}
