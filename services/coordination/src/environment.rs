//! The ports and the settings that all parts of the service share.

use std::sync::Arc;

use ports::{Clock, Entropy, Functions, KeyValue, Queue, objects::ObjectStore};

use crate::{broken::Broken, config::Config, dependency::TrackedStore, model::Timeline};

/// The ports of the service.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The store of sessions, locks and the log.
    pub system: Arc<dyn KeyValue>,
    /// The store of the znodes that clients read.
    pub items: Arc<dyn KeyValue>,
    /// The temporary objects, and the data of znodes that is not in the items.
    pub objects: Arc<dyn ObjectStore>,
    /// The queues of requests and decisions.
    pub queue: Arc<dyn Queue>,
    /// The function runtime.
    pub functions: Arc<dyn Functions>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of session ids and passwords.
    pub entropy: Arc<dyn Entropy>,
}

/// The ports and the settings of one process.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) parts: Parts,
    pub(crate) config: Config,
}

impl Environment {
    /// The system store for work that has observed nothing yet.
    pub(crate) fn system(&self) -> TrackedStore {
        TrackedStore::new(self.parts.system.clone())
    }

    /// The timeline for the names of objects.
    pub(crate) fn timeline(&self) -> Option<Timeline> {
        let timeline = self.config.timeline;
        timeline.filter(|_| !self.breaks(Broken::ForgetsTheTimeline))
    }

    /// Whether this is the mutant without `rule`.
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.config.mutant.breaks(rule)
    }
}
