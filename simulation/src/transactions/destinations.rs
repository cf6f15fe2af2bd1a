//! The queues and functions that receive effects, as one crashable process reaches them.
//!
//! A node of the engine only calls the sending methods of each port; the others pass through.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    DurabilityPoint, Functions, Queue, Receipt, Result,
    decorate::FunctionsDecorator,
    decorate::{Decorator, QueueDecorator},
    queue::{Message, SharedQueue},
};
use simulated::World;
use transactions::Destinations;

use super::crashable::Life;

/// The destinations of `world` during `life`.
pub fn crashable(world: &World, life: &Life) -> Destinations {
    through(world.queue(), world, life)
}

/// The same with another queue port.
pub fn through(queue: SharedQueue, world: &World, life: &Life) -> Destinations {
    let queue = CrashableQueue {
        inner: queue,
        life: life.clone(),
    };
    let functions = CrashableFunctions {
        inner: world.functions(),
        life: life.clone(),
    };
    Destinations {
        queue: Some(Arc::new(queue)),
        functions: Some(Arc::new(functions)),
    }
}

#[derive(Debug)]
struct CrashableQueue {
    inner: SharedQueue,
    life: Life,
}

impl Decorator for CrashableQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.life.live_through(self.inner.externalize(point)).await
    }
}

impl QueueDecorator for CrashableQueue {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.life
            .live_through(self.inner.send(queue, messages))
            .await
    }
}

#[derive(Debug)]
struct CrashableFunctions {
    inner: Arc<dyn Functions>,
    life: Life,
}

impl FunctionsDecorator for CrashableFunctions {
    fn inner(&self) -> &dyn Functions {
        &*self.inner
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        self.life
            .live_through(self.inner.send(function, id, payload))
            .await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        self.life.live_through(self.inner.knows(function)).await
    }
}
