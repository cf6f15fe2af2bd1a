//! The service: builds the engine from ports, and restarts its node when that is fenced.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use ports::Monotonic;
use primitives::{Backoff, Delays};

use crate::{
    Error, Result,
    cluster::{
        membership::{Alone, Membership},
        peers::Peers,
    },
    config::Config,
    context::SharedObjects,
    effects::Destinations,
    engine::{Engine, Parts},
};

/// The transactions service of one process.
#[derive(Debug)]
pub struct Service {
    engine: Engine,
}

/// After serving this long, a start counts as a success: if the node is fenced later, that is a new
/// outage.
const SERVED_WELL: Duration = Duration::from_secs(10);
/// The delay between two starts of one outage. Each start takes a node id and announces itself to
/// all others.
const START_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(1),
    attempts_max: u32::MAX,
};

/// The nodes of this process are fenced as fast as they start, or do not start.
#[derive(Debug)]
struct Outage {
    delays: Delays,
    /// The throttle of its log lines.
    said: ports::LogThrottle,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            delays: START_AGAIN.delays(),
            said: ports::LogThrottle::default(),
        }
    }
}

impl Outage {
    fn say(&mut self, now: Monotonic, error: &Error) {
        if let Some(lasts) = self.said.failed(now, &error.to_string()) {
            tracing::warn!(%error, ?lasts, "transactions cannot start; retrying until they do");
        }
    }
}

/// Builds a service.
#[derive(Debug)]
pub struct Builder {
    parts: Parts,
    destinations: Destinations,
    objects: Option<SharedObjects>,
    volume_objects: Option<SharedObjects>,
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

    /// Keeps large values in packs in `objects`. Once a store has used an object store, all its
    /// nodes must always be given the same one.
    pub fn objects(self, objects: SharedObjects) -> Self {
        Self {
            objects: Some(objects),
            ..self
        }
    }

    /// Keeps large values of volumes in `objects`. Once a store has used an object store so, it must
    /// always be given the same one.
    pub fn volume_objects(self, objects: SharedObjects) -> Self {
        Self {
            volume_objects: Some(objects),
            ..self
        }
    }

    /// Makes this one of several nodes on a shared store. `membership` lists them and `peers`
    /// reaches them. Each node answers the others through [`Engine::answer_peer`].
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
            volume_objects,
            among,
        } = self;
        let objects = (objects, volume_objects);
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
    /// A service on `parts` with a single node.
    pub fn builder(parts: Parts) -> Builder {
        Builder {
            parts,
            destinations: Destinations::default(),
            objects: None,
            volume_objects: None,
            among: None,
        }
    }

    /// The service on `parts`, without effects.
    pub fn new(parts: Parts, config: Config) -> Self {
        Self::builder(parts).build(config)
    }

    /// Takes a node id, finishes the work that earlier starts left unless other nodes do, and
    /// begins to serve. After an error it may be called again.
    pub fn start(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.engine.recovery.start_over().await })
    }

    /// Restarts the node whenever it cannot go on: its store returned to an earlier state, its
    /// lease expired, or another node took over its log. The first restart is immediate; later ones
    /// back off until a node has served for [`SERVED_WELL`]. Never returns: the program runs it
    /// beside the front ends.
    pub fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let calls = &self.engine.calls;
            let mut outage: Option<Outage> = None;
            loop {
                let began = calls.context.clock.monotonic();
                while !calls.serving.is_fenced() {
                    calls.serving.on_fence.notified().await;
                }
                if calls.context.clock.monotonic().since(began) >= SERVED_WELL {
                    outage = None;
                }
                if let Some(outage) = &mut outage {
                    calls.context.pause(&mut outage.delays).await;
                } else {
                    tracing::warn!(
                        "transactions restart: the store lost data that were not durable, the lease expired, or another node took over the log"
                    );
                }
                let outage = outage.get_or_insert_with(Outage::default);
                if let Err(error) = self.engine.recovery.start_over().await {
                    outage.say(calls.context.clock.monotonic(), &error);
                }
            }
        })
    }

    /// Shuts the service down in order: it accepts no more calls, ends open attempts, and lets
    /// running work finish, for two seconds at most. If it returns true, the next start need not
    /// search the store for leftovers of this one. Neither [`Service::start`] nor [`Service::run`]
    /// may follow.
    pub fn leave(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move { self.engine.recovery.leave().await })
    }

    /// The API. Until the service has started, every call returns `Unavailable`.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }
}
