//! The coordination service on a simulated cloud with several machines.
//!
//! Each machine has its own clock, warm function instances and gateway. All machines share the
//! store, the queues and the functions of the cloud. An invocation of the writer, distributor or
//! heartbeat runs on any machine, as on a cloud that keeps several instances warm, or none.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use coordination::{Config, Gateway, Parts, Service, queue_names};
use ports::{
    Entropy, Event, Handler,
    functions::{Definition, Failure},
};
use simulated::World;
use tokio::{sync::watch, task::JoinHandle};

/// The pause before a start that a fault interrupted is tried again.
const START_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How much the cloud keeps of a function between two invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instances {
    /// The instance on each machine, with its memory.
    Warm,
    /// The same, except for the heartbeat: each of its runs has a new instance.
    ColdHeartbeats,
}

/// A running cluster. Clones share it.
#[derive(Debug, Clone)]
pub struct Cluster {
    world: World,
    config: Config,
    machine_count: usize,
    instances: Instances,
    machines: Rc<RefCell<Vec<Machine>>>,
    generation: watch::Sender<u64>,
}

#[derive(Debug)]
struct Machine {
    service: Arc<Service>,
    tail: JoinHandle<()>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.tail.abort();
    }
}

impl Cluster {
    /// Starts the service on `machine_count` machines of `world`, which keeps instances warm.
    pub async fn start(world: &World, config: Config, machine_count: usize) -> Self {
        Self::start_on(world, config, machine_count, Instances::Warm).await
    }

    /// The same on a cloud that keeps `instances`.
    pub async fn start_on(
        world: &World,
        config: Config,
        machine_count: usize,
        instances: Instances,
    ) -> Self {
        let cluster = Self {
            world: world.clone(),
            config,
            machine_count,
            instances,
            machines: Rc::default(),
            generation: watch::Sender::new(0),
        };
        cluster.boot().await;
        cluster
    }

    /// The simulated cloud.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The gateway of one machine, once it has started, and its generation.
    pub async fn gateway(&self, machine: usize) -> (Gateway, u64) {
        let _ = self
            .generation
            .subscribe()
            .wait_for(|_| !self.machines.borrow().is_empty())
            .await;
        let machines = self.machines.borrow();
        (
            machines[machine % machines.len()].service.gateway(),
            *self.generation.borrow(),
        )
    }

    /// Returns once the machines of `generation` are gone: their connections break.
    pub async fn gone(&self, generation: u64) {
        let _ = self
            .generation
            .subscribe()
            .wait_for(|current| *current != generation)
            .await;
    }

    /// Crashes everything at once: the store loses what was not externalized, and every machine its
    /// memory.
    pub async fn crash(&self) {
        self.world.crash_keeping_some();
        self.machines.borrow_mut().clear();
        self.boot().await;
        self.generation.send_modify(|generation| *generation += 1);
    }

    async fn boot(&self) {
        let services: Vec<Arc<Service>> = (0..self.machine_count)
            .map(|_| Arc::new(self.service()))
            .collect();
        let instances: Vec<Vec<Definition>> =
            services.iter().map(|service| service.functions()).collect();
        for (index, definition) in instances[0].iter().enumerate() {
            let is_cold = self.instances == Instances::ColdHeartbeats
                && definition.name == queue_names::HEARTBEAT;
            let handlers = if is_cold {
                services
                    .iter()
                    .map(|service| Arc::new(Cold::of(service, index)) as Arc<dyn Handler>)
                    .collect()
            } else {
                instances
                    .iter()
                    .map(|of_machine| of_machine[index].handler.clone())
                    .collect()
            };
            let fleet = Fleet {
                name: definition.name.clone(),
                handlers,
                entropy: self.world.entropy(),
            };
            self.world.functions().register(Definition {
                handler: Arc::new(fleet),
                ..definition.clone()
            });
        }
        for service in services {
            while service.start().await.is_err() {
                tokio::time::sleep(START_AGAIN_AFTER).await;
            }
            let follower = service.clone();
            let tail = tokio::spawn(async move { follower.run().await });
            self.machines.borrow_mut().push(Machine { service, tail });
        }
    }

    fn service(&self) -> Service {
        let world = &self.world;
        let parts = Parts {
            system: world.key_value(),
            items: world.key_value(),
            objects: world.objects(),

            queue: world.queue(),
            functions: world.functions(),
            clock: world.skewed_clock(),
            entropy: world.entropy(),
        };
        Service::new(parts, self.config.clone())
    }
}

/// A function of one machine that keeps no instance.
#[derive(Debug)]
struct Cold {
    service: Arc<Service>,
    /// Its index among the functions of the service.
    index: usize,
}

impl Cold {
    fn of(service: &Arc<Service>, index: usize) -> Self {
        Self {
            service: service.clone(),
            index,
        }
    }
}

#[async_trait]
impl Handler for Cold {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let fresh = self.service.functions().swap_remove(self.index);
        fresh.handler.handle(event).await
    }
}

/// The instances of one function. The watch function runs on all of them, the others on any one.
#[derive(Debug)]
struct Fleet {
    name: std::borrow::Cow<'static, str>,
    handlers: Vec<Arc<dyn Handler>>,
    entropy: Arc<dyn Entropy>,
}

#[async_trait]
impl Handler for Fleet {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        if self.name == queue_names::WATCH {
            for handler in &self.handlers {
                handler.handle(event.clone()).await?;
            }
            return Ok(Bytes::new());
        }
        let instance = self.entropy.below(self.handlers.len() as u64) as usize;
        self.handlers[instance].handle(event).await
    }
}
