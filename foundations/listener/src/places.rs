//! The places for connections of one listener.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many connections past the limit are refused at a time.
pub const REFUSALS_MAX: usize = 64;

/// As many places as there may be connections, and some for refusing more.
#[derive(Debug)]
pub(crate) struct Places {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    /// Whether a place is set aside for the next connection.
    is_next_served: AtomicBool,
}

/// A place for one connection. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    places: Arc<Places>,
}

/// The fate of the next connection.
#[derive(Debug)]
pub(crate) enum Next {
    Served(Place),
    Refused(Place),
}

impl Places {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            served: Arc::new(Semaphore::new(connections_max)),
            refused: Arc::new(Semaphore::new(REFUSALS_MAX)),
            is_next_served: AtomicBool::new(false),
        }
    }

    /// Waits until the next connection can be served, or at least be refused. May be dropped and
    /// called anew.
    pub(crate) async fn next(self: &Arc<Self>) -> Next {
        const NEVER_CLOSED: &str = "the semaphores are never closed";
        self.is_next_served.store(false, Ordering::Relaxed);
        tokio::select! {
            biased;
            permit = Arc::clone(&self.served).acquire_owned() => {
                self.is_next_served.store(true, Ordering::Relaxed);
                Next::Served(self.place(permit.expect(NEVER_CLOSED)))
            }
            permit = Arc::clone(&self.refused).acquire_owned() => {
                Next::Refused(self.place(permit.expect(NEVER_CLOSED)))
            }
        }
    }

    /// A place to serve a connection that was to be refused, if one was freed since.
    pub(crate) fn freed(self: &Arc<Self>) -> Option<Place> {
        let permit = Arc::clone(&self.served).try_acquire_owned().ok()?;
        Some(self.place(permit))
    }

    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        Place {
            _permit: permit,
            places: Arc::clone(self),
        }
    }
}

impl Place {
    /// Whether as many connections are served as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.places.served.available_permits() == 0
            && !self.places.is_next_served.load(Ordering::Relaxed)
    }
}
