//! The reasons for refusing a request, in the service's own terms. Only a front end knows wire
//! codes.

use serde::{Deserialize, Serialize};

/// The reason why a request was refused. The request changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// The znode or its parent does not exist.
    #[error("no such znode")]
    NoNode,
    #[error("the znode exists")]
    NodeExists,
    #[error("the znode has children")]
    NotEmpty,
    #[error("the znode is at another version")]
    BadVersion,
    #[error("an ephemeral znode cannot have children")]
    NoChildrenForEphemerals,
    #[error("invalid path or flag")]
    BadArguments,
    /// The ACL is empty, malformed or too long, or names a scheme that is not offered.
    #[error("invalid ACL")]
    InvalidAcl,
    #[error("malformed request")]
    Marshalling,
    /// The operation is not offered; the connection ends after the reply.
    #[error("not implemented")]
    Unimplemented,
    #[error("the session has expired")]
    SessionExpired,
    #[error("the session has moved to another connection")]
    SessionMoved,
    /// A store failed. The update may or may not have happened.
    #[error("a store failed")]
    System,
    /// The store is full. The request was not accepted.
    #[error("the store has no room left")]
    NoRoom,
    /// The scheme is unknown or the proof is missing. The connection ends after the reply.
    #[error("authentication failed")]
    AuthenticationFailed,
    /// The connection has proved no identity, and must. It ends after the reply.
    #[error("authentication required")]
    AuthenticationRequired,
    /// The znode's ACL does not allow it.
    #[error("not allowed")]
    NotAuthorized,
    /// The connection has no such watch.
    #[error("no such watch")]
    NoWatcher,
    /// A hard quota does not allow it.
    #[error("a quota is exceeded")]
    QuotaExceeded,
    #[error("reconfiguration is disabled")]
    ReconfigurationDisabled,
    /// A part of a multi, before the one that failed.
    #[error("undone, because a later part failed")]
    NotDone,
    /// A part of a multi, after the one that failed.
    #[error("not attempted, because an earlier part failed")]
    NotAttempted,
}

/// The reason why a connection got no client.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConnectError {
    /// The session is unknown or expired, or the password is wrong. The server tells the client,
    /// then closes.
    #[error("the session has expired or the password is wrong")]
    Expired,
    /// The client has seen a zxid that this process has not reached. The server closes without an
    /// answer.
    #[error("the client has seen zxid {client:#x}, this server only {server:#x}")]
    ClientAhead { client: i64, server: i64 },
    /// A store failed. The server closes without an answer, and the client tries again.
    #[error("a store failed: {0}")]
    Store(#[from] ports::Error),
}

/// The reason why a client ended. The connection closes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Ended {
    /// The client closed the session, and all outputs were delivered.
    #[error("the session was closed")]
    Closed,
    #[error("the session has expired")]
    Expired,
    #[error("the session has moved to another connection")]
    Moved,
    /// The session's lease was not renewed in time, so this process may no longer answer for it
    /// (rule C-6).
    #[error("the session's lease ran out")]
    LeaseLost,
    /// A store failed. The client reconnects and learns the outcome of its requests.
    #[error("a store failed: {0}")]
    Store(#[from] ports::Error),
}

impl From<Ended> for ConnectError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Closed | Ended::Expired => Self::Expired,
            Ended::Store(error) => Self::Store(error),
            // A new attempt tells the client what became of the session.
            Ended::Moved | Ended::LeaseLost => {
                Self::Store(ports::Error::unavailable(ended.to_string()))
            }
        }
    }
}
