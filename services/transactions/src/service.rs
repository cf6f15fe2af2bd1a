//! The service, put together from ports: the engine, and who starts it over.

use std::sync::Arc;

use ports::{Clock, Entropy, KeyValue};

use crate::{
    Result,
    config::Config,
    effects::Destinations,
    engine::Engine,
    membership::{Alone, Membership},
    pack::SharedObjects,
    peers::Peers,
    store::Store,
};

/// What the service is made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Where everything lives. A node alone ends whoever had it before; others share it.
    pub key_value: Arc<dyn KeyValue>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
}

/// The transactions service of one process.
#[derive(Debug)]
pub struct Service {
    engine: Engine,
}

/// A service that is being put together.
#[derive(Debug)]
pub struct Builder {
    parts: Parts,
    destinations: Destinations,
    objects: Option<SharedObjects>,
    among: Option<(Arc<dyn Membership>, Arc<dyn Peers>)>,
}

impl Builder {
    /// With effects, which go to `destinations`.
    pub fn destinations(self, destinations: Destinations) -> Self {
        Self { destinations, ..self }
    }

    /// With values kept in packs among `objects`: a store that has once been given some is given the same ones for ever, by all
    /// its nodes.
    pub fn objects(self, objects: SharedObjects) -> Self {
        Self { objects: Some(objects), ..self }
    }

    /// One of several nodes on a store that they share, as `membership` says, which reach each other by `peers`. Each
    /// answers the others by [`Engine::answer_peer`].
    pub fn among(self, membership: Arc<dyn Membership>, peers: Arc<dyn Peers>) -> Self {
        Self { among: Some((membership, peers)), ..self }
    }

    /// The service. Nothing happens before [`Service::start`].
    pub fn build(self, config: Config) -> Service {
        let Self { parts, destinations, objects, among } = self;
        let (membership, peers) = match among {
            Some((membership, peers)) => (membership, Some(peers)),
            None => (Arc::new(Alone::default()) as _, None),
        };
        Service { engine: Engine::new(parts, destinations, objects, membership, peers, config) }
    }
}

impl Service {
    /// A service on `parts`, of a node that is alone.
    pub fn builder(parts: Parts) -> Builder {
        Builder { parts, destinations: Destinations::default(), objects: None, among: None }
    }

    /// The same at once, without effects.
    pub fn new(parts: Parts, config: Config) -> Self {
        Self::builder(parts).build(config)
    }

    /// The same with effects, which go to `destinations`.
    pub fn with_destinations(parts: Parts, destinations: Destinations, config: Config) -> Self {
        Self::builder(parts).destinations(destinations).build(config)
    }

    /// Takes a node id, finishes what earlier starts left unless others see to that, and begins to serve. After an error it can
    /// be tried again.
    pub async fn start(&self) -> Result<()> {
        self.engine.core.start_over().await
    }

    /// Starts over whenever the node cannot go on, because its store went back to an earlier state, its lease ran out or somebody
    /// has taken its log over. For ever: the program runs it beside the front ends.
    pub async fn run(&self) {
        let core = &self.engine.core;
        loop {
            let mut delays = Store::delays();
            while core.has_fallen() {
                tracing::warn!(
                    "transactions start over: the store lost what was not durable, the lease ran out or the log was taken"
                );
                if let Err(error) = core.start_over().await {
                    tracing::error!(%error, "transactions do not start");
                    core.pause(&mut delays).await;
                }
            }
            core.fell.notified().await;
        }
    }

    /// Ends the service in order: it takes no more calls, ends what is open, and lets what is under way come to its end, for
    /// two seconds at most. True: the next start need not search the store for what this one left. Nothing runs after it,
    /// neither [`Service::start`] nor [`Service::run`].
    pub async fn leave(&self) -> bool {
        self.engine.core.leave().await
    }

    /// Where transactions are begun. Until the service has started, every call is `Unavailable`.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }
}
