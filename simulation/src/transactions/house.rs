//! The transactions service on a simulated cloud: one node at a time, which dies and is started again.
//!
//! Each start is a new process: a node of its own, a clock of its own, ports that end with its [`Life`]. Several
//! nodes at once need a network between them; until there is one, the only other node is an old self that was
//! taken for dead.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use ports::key_value::SharedKeyValue;
use simulated::World;
use tokio::{sync::watch, task::JoinHandle};
use transactions::{Config, Engine, Error, Parts, Service, layout::Buckets, model::Shown};

use super::{
    destinations,
    mortal::{Life, MortalKeyValue},
    objects::MortalObjects,
    witness::Witness,
};

/// How long a start that a fault has stopped waits before it is tried again.
const START_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A running house. Clones share it.
#[derive(Debug, Clone)]
pub struct House {
    world: World,
    config: Config,
    nodes: Rc<RefCell<Nodes>>,
    witness: Witness,
    /// Whether values go into packs.
    packs: bool,
    moments: Rc<Cell<u32>>,
    starts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Nodes {
    serving: Option<Node>,
    /// Taken for dead, and still going on.
    left_behind: Vec<Node>,
}

/// One process.
#[derive(Debug)]
struct Node {
    service: Arc<Service>,
    background: JoinHandle<()>,
    life: Life,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.life.end();
        self.background.abort();
    }
}

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// Its node died first.
    Gone,
    /// It was answered with an error.
    Refused(Error),
}

/// A connection to one node.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The engine of that node.
    pub engine: Engine,
    life: Life,
}

impl Connection {
    /// What the node answers, if it lives until then.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.life.over() => Err(Failure::Gone),
            answer = call => answer.map_err(Failure::Refused),
        }
    }

    /// The same for an answer that may leave the house only once it is durable (P4): this is the edge.
    pub async fn shown<T>(&self, call: impl Future<Output = Result<Shown<T>, Error>>) -> Result<T, Failure> {
        let answer = async {
            let Shown { value, point } = call.await?;
            self.engine.externalize(point).await?;
            Ok(value)
        };
        self.call(answer).await
    }
}

impl House {
    /// A house on `world` in which nobody serves yet.
    pub fn new(world: &World, config: Config) -> Self {
        let (nodes, moments, starts) = (Rc::default(), Rc::default(), watch::Sender::new(0));
        let (world, witness) = (world.clone(), Witness::default());
        Self { world, config, nodes, witness, packs: false, moments, starts }
    }

    /// The same with values in packs, among the objects of its world.
    pub fn packing(self) -> Self {
        Self { packs: true, ..self }
    }

    /// The cloud below.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The store, watched.
    fn store(&self) -> SharedKeyValue {
        self.witness.watch(self.world.key_value())
    }

    /// Over which buckets everything is spread.
    pub fn buckets(&self) -> Buckets {
        self.config.buckets
    }

    /// Who watches it.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// The next moment: virtual time stands still while anything can run, so what happens meanwhile is told apart
    /// by nanoseconds, one after the other.
    pub fn moment(&self) -> Duration {
        self.moments.set(self.moments.get() + 1);
        self.world.clock().monotonic().0 + Duration::from_nanos(self.moments.get().into())
    }

    /// Starts a node as a process that lives as `life` says, with a clock that is off by `skew_ms`. False: it
    /// died before it served.
    pub async fn boot(&self, life: Life, skew_ms: i64) -> bool {
        let parts = Parts {
            key_value: Arc::new(MortalKeyValue::new(self.store(), life.clone())),
            clock: self.world.clock_off_by(skew_ms),
            entropy: self.world.entropy(),
        };
        let destinations = destinations::mortal(&self.world, &life);
        let config = self.config.clone();
        let service = Arc::new(if self.packs {
            let objects = MortalObjects::new(self.world.objects(), life.clone(), self.witness.clone());
            Service::with_objects(parts, destinations, Arc::new(objects), config)
        } else {
            Service::with_destinations(parts, destinations, config)
        });
        let starting = async {
            while service.start().await.is_err() {
                tokio::time::sleep(START_AGAIN_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            () = life.over() => return false,
            () = starting => {}
        }
        let runner = Arc::clone(&service);
        let background = tokio::spawn(async move { runner.run().await });
        self.nodes.borrow_mut().serving = Some(Node { service, background, life });
        self.starts.send_modify(|starts| *starts += 1);
        true
    }

    /// A connection to whoever serves, once somebody does.
    pub async fn connect(&self) -> Connection {
        let mut starts = self.starts.subscribe();
        loop {
            starts.mark_unchanged();
            if let Some(connection) = self.serving() {
                return connection;
            }
            // The house holds the sender, so this ends with a start.
            let _ = starts.changed().await;
        }
    }

    /// A connection to whoever serves now.
    pub fn serving(&self) -> Option<Connection> {
        let nodes = self.nodes.borrow();
        let node = nodes.serving.as_ref().filter(|node| !node.life.is_over())?;
        Some(Connection { engine: node.service.engine(), life: node.life.clone() })
    }

    /// The life of whoever serves now.
    pub fn life(&self) -> Option<Life> {
        self.nodes.borrow().serving.as_ref().map(|node| node.life.clone())
    }

    /// Whoever serves dies, with all that it held in memory.
    pub fn kill(&self) {
        let node = self.nodes.borrow_mut().serving.take();
        drop(node);
    }

    /// Whoever serves leaves in order, if it lives that long; then it is gone.
    pub async fn leave(&self) {
        let node = self.nodes.borrow_mut().serving.take();
        if let Some(node) = node {
            tokio::select! {
                biased;
                () = node.life.over() => {}
                _ = node.service.leave() => {}
            }
        }
    }

    /// Whoever serves is taken for dead, and goes on; but for starting over once it learns of that, since the
    /// two would take the logs from each other for ever.
    pub fn leave_behind(&self) {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.serving.take();
        if let Some(node) = &node {
            node.background.abort();
        }
        nodes.left_behind.extend(node);
    }

    /// Those who were taken for dead die.
    pub fn kill_left_behind(&self) {
        let nodes = std::mem::take(&mut self.nodes.borrow_mut().left_behind);
        drop(nodes);
    }
}
