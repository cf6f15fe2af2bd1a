//! Changes of objects, for subscribers outside of the service.
//!
//! A change that a subscriber wants is noted in the same write as the row that it changes, in an
//! *outbox*. A worker delivers the noted changes, and removes the notes after their delivery. A crash
//! between any two steps therefore delivers changes again, and loses none.
//!
//! Invariants
//! - A change is delivered only once it is durable (rule P5).
//! - Changes of one object are delivered one after another, in the order of their ids.
//! - The outbox holds at most [`NOTES_MAX`] notes, and what a few writes at the same time add. Beyond,
//!   a change that a subscriber wants is refused. Others are not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use ports::{Key, LogThrottle, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    Error, Result,
    storage::{
        own::{self, MemberId},
        table::{Found, Table, Write},
    },
};

const PARTITION: &str = "memory/e";
/// The most notes.
const NOTES_MAX: usize = 100_000;
/// The objects whose changes are delivered at a time. Each delivery waits for a sync.
const DELIVERIES_MAX: usize = 16;
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

fn key(member: Option<MemberId>, id: u128) -> Key {
    Key::new(own::partition(PARTITION, member), id.to_be_bytes())
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
        let key = key(self.table.member(), event.id);
        Ok(Some(Write::replace(key, event)))
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
            let passed = self.deliver_all(self.table.member()).await;
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

    /// Delivers each note of a server, also behind one of another object that cannot be delivered
    /// yet. Returns their number.
    pub(crate) async fn deliver_all(&self, member: Option<MemberId>) -> ports::Result<usize> {
        let Some(subscribers) = self.subscribers.get() else {
            return Ok(0);
        };
        let (mut count, mut left, mut failed) = (0, 0, None);
        let mut blocked = BTreeSet::new();
        let mut scan = Table::page(own::partition(PARTITION, member), Bytes::new());
        loop {
            let page = self.table.scan::<Event>(&scan, "an event").await?;
            self.table.externalize(page.point).await?;
            let mut objects = BTreeMap::<_, Vec<Event>>::new();
            for (_, Found { row, .. }) in page.found {
                let object = (row.bucket.clone(), row.key.clone());
                if blocked.contains(&object) {
                    left += 1;
                } else {
                    objects.entry(object).or_default().push(row);
                }
            }
            let turns = objects.into_iter().map(async |(object, events)| {
                let (delivered, error) = deliver_in_turn(&**subscribers, &events).await;
                (object, events.len(), delivered, error)
            });
            let mut turns = stream::iter(turns).buffer_unordered(DELIVERIES_MAX);
            let mut removals = Vec::new();
            while let Some((object, events, delivered, error)) = turns.next().await {
                count += delivered.len();
                left += events - delivered.len();
                let ids = delivered.into_iter();
                removals.extend(ids.map(|id| Write::forget(key(member, id))));
                if let Some(error) = error {
                    blocked.insert(object);
                    failed = Some(error);
                }
            }
            self.table.write_all(&removals).await?;
            if member == self.table.member() {
                self.are_gone(removals.len());
            }
            let Some(next) = page.next else { break };
            scan.from = next;
        }
        if member == self.table.member() {
            self.remain(left, count);
        }
        failed.map_or(Ok(count), Err)
    }

    /// Notes are removed.
    fn are_gone(&self, removed: usize) {
        let rest = |notes: usize| Some(notes.saturating_sub(removed));
        let _ = self
            .notes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }

    /// A pass left `left` notes. Those of earlier starts were not counted yet, and some were counted that were not written.
    fn remain(&self, left: usize, delivered: usize) {
        if left == 0 && delivered == 0 {
            self.notes.store(0, Ordering::Relaxed);
        } else {
            self.notes.fetch_max(left, Ordering::Relaxed);
        }
    }
}

/// Delivers changes of one object until one fails. Returns the ids of those before it.
async fn deliver_in_turn(
    subscribers: &dyn Subscribers,
    events: &[Event],
) -> (Vec<u128>, Option<ports::Error>) {
    let mut delivered = Vec::with_capacity(events.len());
    for event in events {
        if let Err(error) = subscribers.deliver(event).await {
            return (delivered, Some(error));
        }
        delivered.push(event.id);
    }
    (delivered, None)
}
