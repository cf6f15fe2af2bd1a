//! The words of the service: znodes and their Stat, sessions, requests, replies and watch events.
//!
//! Nothing here knows the wire or a store. Numbers that mean something have a type.

use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The state counter of the paper: a place in the one order of all updates.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Zxid(pub i64);

/// Names a session for ever; positive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SessionId(pub i64);

impl SessionId {
    /// Set in the ids of sessions that processes have among themselves.
    const MEMBERS: i64 = 1 << 62;

    /// That of a client, from random bits: positive, and its top byte below every value with a meaning to clients.
    pub fn of_client(random: u64) -> Self {
        Self((random >> 2).max(1) as i64)
    }

    /// That of a process, from random bits.
    pub fn of_member(random: u64) -> Self {
        Self(Self::of_client(random).0 | Self::MEMBERS)
    }

    /// Whether it is a process's own.
    pub fn is_members(self) -> bool {
        self.0 & Self::MEMBERS != 0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Proves that a client owns a session. Never logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Password(pub [u8; 16]);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(password)")
    }
}

/// ZooKeeper's Stat, as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The zxid that created the znode.
    pub czxid: Zxid,
    /// The zxid that last set its data.
    pub mzxid: Zxid,
    /// When it was created, in milliseconds since the epoch.
    pub ctime: i64,
    /// When its data was last set, in milliseconds since the epoch.
    pub mtime: i64,
    /// How often its data was set.
    pub version: i32,
    /// How often its children changed: creates and deletions.
    pub cversion: i32,
    /// How often its ACL was set.
    pub aversion: i32,
    /// The session that owns it if it is ephemeral, else zero.
    pub ephemeral_owner: i64,
    /// The length of its data in bytes.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The zxid that last created or deleted a child of it.
    pub pzxid: Zxid,
}

/// Who may do what, as a client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// A bit set: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: i32,
    /// `world`, `auth`, `digest`, `ip`.
    pub scheme: String,
    /// Whom the scheme names.
    pub id: String,
}

/// Whether a znode dies with its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// It stays until it is deleted.
    Persistent,
    /// It dies with the session that made it.
    Ephemeral,
}

/// Whether a znode's name is completed by its parent's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Naming {
    /// The path is the name.
    Given,
    /// Ten digits of the parent's counter are appended.
    Sequential,
}

/// Whether a read leaves a one-shot watch behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// It does not.
    No,
    /// It does.
    Yes,
}

/// What a client asks for. Versions are ZooKeeper's: -1 matches any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Makes a znode.
    Create {
        /// Its path, or the prefix of it if `naming` is sequential.
        path: String,
        /// Its data; null and empty differ.
        data: Option<Bytes>,
        /// Who may do what with it.
        acl: Vec<Acl>,
        /// Whether it is ephemeral.
        lifetime: Lifetime,
        /// Whether its name is completed.
        naming: Naming,
    },
    /// Deletes a znode without children.
    Delete {
        /// Which.
        path: String,
        /// At which version.
        version: i32,
    },
    /// Replaces a znode's data.
    SetData {
        /// Which.
        path: String,
        /// Its new data.
        data: Option<Bytes>,
        /// At which version.
        version: i32,
    },
    /// A znode's Stat, if it is there.
    Exists {
        /// Which.
        path: String,
        /// Whether to watch it, there or not.
        watching: Watching,
    },
    /// A znode's data and Stat.
    GetData {
        /// Which.
        path: String,
        /// Whether to watch it if it is there.
        watching: Watching,
    },
    /// The names of a znode's children, and its Stat.
    GetChildren {
        /// Whose.
        path: String,
        /// Whether to watch them if the znode is there.
        watching: Watching,
    },
    /// Waits until everything decided before is applied here.
    Sync {
        /// Answered back, there or not, null too.
        path: Option<String>,
    },
    /// Keeps the session alive; answered in order.
    Ping,
    /// Sets watches again after a reconnect; what changed since `relative` fires at once.
    SetWatches {
        /// The last zxid the client saw.
        relative: Zxid,
        /// Paths with data watches.
        data: Vec<String>,
        /// Paths with exists watches.
        exists: Vec<String>,
        /// Paths with child watches.
        children: Vec<String>,
    },
    /// Ends the session and its ephemerals.
    Close,
    /// Answered with this error, in order: what the front end could not decode or does not offer.
    Refuse(Error),
    /// The same for an update, which takes its place in the order of all although it fails.
    RefuseUpdate(Error),
}

impl Request {
    /// How many bytes of paths, data and the like it holds.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Create {
                path, data, acl, ..
            } => {
                let of_entry = |acl: &Acl| size_of::<Acl>() + acl.scheme.len() + acl.id.len();
                path.len() + data_len(data.as_ref()) + acl.iter().map(of_entry).sum::<usize>()
            }
            Self::SetData { path, data, .. } => path.len() + data_len(data.as_ref()),
            Self::Delete { path, .. }
            | Self::Exists { path, .. }
            | Self::GetData { path, .. }
            | Self::GetChildren { path, .. } => path.len(),
            Self::Sync { path } => path.as_ref().map_or(0, String::len),
            Self::SetWatches {
                data,
                exists,
                children,
                ..
            } => strings_len(data) + strings_len(exists) + strings_len(children),
            Self::Ping | Self::Close | Self::Refuse(_) | Self::RefuseUpdate(_) => 0,
        }
    }
}

fn data_len(data: Option<&Bytes>) -> usize {
    data.map_or(0, Bytes::len)
}

fn strings_len(strings: &[String]) -> usize {
    strings
        .iter()
        .map(|string| size_of::<String>() + string.len())
        .sum()
}

/// What a request was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// To create.
    Created {
        /// The whole path, completed.
        path: String,
        /// The znode as created.
        stat: Stat,
    },
    /// To delete.
    Deleted,
    /// To set data, and exists.
    Stat(Stat),
    /// To get data.
    Data {
        /// The data; null and empty differ.
        data: Option<Bytes>,
        /// The Stat.
        stat: Stat,
    },
    /// To get children.
    Children {
        /// Their names, without the path, sorted.
        children: Vec<String>,
        /// The parent's Stat.
        stat: Stat,
    },
    /// To sync: the path as asked.
    Synced {
        /// The path as asked.
        path: Option<String>,
    },
    /// To ping.
    Pong,
    /// To set watches.
    WatchesSet,
    /// To close; the connection ends after it.
    Closed,
}

/// What happened to a watched znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// It was created.
    NodeCreated,
    /// It was deleted.
    NodeDeleted,
    /// Its data was set.
    NodeDataChanged,
    /// A child was created or deleted.
    NodeChildrenChanged,
}

/// What comes out of a client: replies in the order of the requests, and events before any reply that
/// reflects a later change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The answer to the request that was submitted with `tag`.
    Reply {
        /// The tag.
        tag: i32,
        /// For an update, failed ones too, its zxid; for the rest, the last zxid applied here.
        zxid: Zxid,
        /// The answer.
        result: Result<Response, Error>,
    },
    /// A watch fired.
    Event {
        /// The change that fired it; none for one made up on `SetWatches`.
        zxid: Option<Zxid>,
        /// What happened.
        kind: EventKind,
        /// To which znode.
        path: String,
    },
}

impl Output {
    /// How many bytes of paths, data and names it holds.
    pub fn bytes_len(&self) -> usize {
        let response = match self {
            Self::Event { path, .. } => return path.len(),
            Self::Reply { result: Err(_), .. } => return 0,
            Self::Reply {
                result: Ok(response),
                ..
            } => response,
        };
        match response {
            Response::Created { path, .. } => path.len(),
            Response::Data { data, .. } => data_len(data.as_ref()),
            Response::Children { children, .. } => strings_len(children),
            Response::Synced { path } => path.as_ref().map_or(0, String::len),
            Response::Deleted
            | Response::Stat(_)
            | Response::Pong
            | Response::WatchesSet
            | Response::Closed => 0,
        }
    }
}

/// How a client opens or re-opens a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// The highest zxid the client has seen; a server behind it refuses.
    pub last_zxid_seen: Zxid,
    /// The timeout it asks for; the granted one lies within the configured bounds.
    pub timeout: Duration,
    /// The session to resume; none opens a new one.
    pub resume: Option<(SessionId, Password)>,
}
