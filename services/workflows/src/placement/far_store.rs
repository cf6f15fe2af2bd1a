//! Far stores: how they are opened, and how they last responded.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use ports::key_value::SharedKeyValue;
use synchrony::Health;

/// Opens far stores.
#[async_trait]
pub trait FarStores: Debug + Send + Sync {
    /// Opens the store at `address`. Errors: `Invalid` for a malformed address, `Unavailable`.
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue>;
}

/// The state of a far store as of our last request to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FarStore {
    /// Why it does not respond as it should; none: it does.
    pub trouble: Option<String>,
    /// The time since it last responded to a write or a heartbeat; none: it has not responded.
    pub answered: Option<Duration>,
    /// Bytes that are ordered near and not yet durable far.
    pub waiting_bytes: u64,
    /// How long the oldest of these bytes have waited.
    pub waiting_for: Duration,
    /// Runs whose writes a permanent error of the store has stopped.
    pub stopped_runs: u64,
}

impl FarStore {
    pub(super) fn of(health: &Health) -> Self {
        let failing = health.failing.as_ref();
        let failing = failing.map(|failing| failing.reason.clone());
        let ended = |kind| format!("this server no longer uses it: {kind}");
        Self {
            trouble: failing.or_else(|| health.ended.map(ended)),
            answered: health.answered,
            waiting_bytes: health.pending_bytes as u64,
            waiting_for: health.pending_for,
            stopped_runs: health.poisoned_lanes as u64,
        }
    }

    /// The same state after `elapsed` without a request to the store.
    pub(super) fn after(self, elapsed: Duration) -> Self {
        Self {
            answered: self.answered.map(|answered| answered + elapsed),
            ..self
        }
    }

    /// A store that could not be opened.
    pub(super) fn unopened(trouble: String) -> Self {
        Self {
            trouble: Some(trouble),
            ..Self::default()
        }
    }
}
