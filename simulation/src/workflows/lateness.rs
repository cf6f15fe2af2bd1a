//! A near store that does not answer the begin of a run in time, but performs it later.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ports::{
    Clock, Error, ErrorKind, KeyValue, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{SharedKeyValue, Transacted},
};

/// The delay of the next begin; none: no delay. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Lateness(Arc<Mutex<Option<Duration>>>);

impl Lateness {
    /// Performs the next begin of a run `by` later than its caller gives up.
    pub fn delay_next(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(by);
    }

    fn take(&self, updates: &[Update]) -> Option<Duration> {
        let is_begin = updates.iter().any(|update| {
            update.key.partition().starts_with(b"w/") && update.key.sort().first() == Some(&b'i')
        });
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_if(|_| is_begin)
    }
}

/// A store with some [`Lateness`].
#[derive(Debug)]
pub struct LateKeyValue {
    pub(crate) inner: SharedKeyValue,
    pub(crate) lateness: Lateness,
    pub(crate) clock: Arc<dyn Clock>,
}

decorates!(LateKeyValue, dyn KeyValue, inner);

impl KeyValueDecorator for LateKeyValue {
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let Some(by) = self.lateness.take(&updates) else {
            return self.inner.transact(updates).await;
        };
        let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.clock));
        tokio::spawn(async move {
            clock.sleep(by).await;
            // The result is discarded.
            drop(inner.transact(updates).await);
        });
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "hear from the near store",
        ))
    }
}
