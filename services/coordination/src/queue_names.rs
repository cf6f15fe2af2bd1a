//! The service's functions, queues, queue groups and log by name.

use bytes::Bytes;
use ports::{Queue, Result, queue::Message};

use crate::model::SessionId;

/// The writer function.
pub const WRITER: &str = "coordination-writer";
/// The distributor function.
pub const DISTRIBUTOR: &str = "coordination-distributor";
/// The watch function.
pub const WATCH: &str = "coordination-watch";
/// The heartbeat function.
pub const HEARTBEAT: &str = "coordination-heartbeat";

/// The queue of requests for the writer, with one group per session.
pub const REQUEST_QUEUE: &str = "coordination-requests";
/// The queue of decided requests for the distributor, with one group.
pub const DISTRIBUTOR_QUEUE: &str = "coordination-decided";

/// The distributor's log, a partition of the system store.
pub const LOG_PARTITION: &str = "distributor-log";

/// The queue group of a session's requests.
pub fn request_group(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

/// The queue group of all decided requests.
pub fn distributor_group() -> Bytes {
    Bytes::from_static(b"all")
}

/// Sends messages of one group in order, in as few calls as the queue allows.
pub(crate) async fn send(
    queue: &dyn Queue,
    name: &str,
    group: Bytes,
    bodies: &[Bytes],
) -> Result<()> {
    let batch_messages_max = queue.limits().batch_messages_max.max(1);
    for bodies in bodies.chunks(batch_messages_max) {
        let message = |body: &Bytes| Message {
            group: group.clone(),
            deduplication: None,
            body: body.clone(),
        };
        let messages = bodies.iter().map(message).collect();
        queue.send(name, messages).await?;
    }
    Ok(())
}
