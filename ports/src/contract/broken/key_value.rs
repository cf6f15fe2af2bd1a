//! Key-value stores that break K1 to K12. What a crash does to transient updates is in [`super::durability`].

mod costs;
mod repeats;
mod scans;
mod single;
mod transactions;
mod transient;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::Broken;
use crate::{
    DurabilityPoint, Externalize, Item, Key, KeyValue, Result, Update,
    contract::key_value::Subject,
    key_value::{
        Batch, Batched, KeyValueLimits, Page, Read, Room, Scan, SharedKeyValue, Transacted, Updated,
    },
};

/// Every broken store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("K1", "ReadsStale", |subject| {
        twisted(subject, single::ReadsStale::around)
    }),
    Broken::new("K2", "ForgetsConditions", |subject| {
        twisted(subject, single::ForgetsConditions::around)
    }),
    Broken::new("K2", "ChecksThenWrites", |subject| {
        twisted(subject, single::ChecksThenWrites::around)
    }),
    Broken::new("K2", "HidesTheWinner", |subject| {
        twisted(subject, single::HidesTheWinner::around)
    }),
    Broken::new("K3", "AppliesHalfOnError", |subject| {
        twisted(subject, single::AppliesHalfOnError::around)
    }),
    Broken::new("K4", "LosesAdditions", |subject| {
        twisted(subject, single::SetsLater::for_additions)
    }),
    Broken::new("K4", "LosesAppends", |subject| {
        twisted(subject, single::SetsLater::for_appends)
    }),
    Broken::new("K4", "LosesRemovals", |subject| {
        twisted(subject, single::SetsLater::for_removals)
    }),
    Broken::new("K4", "RemovesTheSameFirst", |subject| {
        twisted(subject, single::SetsLater::for_removals_of_the_first)
    }),
    Broken::new("K5", "HalfTransacts", |subject| {
        twisted(subject, transactions::HalfTransacts::around)
    }),
    Broken::new("K5", "JudgesThenTransacts", |subject| {
        twisted(subject, transactions::JudgesThenTransacts::around)
    }),
    Broken::new("K6", "UnorderedScan", |subject| {
        twisted(subject, scans::UnorderedScan::around)
    }),
    Broken::new("K6", "IgnoresBounds", |subject| {
        twisted(subject, scans::IgnoresBounds::around)
    }),
    Broken::new("K6", "TearsPages", |subject| {
        twisted(subject, scans::TearsPages::around)
    }),
    Broken::new("K7", "ReappliesBatches", |subject| {
        twisted(subject, repeats::ReappliesBatches::around)
    }),
    Broken::new("K7", "SkipsGaps", |subject| {
        twisted(subject, repeats::SkipsGaps::around)
    }),
    Broken::new("K8", "ForgetsOperations", |subject| {
        twisted(subject, repeats::ForgetsOperations::around)
    }),
    Broken::new("K8", "GuessesForgotten", |subject| {
        twisted(subject, repeats::GuessesForgotten::around)
    }),
    Broken::new("K9", "RestartsVersions", |subject| {
        twisted(subject, repeats::RestartsVersions::around)
    }),
    Broken::new("K10", "KeepsTransientsToItself", |subject| {
        twisted(subject, transient::KeepsTransientsToItself::around)
    }),
    Broken::new("K10", "PutsTransientsAhead", |subject| {
        twisted(subject, transient::PutsTransientsAhead::around)
    }),
    Broken::new("K11", "SaysThereIsRoom", |subject| {
        twisted(subject, transient::SaysThereIsRoom::around)
    }),
    Broken::new("K11", "SaysThereIsNone", |subject| {
        twisted(subject, transient::SaysThereIsNone::around)
    }),
    Broken::new("K12", "BillsRefusalsAsWrites", |subject| {
        twisted(subject, costs::Misbills::refusals)
    }),
    Broken::new("K12", "BillsWhatWasBefore", |subject| {
        twisted(subject, costs::Misbills::growth)
    }),
    Broken::new("K12", "BillsNoRepeats", |subject| {
        twisted(subject, costs::Misbills::repeats)
    }),
    Broken::new("K12", "BillsTheFirstAlone", |subject| {
        twisted(subject, costs::Misbills::transactions)
    }),
    Broken::new("K12", "BillsTheCursorAlone", |subject| {
        twisted(subject, costs::Misbills::batches)
    }),
];

/// A store that differs from an honest one in what it overrides.
#[async_trait]
pub(super) trait Twist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &SharedKeyValue;

    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.honest().get(key).await
    }
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.honest().scan(scan).await
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        self.honest().update(update).await
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.honest().transact(updates).await
    }
    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.honest().write_batch(batch).await
    }
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.honest().externalize(point).await
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.honest().is_durable(point)
    }
    fn room(&self) -> Room {
        self.honest().room()
    }
}

/// Makes a [`Twist`] a port.
#[derive(Debug)]
pub(super) struct Twisted<T>(pub(super) T);

#[async_trait]
impl<T: Twist> Externalize for Twisted<T> {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.0.externalize(point).await
    }
    fn point(&self) -> DurabilityPoint {
        self.0.honest().point()
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.0.is_durable(point)
    }
}

#[async_trait]
impl<T: Twist> KeyValue for Twisted<T> {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.0.get(key).await
    }
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.0.scan(scan).await
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        self.0.update(update).await
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.0.transact(updates).await
    }
    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.0.write_batch(batch).await
    }
    fn limits(&self) -> &KeyValueLimits {
        self.0.honest().limits()
    }
    fn room(&self) -> Room {
        self.0.room()
    }
}

fn twisted<T: Twist>(subject: Subject, around: fn(SharedKeyValue) -> T) -> Subject {
    Subject {
        store: Arc::new(Twisted(around(subject.store))),
        ..subject
    }
}
