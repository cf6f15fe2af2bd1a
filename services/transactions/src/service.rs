//! The service, put together from ports: the engine, and who starts it over.

use std::{sync::Arc, time::Duration};

use ports::Monotonic;
use primitives::{Backoff, Delays};

use crate::{
    Error, Result,
    cluster::{
        membership::{Alone, Membership},
        peers::Peers,
    },
    config::Config,
    effects::Destinations,
    engine::{Engine, Parts},
    packing::SharedObjects,
};

/// The transactions service of one process.
#[derive(Debug)]
pub struct Service {
    engine: Engine,
}

/// A node that has served for so long has not started in vain: if it falls, that is another outage.
const SERVED_WELL: Duration = Duration::from_secs(10);
/// Between two starts of one outage: each takes a node id, and tells all others.
const START_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(1),
    attempts_max: u32::MAX,
};

/// Nodes of this process fall as fast as they start, or do not start.
#[derive(Debug)]
struct Outage {
    delays: Delays,
    /// What was said of it.
    said: ports::Outage,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            delays: START_AGAIN.delays(),
            said: ports::Outage::default(),
        }
    }
}

impl Outage {
    fn say(&mut self, now: Monotonic, error: &Error) {
        if let Some(lasts) = self.said.failed(now, &error.to_string()) {
            tracing::warn!(%error, ?lasts, "transactions do not start; they are tried again until they do");
        }
    }
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
        Self {
            destinations,
            ..self
        }
    }

    /// With values kept in packs among `objects`: a store that has once been given some is given the same ones for ever, by all
    /// its nodes.
    pub fn objects(self, objects: SharedObjects) -> Self {
        Self {
            objects: Some(objects),
            ..self
        }
    }

    /// One of several nodes on a store that they share, as `membership` says, which reach each other by `peers`. Each
    /// answers the others by [`Engine::answer_peer`].
    pub fn among(self, membership: Arc<dyn Membership>, peers: Arc<dyn Peers>) -> Self {
        Self {
            among: Some((membership, peers)),
            ..self
        }
    }

    /// The service. Nothing happens before [`Service::start`].
    pub fn build(self, config: Config) -> Service {
        let Self {
            parts,
            destinations,
            objects,
            among,
        } = self;
        let (membership, peers) = match among {
            Some((membership, peers)) => (membership, Some(peers)),
            None => (Arc::new(Alone::default()) as _, None),
        };
        Service {
            engine: Engine::new(parts, destinations, objects, membership, peers, config),
        }
    }
}

impl Service {
    /// A service on `parts`, of a node that is alone.
    pub fn builder(parts: Parts) -> Builder {
        Builder {
            parts,
            destinations: Destinations::default(),
            objects: None,
            among: None,
        }
    }

    /// The same at once, without effects.
    pub fn new(parts: Parts, config: Config) -> Self {
        Self::builder(parts).build(config)
    }

    /// The same with effects, which go to `destinations`.
    pub fn with_destinations(parts: Parts, destinations: Destinations, config: Config) -> Self {
        Self::builder(parts)
            .destinations(destinations)
            .build(config)
    }

    /// Takes a node id, finishes what earlier starts left unless others see to that, and begins to serve. After an error it can
    /// be tried again.
    pub async fn start(&self) -> Result<()> {
        self.engine.core.recovery.start_over().await
    }

    /// Starts over whenever the node cannot go on, because its store went back to an earlier state, its lease ran out or somebody
    /// has taken its log over: at once, and then ever more seldom until one has served for [`SERVED_WELL`]. For ever: the
    /// program runs it beside the front ends.
    pub async fn run(&self) {
        let core = &self.engine.core;
        let mut outage: Option<Outage> = None;
        loop {
            let began = core.context.clock.monotonic();
            while !core.serving.has_fallen() {
                core.serving.fell.notified().await;
            }
            if core.context.clock.monotonic().since(began) >= SERVED_WELL {
                outage = None;
            }
            if let Some(outage) = &mut outage {
                core.context.pause(&mut outage.delays).await;
            } else {
                tracing::warn!(
                    "transactions start over: the store lost what was not durable, the lease ran out or the log was taken"
                );
            }
            let outage = outage.get_or_insert_with(Outage::default);
            if let Err(error) = core.recovery.start_over().await {
                outage.say(core.context.clock.monotonic(), &error);
            }
        }
    }

    /// Ends the service in order: it takes no more calls, ends what is open, and lets what is under way come to its end, for
    /// two seconds at most. True: the next start need not search the store for what this one left. Nothing runs after it,
    /// neither [`Service::start`] nor [`Service::run`].
    pub async fn leave(&self) -> bool {
        self.engine.core.recovery.leave().await
    }

    /// Where transactions are begun. Until the service has started, every call is `Unavailable`.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }
}
