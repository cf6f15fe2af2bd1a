//! A store in which the test selects the fault of each update.

use std::{fmt, sync::Arc};

use ports::{Error, KeyValue, Update, decorate::KeyValueDecorator, decorates, key_value::Updated};

/// The fault of an update.
pub(crate) enum UpdateFault {
    /// None.
    Made,
    /// The update is not performed, and the caller gets an error.
    Refused,
    /// The update is not performed, and the caller gets no answer: its invocation runs out of time.
    Deadly,
}

/// Selects the fault.
type Decide = Box<dyn Fn(&Update) -> UpdateFault + Send + Sync>;

/// The store.
pub(crate) struct FaultyUpdates {
    store: Arc<dyn KeyValue>,
    fault: Decide,
}

impl FaultyUpdates {
    /// Wraps `store`; `fault` selects the faults of single updates.
    pub(crate) fn new(
        store: Arc<dyn KeyValue>,
        fault: impl Fn(&Update) -> UpdateFault + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            fault: Box::new(fault),
        })
    }
}

impl fmt::Debug for FaultyUpdates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyUpdates")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

decorates!(FaultyUpdates, dyn KeyValue, store);

impl KeyValueDecorator for FaultyUpdates {
    async fn update(&self, update: Update) -> ports::Result<Updated> {
        match (self.fault)(&update) {
            UpdateFault::Made => self.store.update(update).await,
            UpdateFault::Refused => Err(Error::unavailable("update what a test refuses")),
            UpdateFault::Deadly => std::future::pending().await,
        }
    }
}
