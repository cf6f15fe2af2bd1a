//! Stores that break D1 to D6, as a crash shows.

mod answers;
mod objects;
mod undone;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;

use self::answers::Given;
use super::Broken;
use crate::{
    Clock, DurabilityPoint, Key, KeyValue, Queue, Receipt, Result, Update,
    contract::durability::{Crashable, Subject},
    decorate::{Decorator, KeyValueDecorator, QueueDecorator},
    decorates,
    key_value::{Change, SharedKeyValue, Transacted, Updated},
    objects::ObjectStore,
    queue::{Message, Retention, SharedQueue, SharedQueueAdmin},
};

/// Every broken store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("D1", "AcknowledgesBeforeFlushing", |honest| {
        around(honest, DurableAtOnce)
    }),
    Broken::new("D1", "WaitsForNothing", |honest| {
        around(honest, WaitsForNothing)
    }),
    Broken::new("D1", "CallsThePendingDurable", |honest| {
        around(honest, |store| CallsDurable(store, Ordering::Equal))
    }),
    Broken::new("D1", "CallsTheLostDurable", |honest| {
        around(honest, |store| CallsDurable(store, Ordering::Less))
    }),
    Broken::new(
        "D1",
        "FindsWhatIsNotKept",
        objects::finding_what_is_not_kept,
    ),
    Broken::new("D1", "LosesUploads", objects::losing_uploads),
    Broken::new("D2", "LosesOneInTheMiddle", |honest| {
        Box::new(Crashed(LosesOneInTheMiddle {
            honest,
            written: Arc::default(),
        }))
    }),
    Broken::new("D3", "ForgetsIncarnations", |honest| {
        around(honest, PositionsAlone)
    }),
    Broken::new("D3", "LosesWhatUndidItself", undone::losing),
    Broken::new("D4", "IgnoresDependencies", |honest| {
        around(honest, |store| IgnoresDependencies(store, Unchecked::All))
    }),
    Broken::new("D4", "ChecksOnlyTheFirstUpdate", |honest| {
        around(honest, |store| {
            IgnoresDependencies(store, Unchecked::AllButFirst)
        })
    }),
    Broken::new("D4", "ChecksOnlyTheLastUpdate", |honest| {
        around(honest, |store| {
            IgnoresDependencies(store, Unchecked::AllButLast)
        })
    }),
    Broken::new("D5", "LeavesTransientsBehind", |honest| {
        Box::new(Crashed(LeavesTransientsBehind {
            honest,
            before: Arc::default(),
        }))
    }),
    Broken::new("D5", "RemembersLostMessages", |honest| {
        Box::new(Crashed(RemembersLostMessages {
            honest,
            sent: Arc::default(),
        }))
    }),
    Broken::new("D6", "CoversNoItem", answers::of_an_item),
    Broken::new("D6", "CoversNoAbsence", answers::of_no_item),
    Broken::new("D6", "CoversNoPage", answers::of_a_page),
    Broken::new("D6", "CoversNoEmptyPage", answers::of_an_empty_page),
    Broken::new("D6", "CoversNoConflict", answers::of_a_conflict),
    Broken::new("D6", "CoversNoRepeat", answers::of_a_repeat),
    Broken::new(
        "D6",
        "CoversNothingUnchanged",
        answers::of_an_unchanged_item,
    ),
    Broken::new(
        "D6",
        "CoversNoRepeatedTransaction",
        answers::of_a_repeated_transaction,
    ),
    Broken::new(
        "D6",
        "CoversNoUnchangedTransaction",
        answers::of_an_unchanged_transaction,
    ),
    Broken::new(
        "D6",
        "CoversNoTransactionsConflict",
        answers::of_a_transactions_conflict,
    ),
    Broken::new("D6", "CoversNoCreation", |honest| {
        answers::of_queues(honest, Given::Creation)
    }),
    Broken::new("D6", "CoversNoRepeatedCreation", |honest| {
        answers::of_queues(honest, Given::RepeatedCreation)
    }),
    Broken::new("D6", "CoversNoRepeatedAcknowledgement", |honest| {
        answers::of_queues(honest, Given::RepeatedAcknowledgement)
    }),
    Broken::new("D6", "CoversNoRelease", |honest| {
        answers::of_queues(honest, Given::Release)
    }),
];

/// A provider with a broken store, or with a broken recovery from crashes.
#[async_trait]
trait Twisting: Debug + Send + Sync + Sized + 'static {
    fn honest(&self) -> &Subject;
    fn key_value(&self) -> SharedKeyValue;
    fn queue(&self) -> Option<SharedQueue> {
        self.honest().queue()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.honest().objects()
    }
    async fn crash_and_reopen(self) -> Self;
}

/// Makes a [`Twisting`] a subject.
#[derive(Debug)]
struct Crashed<T>(T);

#[async_trait]
impl<T: Twisting> Crashable for Crashed<T> {
    fn key_value(&self) -> SharedKeyValue {
        self.0.key_value()
    }
    fn queue(&self) -> Option<SharedQueue> {
        self.0.queue()
    }
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        self.0.honest().queue_admin()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.0.objects()
    }
    fn takes_parts(&self) -> bool {
        self.0.honest().takes_parts()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.honest().clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> Subject {
        Box::new(Self(self.0.crash_and_reopen().await))
    }
}

/// A store that is broken in the same way before and after each crash.
#[derive(Debug)]
struct Around<T> {
    honest: Subject,
    twist: fn(SharedKeyValue) -> T,
}

fn around<T: KeyValueDecorator + 'static>(
    honest: Subject,
    twist: fn(SharedKeyValue) -> T,
) -> Subject {
    Box::new(Crashed(Around { honest, twist }))
}

#[async_trait]
impl<T: KeyValueDecorator + 'static> Twisting for Around<T> {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        Arc::new((self.twist)(self.honest.key_value()))
    }
    async fn crash_and_reopen(self) -> Self {
        Self {
            honest: self.honest.crash_and_reopen().await,
            ..self
        }
    }
}

/// Says that everything is durable at once, and waits for nothing (D1).
#[derive(Debug)]
struct DurableAtOnce(SharedKeyValue);

impl Decorator for DurableAtOnce {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.0
    }
    async fn externalize(&self, _: DurabilityPoint) -> Result<()> {
        Ok(())
    }
    fn is_durable(&self, _: DurabilityPoint) -> bool {
        true
    }
}

impl KeyValueDecorator for DurableAtOnce {}

/// Reports points as durable without waiting (D1).
#[derive(Debug)]
struct WaitsForNothing(SharedKeyValue);

impl Decorator for WaitsForNothing {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.0
    }
    async fn externalize(&self, _: DurabilityPoint) -> Result<()> {
        Ok(())
    }
}

impl KeyValueDecorator for WaitsForNothing {}

/// Waits correctly, but reports every point of this start, or of an earlier one, as durable (D1).
#[derive(Debug)]
struct CallsDurable(SharedKeyValue, Ordering);

impl Decorator for CallsDurable {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.0
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        point.incarnation.cmp(&self.0.point().incarnation) == self.1 || self.0.is_durable(point)
    }
}

impl KeyValueDecorator for CallsDurable {}

/// Loses in a crash one item from the middle of this start's writes, and nothing else (D2).
#[derive(Debug)]
struct LosesOneInTheMiddle {
    honest: Subject,
    written: Arc<Mutex<Vec<Key>>>,
}

#[async_trait]
impl Twisting for LosesOneInTheMiddle {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(Noting {
            honest: self.honest.key_value(),
            written: Arc::clone(&self.written),
        })
    }
    async fn crash_and_reopen(self) -> Self {
        let store = self.honest.key_value();
        store
            .externalize(store.point())
            .await
            .expect("an honest store externalizes");
        drop(store);
        let honest = self.honest.crash_and_reopen().await;
        let written =
            std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(key) = written.get(written.len() / 2) {
            let store = honest.key_value();
            store
                .update(Update::delete(key.clone()))
                .await
                .expect("an honest store deletes");
            store
                .externalize(store.point())
                .await
                .expect("an honest store externalizes");
        }
        Self { honest, ..self }
    }
}

#[derive(Debug)]
struct Noting {
    honest: SharedKeyValue,
    written: Arc<Mutex<Vec<Key>>>,
}

decorates!(Noting, dyn KeyValue, honest);

impl KeyValueDecorator for Noting {
    async fn update(&self, update: Update) -> Result<Updated> {
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(update.key.clone());
        self.honest.update(update).await
    }
}

/// Restores in a crash the items' states before their first transient update, despite later durable
/// changes (D5).
#[derive(Debug)]
struct LeavesTransientsBehind {
    honest: Subject,
    before: Arc<Mutex<BTreeMap<Key, Change>>>,
}

#[async_trait]
impl Twisting for LeavesTransientsBehind {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(BeforeTransients {
            honest: self.honest.key_value(),
            before: Arc::clone(&self.before),
        })
    }
    async fn crash_and_reopen(self) -> Self {
        let honest = self.honest.crash_and_reopen().await;
        let before =
            std::mem::take(&mut *self.before.lock().unwrap_or_else(PoisonError::into_inner));
        let store = honest.key_value();
        for (key, change) in before {
            store
                .update(Update::of(key, change))
                .await
                .expect("an honest store updates");
        }
        Self {
            honest,
            before: self.before,
        }
    }
}

#[derive(Debug)]
struct BeforeTransients {
    honest: SharedKeyValue,
    before: Arc<Mutex<BTreeMap<Key, Change>>>,
}

decorates!(BeforeTransients, dyn KeyValue, honest);

impl KeyValueDecorator for BeforeTransients {
    async fn update(&self, update: Update) -> Result<Updated> {
        if update.retention == Retention::Transient {
            let present = self.honest.get(&update.key).await?.value;
            let change = present.map_or(Change::Delete, |item| {
                Change::Put(item.attributes().to_vec())
            });
            let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            before.entry(update.key.clone()).or_insert(change);
        }
        self.honest.update(update).await
    }
}

/// Takes for a double what a transient queue was sent before a crash that took it (D5).
#[derive(Debug)]
struct RemembersLostMessages {
    honest: Subject,
    sent: SentIds,
}

/// The ids that queues were sent messages under.
type SentIds = Arc<Mutex<BTreeSet<(String, Bytes)>>>;

#[async_trait]
impl Twisting for RemembersLostMessages {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        self.honest.key_value()
    }
    fn queue(&self) -> Option<SharedQueue> {
        let sent = Arc::clone(&self.sent);
        Some(Arc::new(RemembersIds {
            honest: self.honest.queue()?,
            sent,
        }))
    }
    async fn crash_and_reopen(self) -> Self {
        Self {
            honest: self.honest.crash_and_reopen().await,
            ..self
        }
    }
}

#[derive(Debug)]
struct RemembersIds {
    honest: SharedQueue,
    sent: SentIds,
}

decorates!(RemembersIds, dyn Queue, honest);

impl QueueDecorator for RemembersIds {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        messages.retain(|message| {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            message
                .deduplication
                .as_ref()
                .is_none_or(|id| sent.insert((queue.to_owned(), id.clone())))
        });
        self.honest.send(queue, messages).await
    }
}

/// Compares positions of different starts as if they were one (D3).
#[derive(Debug)]
struct PositionsAlone(SharedKeyValue);

impl Decorator for PositionsAlone {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.0
    }
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let present = self.0.point();
        self.0
            .externalize(
                DurabilityPoint {
                    incarnation: present.incarnation,
                    ..point
                }
                .min(present),
            )
            .await
    }
}

impl KeyValueDecorator for PositionsAlone {}

/// The updates whose dependencies a store does not check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unchecked {
    All,
    AllButFirst,
    AllButLast,
}

/// Makes updates although the store has lost the point that they depend on (D4).
#[derive(Debug)]
struct IgnoresDependencies(SharedKeyValue, Unchecked);

decorates!(IgnoresDependencies, dyn KeyValue, 0);

impl KeyValueDecorator for IgnoresDependencies {
    async fn update(&self, mut update: Update) -> Result<Updated> {
        if self.1 == Unchecked::All {
            update.depends_on = DurabilityPoint::DURABLE;
        }
        self.0.update(update).await
    }
    async fn transact(&self, mut updates: Vec<Update>) -> Result<Transacted> {
        let last = updates.len().saturating_sub(1);
        for (index, update) in updates.iter_mut().enumerate() {
            let is_checked = match self.1 {
                Unchecked::All => false,
                Unchecked::AllButFirst => index == 0,
                Unchecked::AllButLast => index == last,
            };
            if !is_checked {
                update.depends_on = DurabilityPoint::DURABLE;
            }
        }
        self.0.transact(updates).await
    }
}
