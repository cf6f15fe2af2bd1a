//! Changes of objects, for subscribers outside of the service.
//!
//! A change that a subscriber wants is noted in the same write as the row that it changes, in an
//! *outbox*. A worker delivers the noted changes, and removes each note after its delivery. A crash
//! between any two steps therefore delivers a change again, and loses none.
//!
//! Invariants
//! - A change is delivered only once it is durable (rule P5).
//! - The outbox holds at most [`NOTES_MAX`] notes, and what a few writes at the same time add. Beyond,
//!   a change that a subscriber wants is refused. Others are not.

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Key, LogThrottle, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    Error, Result,
    storage::table::{Table, Write},
};

const PARTITION: &[u8] = b"memory/e";
/// The most notes.
const NOTES_MAX: usize = 100_000;
/// The pause after a failed delivery.
const RETRY: Duration = Duration::from_secs(1);

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A PUT or a form made the object.
    Put,
    /// A copy made it.
    Copy,
    /// An upload in parts made it.
    CompletedUpload,
    /// It was deleted.
    Deleted,
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Differs from that of any other change. Later changes of a key have greater ones, but for those
    /// within a millisecond.
    pub id: u128,
    /// What has changed.
    pub kind: Kind,
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// When.
    pub time: Timestamp,
    /// The size of the new object in bytes. 0 for a deletion.
    pub bytes: u64,
    /// Its ETag. Empty for a deletion.
    pub etag: String,
}

/// Receives changes.
#[async_trait]
pub trait Subscribers: Debug + Send + Sync {
    /// Whether a change is wanted. Returns at once.
    fn want(&self, bucket: &str, key: &str, kind: Kind) -> bool;

    /// Takes a change over: it is durable there when this returns. Repeated until it succeeds, and
    /// after a crash.
    async fn deliver(&self, event: &Event) -> ports::Result<()>;
}

/// The noted changes.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) table: Table,
    subscribers: OnceLock<Arc<dyn Subscribers>>,
    notes: AtomicUsize,
    changed: Notify,
}

fn key(id: u128) -> Key {
    Key::new(PARTITION, id.to_be_bytes())
}

impl Outbox {
    pub(crate) fn new(table: Table) -> Self {
        Self {
            table,
            subscribers: OnceLock::new(),
            notes: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    /// The first call decides.
    pub(crate) fn subscribe(&self, subscribers: Arc<dyn Subscribers>) {
        let _ = self.subscribers.set(subscribers);
    }

    /// The write that notes `event`, if it is wanted. Errors: `Backlog`.
    pub(crate) fn note(&self, event: &Event) -> Result<Option<Write>> {
        let subscribers = self.subscribers.get();
        if !subscribers.is_some_and(|one| one.want(&event.bucket, &event.key, event.kind)) {
            return Ok(None);
        }
        if self.notes.load(Ordering::Relaxed) >= NOTES_MAX {
            return Err(Error::Backlog(NOTES_MAX));
        }
        Ok(Some(Write::replace(key(event.id), event)))
    }

    /// A note was written, or may have been.
    pub(crate) fn has_noted(&self) {
        self.notes.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Delivers until it is dropped, beginning with the notes of earlier starts.
    pub(crate) async fn run(&self) {
        let mut outage = LogThrottle::default();
        loop {
            let passed = self.deliver_all().await;
            let now = self.table.clock.monotonic();
            match passed {
                Ok(count) => {
                    let _ = outage.ended(now);
                    if count == 0 {
                        self.changed.notified().await;
                    }
                }
                Err(error) => {
                    if let Some(lasts) = outage.failed(now, &error.to_string()) {
                        tracing::warn!(%error, ?lasts, "events of objects wait: their functions cannot take them yet");
                    }
                    self.table.clock.sleep(RETRY).await;
                }
            }
        }
    }

    /// Delivers each note, also behind one that cannot be delivered yet. Returns their number.
    async fn deliver_all(&self) -> ports::Result<usize> {
        let Some(subscribers) = self.subscribers.get() else {
            return Ok(0);
        };
        let (mut count, mut left, mut failed) = (0, 0, None);
        let mut scan = Table::page(PARTITION, Bytes::new());
        loop {
            let page = self.table.scan::<Event>(&scan, "an event").await?;
            self.table.externalize(page.point).await?;
            for (_, found) in page.found {
                if let Err(error) = subscribers.deliver(&found.row).await {
                    failed = Some(error);
                    left += 1;
                } else {
                    self.table.forget(&key(found.row.id)).await?;
                    count += 1;
                }
            }
            let Some(next) = page.next else { break };
            scan.from = next;
        }
        self.notes.store(left, Ordering::Relaxed);
        failed.map_or(Ok(count), Err)
    }
}
