//! Instances that break X1 to X7.

use std::{
    fmt::Debug,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::Broken;
use crate::{
    Instances, Result,
    contract::instances::Subject,
    instances::{Channel, Death, Instance, Limits, Region, Spec},
};

/// Every broken provider of instances, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("X1", "StartsOneForAll", |subject| {
        twisted(subject, StartsOneForAll::default())
    }),
    Broken::new("X1", "DropsTheEnvironment", |subject| {
        twisted(subject, DropsTheEnvironment)
    }),
    Broken::new("X2", "CutsMessages", |subject| {
        twisted(subject, CutsMessages)
    }),
    Broken::new("X2", "SwapsMessages", |subject| {
        twisted(subject, SwapsMessages::default())
    }),
    Broken::new("X2", "SharesOneChannel", |subject| {
        twisted(subject, SharesOneChannel::default())
    }),
    Broken::new("X3", "WritesNowhere", |subject| {
        twisted(subject, WritesNowhere)
    }),
    Broken::new("X3", "SharesOneRegion", |subject| {
        twisted(subject, SharesOneRegion::default())
    }),
    Broken::new("X3", "WrapsAround", |subject| twisted(subject, WrapsAround)),
    Broken::new("X4", "HidesTheCause", |subject| {
        twisted(subject, HidesTheCause)
    }),
    Broken::new("X4", "TakesTheLivingForDead", |subject| {
        twisted(subject, TakesTheLivingForDead)
    }),
    Broken::new("X4", "SendsToTheDead", |subject| {
        twisted(subject, SendsToTheDead)
    }),
    Broken::new("X5", "NeverEnds", |subject| twisted(subject, NeverEnds)),
    Broken::new("X5", "KeepsHandles", |subject| {
        twisted(subject, KeepsHandles::default())
    }),
    Broken::new("X6", "KeepsDiscardedBytes", |subject| {
        twisted(subject, KeepsDiscardedBytes)
    }),
    Broken::new("X6", "DiscardsMore", |subject| {
        twisted(subject, DiscardsMore)
    }),
    Broken::new("X7", "SharesTheBeginning", |subject| {
        twisted(subject, SharesTheBeginning)
    }),
];

/// What a broken provider does otherwise. The defaults are honest.
#[async_trait]
trait Twist: Debug + Send + Sync + 'static {
    async fn start(&self, honest: &dyn Instances, spec: &Spec) -> Result<Arc<dyn Instance>> {
        honest.start(spec).await
    }
    async fn channel(&self, honest: &dyn Instance) -> Result<Arc<dyn Channel>> {
        honest.channel().await
    }
    fn memory(&self, honest: &dyn Instance) -> Option<Arc<dyn Region>> {
        honest.memory()
    }
    async fn died(&self, honest: &dyn Instance) -> Death {
        honest.died().await
    }
    fn end(&self, honest: &dyn Instance) {
        honest.end();
    }
    async fn send(&self, honest: &dyn Channel, message: Bytes) -> Result<()> {
        honest.send(message).await
    }
    async fn receive(&self, honest: &dyn Channel) -> Result<Option<Bytes>> {
        honest.receive().await
    }
    fn read(&self, honest: &dyn Region, offset: u64, buffer: &mut [u8]) -> Result<()> {
        honest.read(offset, buffer)
    }
    fn share(&self, honest: Arc<dyn Region>, offset: u64, bytes: usize) -> Result<Bytes> {
        honest.share(offset, bytes)
    }
    fn write(&self, honest: &dyn Region, offset: u64, bytes: &[u8]) -> Result<()> {
        honest.write(offset, bytes)
    }
    fn discard(&self, honest: &dyn Region, offset: u64, bytes: u64) -> Result<()> {
        honest.discard(offset, bytes)
    }
}

/// A port, or a part of it, with a twist.
#[derive(Debug)]
struct Twisted<P: ?Sized, T> {
    twist: Arc<T>,
    honest: Arc<P>,
}

#[async_trait]
impl<T: Twist> Instances for Twisted<dyn Instances, T> {
    async fn start(&self, spec: &Spec) -> Result<Arc<dyn Instance>> {
        let honest = self.twist.start(&*self.honest, spec).await?;
        let twist = Arc::clone(&self.twist);
        Ok(Arc::new(Twisted { twist, honest }))
    }
    fn limits(&self) -> &Limits {
        self.honest.limits()
    }
}

#[async_trait]
impl<T: Twist> Instance for Twisted<dyn Instance, T> {
    async fn channel(&self) -> Result<Arc<dyn Channel>> {
        let honest = self.twist.channel(&*self.honest).await?;
        let twist = Arc::clone(&self.twist);
        Ok(Arc::new(Twisted { twist, honest }))
    }
    fn memory(&self) -> Option<Arc<dyn Region>> {
        let honest = self.twist.memory(&*self.honest)?;
        let twist = Arc::clone(&self.twist);
        Some(Arc::new(Twisted { twist, honest }))
    }
    async fn died(&self) -> Death {
        self.twist.died(&*self.honest).await
    }
    fn end(&self) {
        self.twist.end(&*self.honest);
    }
}

#[async_trait]
impl<T: Twist> Channel for Twisted<dyn Channel, T> {
    async fn send(&self, message: Bytes) -> Result<()> {
        self.twist.send(&*self.honest, message).await
    }
    async fn receive(&self) -> Result<Option<Bytes>> {
        self.twist.receive(&*self.honest).await
    }
}

impl<T: Twist> Region for Twisted<dyn Region, T> {
    fn bytes(&self) -> u64 {
        self.honest.bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.twist.read(&*self.honest, offset, buffer)
    }
    fn share(self: Arc<Self>, offset: u64, bytes: usize) -> Result<Bytes> {
        self.twist.share(Arc::clone(&self.honest), offset, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.twist.write(&*self.honest, offset, bytes)
    }
    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.twist.discard(&*self.honest, offset, bytes)
    }
}

fn twisted<T: Twist>(subject: Subject, twist: T) -> Subject {
    let (twist, honest) = (Arc::new(twist), subject.instances);
    Subject {
        instances: Arc::new(Twisted { twist, honest }),
        ..subject
    }
}

/// The value in `slot`, which `first` sets.
fn shared<T: Clone>(slot: &Mutex<Option<T>>, first: T) -> T {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_insert(first).clone()
}

/// Starts one instance and hands it out for all (X1).
#[derive(Debug, Default)]
struct StartsOneForAll(Mutex<Option<Arc<dyn Instance>>>);

#[async_trait]
impl Twist for StartsOneForAll {
    async fn start(&self, honest: &dyn Instances, spec: &Spec) -> Result<Arc<dyn Instance>> {
        Ok(shared(&self.0, honest.start(spec).await?))
    }
}

/// Starts programs without their variables (X1).
#[derive(Debug)]
struct DropsTheEnvironment;

#[async_trait]
impl Twist for DropsTheEnvironment {
    async fn start(&self, honest: &dyn Instances, spec: &Spec) -> Result<Arc<dyn Instance>> {
        let mut spec = spec.clone();
        spec.environment.clear();
        honest.start(&spec).await
    }
}

/// Returns the beginning of long messages (X2).
#[derive(Debug)]
struct CutsMessages;

#[async_trait]
impl Twist for CutsMessages {
    async fn receive(&self, honest: &dyn Channel) -> Result<Option<Bytes>> {
        let message = honest.receive().await?;
        Ok(message.map(|message| message.slice(..message.len().min(1 << 10))))
    }
}

/// Holds one message back and sends it after the next (X2).
#[derive(Debug, Default)]
struct SwapsMessages(Mutex<(u64, Option<Bytes>)>);

#[async_trait]
impl Twist for SwapsMessages {
    async fn send(&self, honest: &dyn Channel, message: Bytes) -> Result<()> {
        let held = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 += 1;
            if state.0 == 10 {
                state.1 = Some(message);
                return Ok(());
            }
            mem::take(&mut state.1)
        };
        honest.send(message).await?;
        match held {
            Some(held) => honest.send(held).await,
            None => Ok(()),
        }
    }
}

/// Has one channel for each instance (X2).
#[derive(Debug, Default)]
struct SharesOneChannel(Mutex<Option<Arc<dyn Channel>>>);

#[async_trait]
impl Twist for SharesOneChannel {
    async fn channel(&self, honest: &dyn Instance) -> Result<Arc<dyn Channel>> {
        Ok(shared(&self.0, honest.channel().await?))
    }
}

/// Writes into no region (X3).
#[derive(Debug)]
struct WritesNowhere;

#[async_trait]
impl Twist for WritesNowhere {
    fn write(&self, honest: &dyn Region, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut there = bytes.to_vec();
        honest.read(offset, &mut there)
    }
}

/// Has one region for all instances (X3).
#[derive(Debug, Default)]
struct SharesOneRegion(Mutex<Option<Arc<dyn Region>>>);

#[async_trait]
impl Twist for SharesOneRegion {
    fn memory(&self, honest: &dyn Instance) -> Option<Arc<dyn Region>> {
        Some(shared(&self.0, honest.memory()?))
    }
}

/// Goes on at the beginning of a region after its end (X3).
#[derive(Debug)]
struct WrapsAround;

#[async_trait]
impl Twist for WrapsAround {
    fn read(&self, honest: &dyn Region, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let last = honest.bytes() - buffer.len() as u64;
        honest.read(offset % (last + 1), buffer)
    }
}

/// Says of every death that the program succeeded (X4).
#[derive(Debug)]
struct HidesTheCause;

#[async_trait]
impl Twist for HidesTheCause {
    async fn died(&self, honest: &dyn Instance) -> Death {
        honest.died().await;
        Death::Exited(0)
    }
}

/// Reports a death at once (X4).
#[derive(Debug)]
struct TakesTheLivingForDead;

#[async_trait]
impl Twist for TakesTheLivingForDead {
    async fn died(&self, _: &dyn Instance) -> Death {
        Death::Exited(7)
    }
}

/// Acknowledges messages that a dead instance cannot get (X4).
#[derive(Debug)]
struct SendsToTheDead;

#[async_trait]
impl Twist for SendsToTheDead {
    async fn send(&self, honest: &dyn Channel, message: Bytes) -> Result<()> {
        let _ = honest.send(message).await;
        Ok(())
    }
}

/// Lets instances live (X5).
#[derive(Debug)]
struct NeverEnds;

#[async_trait]
impl Twist for NeverEnds {
    fn end(&self, _: &dyn Instance) {}
}

/// Keeps a handle of each instance (X5).
#[derive(Debug, Default)]
struct KeepsHandles(Mutex<Vec<Arc<dyn Instance>>>);

#[async_trait]
impl Twist for KeepsHandles {
    async fn start(&self, honest: &dyn Instances, spec: &Spec) -> Result<Arc<dyn Instance>> {
        let instance = honest.start(spec).await?;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(Arc::clone(&instance));
        Ok(instance)
    }
}

/// Discards nothing (X6).
#[derive(Debug)]
struct KeepsDiscardedBytes;

impl Twist for KeepsDiscardedBytes {
    fn discard(&self, honest: &dyn Region, offset: u64, _: u64) -> Result<()> {
        honest.discard(offset, 0)
    }
}

/// Discards the byte before, too (X6).
#[derive(Debug)]
struct DiscardsMore;

impl Twist for DiscardsMore {
    fn discard(&self, honest: &dyn Region, offset: u64, bytes: u64) -> Result<()> {
        let before = offset.min(1);
        honest.discard(offset - before, bytes.saturating_add(before))
    }
}

/// Shares the bytes at the beginning of a region in place of those that were asked for (X7).
#[derive(Debug)]
struct SharesTheBeginning;

impl Twist for SharesTheBeginning {
    fn share(&self, honest: Arc<dyn Region>, offset: u64, bytes: usize) -> Result<Bytes> {
        let mut copy = vec![0; bytes];
        honest.read(offset, &mut copy)?;
        honest.read(0, &mut copy)?;
        Ok(copy.into())
    }
}
