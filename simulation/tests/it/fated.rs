//! A store of which a test says what becomes of each update.

use std::{fmt, sync::Arc};

use ports::{Error, KeyValue, Update, decorate::KeyValueDecorator, decorates, key_value::Updated};

/// What becomes of an update.
pub(crate) enum Fate {
    /// It is made.
    Made,
    /// It is not made, and whoever asked for it hears so.
    Refused,
    /// It is not made, and whoever asked for it is never heard of again: his invocation runs out of time.
    Deadly,
}

/// Decides it.
type Decide = Box<dyn Fn(&Update) -> Fate + Send + Sync>;

/// The store.
pub(crate) struct Fated {
    store: Arc<dyn KeyValue>,
    fate: Decide,
}

impl Fated {
    /// `store`, where `fate` decides what becomes of single updates.
    pub(crate) fn new(
        store: Arc<dyn KeyValue>,
        fate: impl Fn(&Update) -> Fate + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            fate: Box::new(fate),
        })
    }
}

impl fmt::Debug for Fated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fated")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

decorates!(Fated, dyn KeyValue, store);

impl KeyValueDecorator for Fated {
    async fn update(&self, update: Update) -> ports::Result<Updated> {
        match (self.fate)(&update) {
            Fate::Made => self.store.update(update).await,
            Fate::Refused => Err(Error::unavailable("update what a test refuses")),
            Fate::Deadly => std::future::pending().await,
        }
    }
}
