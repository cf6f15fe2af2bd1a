//! Responses within a time limit, with the cause where a store is too slow.

use std::time::Duration;

use parking_lot::Mutex;

use super::Service;
use crate::{Error, Result, placement::StoreLocation};

/// How long the stores may take for a response. The HTTP layer cuts a connection that is silent for
/// longer, and the client would not learn why.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

/// The store that a response waits for now. A response that is late names the trouble of this store,
/// and not of another one of the workflow.
#[derive(Debug, Default)]
pub(super) struct AwaitedStore(Mutex<Option<StoreLocation>>);

impl AwaitedStore {
    pub(super) fn set(&self, location: &StoreLocation) {
        *self.0.lock() = Some(location.clone());
    }
}

impl Service {
    /// The response, or after [`RESPONSE_MAX`] an error with the trouble of the store that it waits
    /// for.
    pub(super) async fn in_time<T>(
        &self,
        awaited: &AwaitedStore,
        response: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let late = || self.late(awaited);
        self.within(RESPONSE_MAX, late, response).await
    }

    /// The response, or the error `late` after `most`, but at least [`RESPONSE_MAX`].
    pub(super) fn within<T>(
        &self,
        most: Duration,
        late: impl FnOnce() -> ports::Error + Send,
        response: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        // On the heap: otherwise a caller of several would be as large as all of them.
        let response = Box::pin(response);
        async move {
            tokio::select! {
                biased;
                response = response => response.map_err(|error| self.for_caller(error)),
                () = self.env().clock.sleep(most.max(RESPONSE_MAX)) => Err(late().into()),
            }
        }
    }

    /// The error of a late response, with the trouble of the store that it waited for.
    pub(super) fn late(&self, awaited: &AwaitedStore) -> ports::Error {
        let location = awaited.0.lock();
        let trouble = location
            .as_ref()
            .and_then(|it| self.executor.placement.trouble(it));
        let why = trouble.unwrap_or_else(|| "its store does not answer in time".to_owned());
        ports::Error::unavailable(format!("show what is not durable yet: {why}"))
    }

    /// An error as a caller sees it. Logs the permanent refusals of far stores, each reason once and
    /// then less and less often.
    fn for_caller(&self, error: Error) -> Error {
        let error = error.for_caller();
        if let Error::Refused(refused) = &error {
            let now = self.env().clock.monotonic();
            let lasts = self.refusal_log.lock().failed(now, &refused.to_string());
            if let Some(lasts) = lasts {
                tracing::warn!(
                    error = %refused, ?lasts,
                    "a far store permanently refuses writes of runs"
                );
            }
        }
        error
    }
}
