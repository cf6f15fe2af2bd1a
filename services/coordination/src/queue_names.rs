//! The names of the service's functions, queues and queue groups.

use bytes::Bytes;

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

/// The queue group of a session's requests.
pub fn request_group(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

/// The queue group of all decided requests.
pub fn distributor_group() -> Bytes {
    Bytes::from_static(b"all")
}
