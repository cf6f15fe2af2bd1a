//! Stores that break D1 to D4 when they crash.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::{
    Broken,
    key_value::{Twist, Twisted},
};
use crate::{
    Clock, DurabilityPoint, Key, Result, Update,
    contract::durability::{Crashable, Subject},
    key_value::{SharedKeyValue, Transacted, Updated},
    objects::ObjectStore,
    queue::SharedQueue,
};

/// Every broken store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("D1", "AcknowledgesBeforeFlushing", |honest| Box::new(AcknowledgesBeforeFlushing(honest))),
    Broken::new("D2", "LosesOneInTheMiddle", |honest| {
        Box::new(LosesOneInTheMiddle { honest, written: Arc::default() })
    }),
    Broken::new("D3", "ForgetsIncarnations", |honest| Box::new(ForgetsIncarnations(honest))),
    Broken::new("D4", "IgnoresTheBasis", |honest| Box::new(IgnoresTheBasis(honest))),
];

/// Says that everything is durable at once (D1).
#[derive(Debug)]
struct AcknowledgesBeforeFlushing(Subject);

#[async_trait]
impl Crashable for AcknowledgesBeforeFlushing {
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(Twisted(DurableAtOnce(self.0.key_value())))
    }
    fn queue(&self) -> Option<SharedQueue> {
        self.0.queue()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.0.objects()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> Subject {
        Box::new(Self(self.0.crash_and_reopen().await))
    }
}

#[derive(Debug)]
struct DurableAtOnce(SharedKeyValue);

#[async_trait]
impl Twist for DurableAtOnce {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn externalize(&self, _: DurabilityPoint) -> Result<()> {
        Ok(())
    }
    fn is_durable(&self, _: DurabilityPoint) -> bool {
        true
    }
}

/// Keeps everything in a crash but one item from the middle of what was written since the start (D2).
#[derive(Debug)]
struct LosesOneInTheMiddle {
    honest: Subject,
    written: Arc<Mutex<Vec<Key>>>,
}

#[async_trait]
impl Crashable for LosesOneInTheMiddle {
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(Twisted(Noting { honest: self.honest.key_value(), written: Arc::clone(&self.written) }))
    }
    fn queue(&self) -> Option<SharedQueue> {
        self.honest.queue()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.honest.objects()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.honest.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> Subject {
        let store = self.honest.key_value();
        store.externalize(store.point()).await.expect("an honest store externalizes");
        drop(store);
        let honest = self.honest.crash_and_reopen().await;
        let written = std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(key) = written.get(written.len() / 2) {
            let store = honest.key_value();
            store.update(Update::delete(key.clone())).await.expect("an honest store deletes");
            store.externalize(store.point()).await.expect("an honest store externalizes");
        }
        Box::new(Self { honest, written: self.written })
    }
}

#[derive(Debug)]
struct Noting {
    honest: SharedKeyValue,
    written: Arc<Mutex<Vec<Key>>>,
}

#[async_trait]
impl Twist for Noting {
    fn honest(&self) -> &SharedKeyValue {
        &self.honest
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(update.key.clone());
        self.honest.update(update).await
    }
}

/// Compares positions of different starts as if they were one (D3).
#[derive(Debug)]
struct ForgetsIncarnations(Subject);

#[async_trait]
impl Crashable for ForgetsIncarnations {
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(Twisted(PositionsAlone(self.0.key_value())))
    }
    fn queue(&self) -> Option<SharedQueue> {
        self.0.queue()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.0.objects()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> Subject {
        Box::new(Self(self.0.crash_and_reopen().await))
    }
}

#[derive(Debug)]
struct PositionsAlone(SharedKeyValue);

#[async_trait]
impl Twist for PositionsAlone {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let present = self.0.point();
        self.0.externalize(DurabilityPoint { incarnation: present.incarnation, ..point }.min(present)).await
    }
}

/// Changes what it is asked to change, whatever has become of what that rests on (D4).
#[derive(Debug)]
struct IgnoresTheBasis(Subject);

#[async_trait]
impl Crashable for IgnoresTheBasis {
    fn key_value(&self) -> SharedKeyValue {
        Arc::new(Twisted(Baseless(self.0.key_value())))
    }
    fn queue(&self) -> Option<SharedQueue> {
        self.0.queue()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        self.0.objects()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> Subject {
        Box::new(Self(self.0.crash_and_reopen().await))
    }
}

#[derive(Debug)]
struct Baseless(SharedKeyValue);

#[async_trait]
impl Twist for Baseless {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        self.0.update(update.resting_on(DurabilityPoint::DURABLE)).await
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let baseless = updates.into_iter().map(|update| update.resting_on(DurabilityPoint::DURABLE));
        self.0.transact(baseless.collect()).await
    }
}
