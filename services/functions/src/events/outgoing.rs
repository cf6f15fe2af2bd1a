//! Events that the service itself sends to a function: timer ticks and failure notices.

use std::time::Duration;

use bytes::Bytes;
use ports::Result;
use primitives::{Backoff, retry_repeatable};

use crate::{config::Parts, ids::registered_name};

/// How often and how long to repeat a call whose loss nothing else repairs. The attempts take about
/// a second.
pub(crate) const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_millis(200),
    attempts_max: 10,
};

/// Sends `function` an event under the request id `id`. Returns once the event is durable.
pub(crate) async fn send(parts: &Parts, function: &str, id: String, payload: Bytes) -> Result<()> {
    let (function, id) = (registered_name(function), Bytes::from(id));
    let (function, id, payload) = (&function, &id, &payload);
    retry_repeatable(RETRIES, &*parts.clock, &*parts.entropy, || async move {
        let receipt = parts
            .functions
            .send(function, Some(id.clone()), payload.clone())
            .await?;
        // The event queue need not share an order with the queue whose message is acknowledged
        // next.
        parts.queue.externalize(receipt.point).await
    })
    .await
}
