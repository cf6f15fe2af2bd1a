//! The transactions service on a simulated cloud: one node at a time, which dies and is restarted,
//! or several nodes at their own places on one store.
//!
//! Each start is a new process: a node with its own clock, whose ports end with its [`Life`].
//! Several nodes reach each other through a [`Network`], and are members of an [`Ensemble`]. With
//! one place, the only other node is an earlier process that was considered dead.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use ports::{Read, key_value::SharedKeyValue};
use simulated::World;
use tokio::{sync::watch, task::JoinHandle};
use transactions::{Config, Engine, Error, Parts, Service, layout::Buckets, membership::Address};

use super::{
    crashable::{CrashableKeyValue, Life},
    destinations,
    ensemble::{Ensemble, Seat},
    network::Network,
    objects::CrashableObjects,
    observer::Observer,
};

/// The pause before a start that a fault interrupted is tried again.
const START_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A running cluster. Clones share it.
#[derive(Debug, Clone)]
pub struct Cluster {
    world: World,
    config: Config,
    nodes: Rc<RefCell<Nodes>>,
    observer: Observer,
    /// Whether values go into packs.
    packs: bool,
    moments: Rc<Cell<u32>>,
    starts: watch::Sender<u64>,
    /// None: there is one place.
    among: Option<Among>,
}

/// The surroundings of several nodes.
#[derive(Debug, Clone)]
pub struct Among {
    /// The network between them.
    pub network: Network,
    /// Their membership.
    pub ensemble: Ensemble,
    /// The number of places.
    pub places: usize,
}

impl Among {
    /// The address of a place.
    pub fn address(place: usize) -> Address {
        Address(format!("place {place}"))
    }
}

#[derive(Debug, Default)]
struct Nodes {
    serving: BTreeMap<usize, Node>,
    /// The place of the last connection.
    led_to: usize,
    /// Nodes that are considered dead and still run.
    left_behind: Vec<Node>,
}

/// One process.
#[derive(Debug)]
struct Node {
    service: Arc<Service>,
    background: JoinHandle<()>,
    life: Life,
    /// None: there is one place.
    place: Option<Place>,
}

/// A process's address, membership and network, until it ends.
#[derive(Debug)]
struct Place {
    seat: Arc<Seat>,
    network: Network,
    address: Address,
    life: Life,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.life.end();
        self.seat.die();
        self.network.hang_up(&self.address);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.life.end();
        self.background.abort();
    }
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// Its node died before.
    Gone,
    /// It returned an error.
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
    /// The node's answer, if it lives until then.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.life.over() => Err(Failure::Gone),
            answer = call => answer.map_err(Failure::Refused),
        }
    }

    /// The same for an answer that must be durable before a client sees it (P4).
    pub async fn shown<T>(
        &self,
        call: impl Future<Output = Result<Read<T>, Error>>,
    ) -> Result<T, Failure> {
        let answer = async {
            let Read { value, point } = call.await?;
            self.engine.externalize(point).await?;
            Ok(value)
        };
        self.call(answer).await
    }
}

impl Cluster {
    /// A cluster on `world` without a node.
    pub fn new(world: &World, config: Config) -> Self {
        let (nodes, moments, starts) = (Rc::default(), Rc::default(), watch::Sender::new(0));
        let (world, observer) = (world.clone(), Observer::default());
        Self {
            world,
            config,
            nodes,
            observer,
            packs: false,
            moments,
            starts,
            among: None,
        }
    }

    /// The same with values in packs, among the objects of its world.
    pub fn packing(self) -> Self {
        Self {
            packs: true,
            ..self
        }
    }

    /// The same with several places.
    pub fn among(world: &World, config: Config, among: Among) -> Self {
        Self {
            among: Some(among),
            ..Self::new(world, config)
        }
    }

    /// The most concurrent nodes.
    pub fn places(&self) -> usize {
        self.among.as_ref().map_or(1, |among| among.places)
    }

    /// The surroundings of several nodes.
    pub fn surroundings(&self) -> Option<&Among> {
        self.among.as_ref()
    }

    /// The simulated cloud.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The observed store.
    fn store(&self) -> SharedKeyValue {
        self.observer.watch(self.world.key_value())
    }

    /// The buckets over which everything is spread.
    pub fn buckets(&self) -> Buckets {
        self.config.buckets
    }

    /// The observer.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The next moment. Virtual time stands still while any task runs, so successive events are one
    /// nanosecond apart.
    pub fn moment(&self) -> Duration {
        self.moments.set(self.moments.get() + 1);
        self.world.clock().monotonic().0 + Duration::from_nanos(self.moments.get().into())
    }

    /// Starts a node as a process with this `life` and a clock that is wrong by `skew_ms`. Returns
    /// false if it died before it served.
    pub async fn boot(&self, life: Life, skew_ms: i64) -> bool {
        self.boot_at(0, life, skew_ms).await
    }

    /// The same at a place.
    pub async fn boot_at(&self, place: usize, life: Life, skew_ms: i64) -> bool {
        let clock = self.world.clock_off_by(skew_ms);
        let parts = Parts {
            key_value: Arc::new(CrashableKeyValue::new(self.store(), life.clone())),
            clock: Arc::clone(&clock),
            entropy: self.world.entropy(),
        };
        let destinations = destinations::crashable(&self.world, &life);
        let config = self.config.clone();
        let (service, place_among) = match &self.among {
            None if self.packs => {
                let service = Service::builder(parts).destinations(destinations);
                (service.objects(self.objects(&life)).build(config), None)
            }
            None => {
                let service = Service::builder(parts).destinations(destinations);
                let service = service.volume_objects(self.objects(&life));
                (service.build(config), None)
            }
            Some(Among {
                network, ensemble, ..
            }) => {
                let address = Among::address(place);
                let seat = ensemble.seat(&address, life.clone(), clock);
                let (membership, peers) = (Arc::clone(&seat) as _, network.from(&address));
                let mut service = Service::builder(parts).destinations(destinations);
                if self.packs {
                    service = service.objects(self.objects(&life));
                }
                let service = service.among(membership, peers).build(config);
                network.listen(&address, service.engine(), life.clone());
                let (network, life) = (network.clone(), life.clone());
                (
                    service,
                    Some(Place {
                        seat,
                        network,
                        address,
                        life,
                    }),
                )
            }
        };
        let service = Arc::new(service);
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
        let node = Node {
            service,
            background,
            life,
            place: place_among,
        };
        self.nodes.borrow_mut().serving.insert(place, node);
        self.starts.send_modify(|starts| *starts += 1);
        true
    }

    fn objects(&self, life: &Life) -> Arc<CrashableObjects> {
        Arc::new(CrashableObjects::new(
            self.world.objects(),
            life.clone(),
            self.observer.clone(),
        ))
    }

    /// How many nodes have started.
    pub fn starts(&self) -> u64 {
        *self.starts.borrow()
    }

    /// A connection to the serving node, once there is one.
    pub async fn connect(&self) -> Connection {
        let mut starts = self.starts.subscribe();
        loop {
            starts.mark_unchanged();
            if let Some(connection) = self.serving() {
                return connection;
            }
            // The cluster holds the sender, so the wait ends with a start.
            let _ = starts.changed().await;
        }
    }

    /// A connection to the serving node. Several nodes are chosen in rotation.
    pub fn serving(&self) -> Option<Connection> {
        let mut nodes = self.nodes.borrow_mut();
        let places = (1..=self.places()).map(|next| (nodes.led_to + next) % self.places());
        let is_alive = |place: &usize| {
            nodes
                .serving
                .get(place)
                .is_some_and(|node| !node.life.is_over())
        };
        let place = places.into_iter().find(is_alive)?;
        nodes.led_to = place;
        drop(nodes);
        self.serving_at(place)
    }

    /// A connection to the node that serves at a place.
    pub fn serving_at(&self, place: usize) -> Option<Connection> {
        let nodes = self.nodes.borrow();
        let node = nodes
            .serving
            .get(&place)
            .filter(|node| !node.life.is_over())?;
        Some(Connection {
            engine: node.service.engine(),
            life: node.life.clone(),
        })
    }

    /// The life of the serving node.
    pub fn life(&self) -> Option<Life> {
        self.life_at(0)
    }

    /// The life of the node that serves at a place.
    pub fn life_at(&self, place: usize) -> Option<Life> {
        self.nodes
            .borrow()
            .serving
            .get(&place)
            .map(|node| node.life.clone())
    }

    /// The membership of the node that serves at a place, if there are several places.
    pub fn seat_at(&self, place: usize) -> Option<Arc<Seat>> {
        let nodes = self.nodes.borrow();
        nodes
            .serving
            .get(&place)?
            .place
            .as_ref()
            .map(|place| Arc::clone(&place.seat))
    }

    /// Kills the serving node, which loses its memory.
    pub fn kill(&self) {
        let nodes = std::mem::take(&mut self.nodes.borrow_mut().serving);
        drop(nodes);
    }

    /// Kills the node that serves at a place.
    pub fn kill_at(&self, place: usize) {
        let node = self.nodes.borrow_mut().serving.remove(&place);
        drop(node);
    }

    /// Shuts the serving node down in order, unless it dies first; then removes it.
    pub async fn leave(&self) {
        let node = self.nodes.borrow_mut().serving.remove(&0);
        if let Some(node) = node {
            tokio::select! {
                biased;
                () = node.life.over() => {}
                _ = node.service.leave() => {}
            }
        }
    }

    /// Treats the serving node as dead while it still runs. It does not start over once it learns
    /// of this: the two would take the logs from each other forever.
    pub fn replace_while_running(&self) {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.serving.remove(&0);
        if let Some(node) = &node {
            node.background.abort();
        }
        nodes.left_behind.extend(node);
    }

    /// Kills the nodes that were treated as dead.
    pub fn kill_replaced(&self) {
        let nodes = std::mem::take(&mut self.nodes.borrow_mut().left_behind);
        drop(nodes);
    }
}
