//! What can be wrong with a request, in the service's own words; only a front end knows codes of a wire.

use serde::{Deserialize, Serialize};

/// Why a request was refused. It changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such znode, or no parent for it.
    #[error("no such znode")]
    NoNode,
    /// The znode to create is there.
    #[error("the znode exists")]
    NodeExists,
    /// The znode to delete has children.
    #[error("the znode has children")]
    NotEmpty,
    /// The znode is at another version.
    #[error("the znode is at another version")]
    BadVersion,
    /// An ephemeral znode cannot have children.
    #[error("an ephemeral znode cannot have children")]
    NoChildrenForEphemerals,
    /// A path or flag is not valid.
    #[error("invalid path or flag")]
    BadArguments,
    /// The ACL is empty, malformed, or of a kind this build does not enforce.
    #[error("invalid ACL")]
    InvalidAcl,
    /// The request does not decode.
    #[error("malformed request")]
    Marshalling,
    /// The operation is not offered; the connection ends after the reply.
    #[error("not implemented")]
    Unimplemented,
    /// The session has ended.
    #[error("the session has expired")]
    SessionExpired,
    /// The session was taken over by another connection.
    #[error("the session has moved to another connection")]
    SessionMoved,
    /// A store failed; whether the update happened is not known.
    #[error("a store failed")]
    System,
    /// The store is full: it was not taken.
    #[error("the store has no room left")]
    NoRoom,
    /// Nobody can prove here who he is; the connection ends after the reply.
    #[error("authentication failed")]
    AuthenticationFailed,
    /// The znode is not for clients to change.
    #[error("not allowed")]
    NotAuthorized,
}

/// Why a connection was not given a client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The session is unknown or expired, or the password is wrong: tell the client so, then close.
    #[error("the session has expired or the password is wrong")]
    Expired,
    /// The client has seen a zxid that this state has not reached: close without an answer.
    #[error("the client has seen zxid {client:#x}, this server only {server:#x}")]
    ClientAhead {
        /// What the client saw.
        client: i64,
        /// What is applied here.
        server: i64,
    },
    /// A store failed: close without an answer, the client tries again.
    #[error("a store failed: {0}")]
    Store(#[from] ports::Error),
}

/// Why a client came to its end. The connection closes.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The session was closed by its client; every output was given.
    #[error("the session was closed")]
    Closed,
    /// The session has expired.
    #[error("the session has expired")]
    Expired,
    /// Another connection has taken the session over.
    #[error("the session has moved to another connection")]
    Moved,
    /// The session's lease could not be renewed in time, so nobody may answer for it here (rule C-6).
    #[error("the session's lease ran out")]
    LeaseLost,
    /// A store failed; the client reconnects and learns what became of its requests.
    #[error("a store failed: {0}")]
    Store(#[from] ports::Error),
}

impl From<Ended> for ConnectError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Closed | Ended::Expired => Self::Expired,
            Ended::Store(error) => Self::Store(error),
            // Whoever tries again learns what has become of the session.
            Ended::Moved | Ended::LeaseLost => {
                Self::Store(ports::Error::unavailable(ended.to_string()))
            }
        }
    }
}
