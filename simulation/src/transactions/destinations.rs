//! The queues and functions that effects go to, as one process that can die reaches them.
//!
//! Of each port a node of the engine calls what sends; the rest is passed on as it is.

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

use super::mortal::Life;

/// The destinations of `world` for as long as `life` lasts.
pub fn mortal(world: &World, life: &Life) -> Destinations {
    through(world.queue(), world, life)
}

/// The same with another way to its queues.
pub fn through(queue: SharedQueue, world: &World, life: &Life) -> Destinations {
    let queue = MortalQueue {
        inner: queue,
        life: life.clone(),
    };
    let functions = MortalFunctions {
        inner: world.functions(),
        life: life.clone(),
    };
    Destinations {
        queue: Some(Arc::new(queue)),
        functions: Some(Arc::new(functions)),
    }
}

#[derive(Debug)]
struct MortalQueue {
    inner: SharedQueue,
    life: Life,
}

impl Decorator for MortalQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.life.live_through(self.inner.externalize(point)).await
    }
}

impl QueueDecorator for MortalQueue {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.life
            .live_through(self.inner.send(queue, messages))
            .await
    }
}

#[derive(Debug)]
struct MortalFunctions {
    inner: Arc<dyn Functions>,
    life: Life,
}

impl FunctionsDecorator for MortalFunctions {
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
