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

impl Service {
    /// The service on `parts`, without effects. Nothing happens before [`Service::start`].
    pub fn new(parts: Parts, config: Config) -> Self {
        Self::with_destinations(parts, Destinations::default(), config)
    }

    /// The same with effects, which go to `destinations`.
    pub fn with_destinations(parts: Parts, destinations: Destinations, config: Config) -> Self {
        Self { engine: Engine::new(parts, destinations, None, Arc::new(Alone::default()), None, config) }
    }

    /// The same with values kept in packs among `objects`: a store that has once been given some is given them for ever.
    pub fn with_objects(
        parts: Parts,
        destinations: Destinations,
        objects: SharedObjects,
        config: Config,
    ) -> Self {
        Self {
            engine: Engine::new(parts, destinations, Some(objects), Arc::new(Alone::default()), None, config),
        }
    }

    /// One of several nodes on a store that they share, as `membership` says, which reach each other by `peers`. Each
    /// answers the others by [`Engine::answer_peer`].
    pub fn among(
        parts: Parts,
        destinations: Destinations,
        membership: Arc<dyn Membership>,
        peers: Arc<dyn Peers>,
        config: Config,
    ) -> Self {
        Self { engine: Engine::new(parts, destinations, None, membership, Some(peers), config) }
    }

    /// Takes a node id, finishes what earlier starts left, and begins to serve. After an error it can be tried again.
    pub async fn start(&self) -> Result<()> {
        self.engine.core.start_over().await
    }

    /// Starts over whenever the node cannot go on, because its store went back to an earlier state or somebody has taken
    /// its log over. For ever: the program runs it beside the front ends.
    pub async fn run(&self) {
        let core = &self.engine.core;
        loop {
            core.fell.notified().await;
            let mut delays = Store::delays();
            while core.has_fallen() {
                tracing::warn!(
                    "transactions start over: the store lost what was not durable, or the log was taken"
                );
                if let Err(error) = core.start_over().await {
                    tracing::error!(%error, "transactions do not start");
                    core.pause(&mut delays).await;
                }
            }
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
