//! The transactions service on a simulated cloud: one node at a time, which dies and is started again, or several at places
//! of their own on one store.
//!
//! Each start is a new process: a node of its own, a clock of its own, ports that end with its [`Life`]. Several nodes reach
//! each other by a [`Network`], and are members of an [`Ensemble`]; where there is one place, the only other node is an old
//! self that was taken for dead.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use ports::key_value::SharedKeyValue;
use simulated::World;
use tokio::{sync::watch, task::JoinHandle};
use transactions::{
    Config, Engine, Error, Parts, Service, layout::Buckets, membership::Address, model::Shown,
};

use super::{
    destinations,
    ensemble::{Ensemble, Seat},
    mortal::{Life, MortalKeyValue},
    network::Network,
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
    /// None: there is one place.
    among: Option<Among>,
}

/// Where several nodes are.
#[derive(Debug, Clone)]
pub struct Among {
    /// How they reach each other.
    pub network: Network,
    /// Who is a member.
    pub ensemble: Ensemble,
    /// How many places there are.
    pub places: usize,
}

impl Among {
    /// What a place is called.
    pub fn address(place: usize) -> Address {
        Address(format!("place {place}"))
    }
}

#[derive(Debug, Default)]
struct Nodes {
    serving: BTreeMap<usize, Node>,
    /// Whom a client was last led to.
    led_to: usize,
    /// Taken for dead, and still going on.
    left_behind: Vec<Node>,
}

/// One process.
#[derive(Debug)]
struct Node {
    service: Arc<Service>,
    background: JoinHandle<()>,
    life: Life,
    /// Where there are several.
    place: Option<Place>,
}

/// What a process has among others, until it ends.
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

    /// The same for an answer that may leave the house only once it is durable (P4): this is the edge.
    pub async fn shown<T>(
        &self,
        call: impl Future<Output = Result<Shown<T>, Error>>,
    ) -> Result<T, Failure> {
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
        Self {
            world,
            config,
            nodes,
            witness,
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

    /// How many nodes there can be.
    pub fn places(&self) -> usize {
        self.among.as_ref().map_or(1, |among| among.places)
    }

    /// Where several nodes are.
    pub fn surroundings(&self) -> Option<&Among> {
        self.among.as_ref()
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
        self.boot_at(0, life, skew_ms).await
    }

    /// The same at a place.
    pub async fn boot_at(&self, place: usize, life: Life, skew_ms: i64) -> bool {
        let clock = self.world.clock_off_by(skew_ms);
        let parts = Parts {
            key_value: Arc::new(MortalKeyValue::new(self.store(), life.clone())),
            clock: Arc::clone(&clock),
            entropy: self.world.entropy(),
        };
        let destinations = destinations::mortal(&self.world, &life);
        let config = self.config.clone();
        let (service, place_among) = match &self.among {
            None if self.packs => {
                let service = Service::builder(parts).destinations(destinations);
                (service.objects(self.objects(&life)).build(config), None)
            }
            None => (
                Service::with_destinations(parts, destinations, config),
                None,
            ),
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

    fn objects(&self, life: &Life) -> Arc<MortalObjects> {
        Arc::new(MortalObjects::new(
            self.world.objects(),
            life.clone(),
            self.witness.clone(),
        ))
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

    /// A connection to whoever serves now: to one after the other of several.
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

    /// A connection to whoever serves at a place.
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

    /// The life of whoever serves now.
    pub fn life(&self) -> Option<Life> {
        self.life_at(0)
    }

    /// The life of whoever serves at a place.
    pub fn life_at(&self, place: usize) -> Option<Life> {
        self.nodes
            .borrow()
            .serving
            .get(&place)
            .map(|node| node.life.clone())
    }

    /// The membership of whoever serves at a place, where there are several.
    pub fn seat_at(&self, place: usize) -> Option<Arc<Seat>> {
        let nodes = self.nodes.borrow();
        nodes
            .serving
            .get(&place)?
            .place
            .as_ref()
            .map(|place| Arc::clone(&place.seat))
    }

    /// Whoever serves dies, with all that it held in memory.
    pub fn kill(&self) {
        let nodes = std::mem::take(&mut self.nodes.borrow_mut().serving);
        drop(nodes);
    }

    /// Whoever serves at a place dies.
    pub fn kill_at(&self, place: usize) {
        let node = self.nodes.borrow_mut().serving.remove(&place);
        drop(node);
    }

    /// Whoever serves leaves in order, if it lives that long; then it is gone.
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

    /// Whoever serves is taken for dead, and goes on; but for starting over once it learns of that, since the
    /// two would take the logs from each other for ever.
    pub fn leave_behind(&self) {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.serving.remove(&0);
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
