//! The places for connections of one listener.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many connections past the limit are refused at a time.
pub const REFUSALS_MAX: usize = 64;

/// As many places as there may be connections, and some for refusing more. Only the accept loop
/// takes places.
#[derive(Debug)]
pub(crate) struct Places {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

/// A place for one connection. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    served: Arc<Semaphore>,
    /// Whether the connection is past the limit.
    pub(crate) is_refusal: bool,
}

impl Places {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            served: Arc::new(Semaphore::new(connections_max)),
            refused: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    /// Waits until the next connection can be served, or at least be refused.
    pub(crate) async fn wait_until_free(&self) {
        // The permit is given back: a connection takes its place when it is there.
        tokio::select! {
            biased;
            _ = self.served.acquire() => {}
            _ = self.refused.acquire() => {}
        }
    }

    /// The place of a connection. `None`: none is free.
    pub(crate) fn take(&self) -> Option<Place> {
        let (permit, is_refusal) = match Arc::clone(&self.served).try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_full) => (Arc::clone(&self.refused).try_acquire_owned().ok()?, true),
        };
        Some(Place {
            _permit: permit,
            served: Arc::clone(&self.served),
            is_refusal,
        })
    }
}

impl Place {
    /// Whether as many connections are served as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.served.available_permits() == 0
    }
}
