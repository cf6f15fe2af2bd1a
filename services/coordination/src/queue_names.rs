//! The names of the service's functions, queues and groups.

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

/// Requests on their way to the writer, one group per session.
pub const REQUEST_QUEUE: &str = "coordination-requests";
/// Decided requests on their way to the distributor, in one group.
pub const DISTRIBUTOR_QUEUE: &str = "coordination-decided";

/// The group of a session's requests.
pub fn request_group(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

/// The one group of decided requests.
pub fn distributor_group() -> Bytes {
    Bytes::from_static(b"all")
}
