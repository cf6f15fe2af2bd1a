//! The service's types: znodes and their Stat, sessions, requests, replies and watch events.
//!
//! Nothing here depends on a wire format or a store. Numbers with a meaning have a type.

use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The state counter of the paper: a position in the total order of all updates.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Zxid(pub i64);

/// Identifies a session permanently. Positive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SessionId(pub i64);

impl SessionId {
    /// Set in the ids of the processes' own sessions.
    const MEMBER_BIT: i64 = 1 << 62;

    /// The session of the service's own updates. No client has this id.
    pub(crate) const SYSTEM: Self = Self(0);

    /// The id of a client's session, from random bits. Positive; its top byte stays below every
    /// value that clients interpret.
    pub fn of_client(random: u64) -> Self {
        Self((random >> 2).max(1) as i64)
    }

    /// The id of a process's own session, from random bits.
    pub fn of_member(random: u64) -> Self {
        Self(Self::of_client(random).0 | Self::MEMBER_BIT)
    }

    /// Whether this is a process's own session.
    pub fn is_members(self) -> bool {
        self.0 & Self::MEMBER_BIT != 0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A history of the store: each restore from a backup begins another one. In it, session and
/// sequence numbers name other requests than those that were sent after the backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline(pub u64);

/// One connection to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) session: SessionId,
    /// Its number among the session's connections.
    pub(crate) attach: u64,
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
    /// Number of times its data was set.
    pub version: i32,
    /// Number of creates and deletions of its children.
    pub cversion: i32,
    /// Number of times its ACL was set.
    pub aversion: i32,
    /// The owning session of an ephemeral, otherwise zero.
    pub ephemeral_owner: i64,
    /// The length of its data in bytes.
    pub data_length: i32,
    /// Number of children.
    pub num_children: i32,
    /// The zxid that last created or deleted one of its children.
    pub pzxid: Zxid,
}

/// An access right, as a client sent it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acl {
    /// A bit set: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: i32,
    /// `world`, `auth`, `digest`, `ip`.
    pub scheme: String,
    /// The identity within the scheme.
    pub id: String,
}

impl Acl {
    /// Estimated encoded length in bytes.
    pub(crate) fn bytes_len(&self) -> usize {
        size_of::<i32>() + self.scheme.len() + self.id.len()
    }
}

/// An identity that a connection has proved, or its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// `ip`, `digest`, `x509`, `super`.
    pub scheme: String,
    /// The identity within the scheme, as ACLs name it.
    pub id: String,
}

/// When a znode ends without a client's deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// It exists until it is deleted.
    Persistent,
    /// It is deleted when its session ends.
    Ephemeral,
    /// It is deleted some time after its last child was deleted.
    Container,
    /// It is deleted once it has no children and its data was not set for `ms` milliseconds, which
    /// is positive and below 2^40.
    TimeToLive {
        /// Its time to live in milliseconds.
        ms: i64,
    },
}

/// Whether the parent's counter completes a znode's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Naming {
    /// The path is complete.
    Given,
    /// Ten digits of the parent's counter are appended.
    Sequential,
}

/// Whether a read sets a one-shot watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// It sets none.
    No,
    /// It sets one.
    Yes,
}

/// Which changes a persistent watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchMode {
    /// Those of its znode and its znode's children.
    Persistent,
    /// Those of its znode and of all znodes below it, each under its own path.
    Recursive,
}

/// What a watch that is set again observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// The data of a znode that existed.
    Data,
    /// The creation of a znode that did not exist.
    Existence,
    /// The children of a znode.
    Children,
    /// The changes of a persistent watch.
    Lasting(WatchMode),
}

/// The watches that a client removes or asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    /// One-shot child watches.
    Children,
    /// One-shot data and exists watches.
    Data,
    /// Watches of any kind.
    Any,
    /// Persistent watches.
    Persistent,
    /// Persistent recursive watches.
    Recursive,
}

/// A client's request. Versions are ZooKeeper's: -1 matches any. Null and empty data differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    /// Creates a znode. If `naming` is sequential, `path` is only the prefix of its path.
    Create {
        path: String,
        data: Option<Bytes>,
        acl: Vec<Acl>,
        lifetime: Lifetime,
        naming: Naming,
    },
    /// Deletes a znode without children.
    Delete { path: String, version: i32 },
    /// Replaces a znode's data.
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    /// Replaces a znode's ACL. `version` is that of the ACL.
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    /// Fails if the znode does not exist or is at another version. Only a part of `Multi`.
    Check { path: String, version: i32 },
    /// Makes all these updates or none, at one zxid. The parts are `Create`, `Delete`, `SetData`,
    /// `Check` and `RefuseUpdate`. A part sees the changes of those before it.
    Multi(Vec<Request>),
    /// Makes these reads, each of which may fail alone. The parts are `GetData` and `GetChildren`
    /// without watches.
    MultiRead(Vec<Request>),
    /// Adds identities to those of the connection. The front end has checked their proof.
    Authenticate(Vec<Identity>),
    /// Returns the identities of the connection.
    WhoAmI,
    /// Reads a znode's ACL and Stat.
    GetAcl { path: String },
    /// Returns the paths of the session's ephemerals that begin with `prefix`.
    GetEphemerals { prefix: String },
    /// Returns the number of znodes below a znode.
    CountDescendants { path: String },
    /// Sets a persistent watch, also at a path without a znode.
    AddWatch { path: String, mode: WatchMode },
    /// Removes watches of the connection at this path, or only checks that there is one.
    RemoveWatches {
        path: String,
        kind: WatchKind,
        only_checks: bool,
    },
    /// Reads a znode's Stat, if it exists. Can watch it even if it does not exist.
    Exists { path: String, watching: Watching },
    /// Reads a znode's data and Stat. Can watch it if it exists.
    GetData { path: String, watching: Watching },
    /// Reads the names of a znode's children, and its Stat. Can watch its children if it exists.
    GetChildren { path: String, watching: Watching },
    /// Waits until everything decided before is applied here. Returns `path` unchanged, also if it
    /// does not exist or is null.
    Sync { path: Option<String> },
    /// Keeps the session alive; answered in order.
    Ping,
    /// Sets watches again after a reconnect. A one-shot watch fires at once if its znode changed
    /// after `relative`, the last zxid that the client saw. A persistent watch reports the changes
    /// from now on.
    SetWatches {
        relative: Zxid,
        /// In the order in which they are set.
        watches: Vec<(Watched, String)>,
    },
    /// Ends the session and deletes its ephemerals.
    Close,
    /// Returns this error, in order. The front end could not decode the request or does not offer
    /// it.
    Refuse(Error),
    /// Returns this error for an update, which takes its position in the total order although it
    /// fails.
    RefuseUpdate(Error),
}

impl Request {
    /// Size of its paths, data and names in bytes.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Create {
                path, data, acl, ..
            } => path.len() + data_len(data.as_ref()) + acl_len(acl),
            Self::SetData { path, data, .. } => path.len() + data_len(data.as_ref()),
            Self::SetAcl { path, acl, .. } => path.len() + acl_len(acl),
            Self::Multi(parts) | Self::MultiRead(parts) => parts
                .iter()
                .map(|part| size_of::<Self>() + part.bytes_len())
                .sum(),
            Self::Authenticate(identities) => identities_len(identities),
            Self::GetEphemerals { prefix } => prefix.len(),
            Self::Delete { path, .. }
            | Self::Check { path, .. }
            | Self::GetAcl { path }
            | Self::CountDescendants { path }
            | Self::AddWatch { path, .. }
            | Self::RemoveWatches { path, .. }
            | Self::Exists { path, .. }
            | Self::GetData { path, .. }
            | Self::GetChildren { path, .. } => path.len(),
            Self::Sync { path } => path.as_ref().map_or(0, String::len),
            Self::SetWatches { watches, .. } => watches
                .iter()
                .map(|(_, path)| size_of::<(Watched, String)>() + path.len())
                .sum(),
            Self::Ping | Self::WhoAmI | Self::Close | Self::Refuse(_) | Self::RefuseUpdate(_) => 0,
        }
    }
}

fn acl_len(acl: &[Acl]) -> usize {
    acl.iter()
        .map(|entry| size_of::<Acl>() + entry.scheme.len() + entry.id.len())
        .sum()
}

fn identities_len(identities: &[Identity]) -> usize {
    identities
        .iter()
        .map(|one| size_of::<Identity>() + one.scheme.len() + one.id.len())
        .sum()
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

/// The successful result of a request. Null and empty data differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response {
    /// The complete path of the new znode, and its first Stat.
    Created {
        path: String,
        stat: Stat,
    },
    Deleted,
    /// Of set data, set ACL and exists.
    Stat(Stat),
    /// Of a check in a multi.
    Checked,
    /// The results of a multi or a multi read, in the order of its parts. If a part of a multi
    /// failed, those before it have [`Error::NotDone`], and those after it
    /// [`Error::NotAttempted`].
    Multi(Vec<Result<Response, Error>>),
    Acl {
        acl: Vec<Acl>,
        stat: Stat,
    },
    Identities(Vec<Identity>),
    Ephemerals(Vec<String>),
    Count(i32),
    Authenticated,
    WatchAdded,
    WatchesRemoved,
    Data {
        data: Option<Bytes>,
        stat: Stat,
    },
    /// The children's names, without the path, sorted. The Stat is their parent's.
    Children {
        children: Vec<String>,
        stat: Stat,
    },
    Synced {
        path: Option<String>,
    },
    Pong,
    WatchesSet,
    /// The connection ends after it.
    Closed,
}

impl Response {
    /// Size of its paths, data and names in bytes.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Created { path, .. } => path.len(),
            Self::Data { data, .. } => data_len(data.as_ref()),
            Self::Children { children, .. } => strings_len(children),
            Self::Ephemerals(paths) => strings_len(paths),
            Self::Synced { path } => path.as_ref().map_or(0, String::len),
            Self::Acl { acl, .. } => acl_len(acl),
            Self::Identities(identities) => identities_len(identities),
            Self::Multi(results) => results
                .iter()
                .map(|result| {
                    size_of::<Result<Self, Error>>() + result.as_ref().map_or(0, Self::bytes_len)
                })
                .sum(),
            Self::Deleted
            | Self::Stat(_)
            | Self::Checked
            | Self::Count(_)
            | Self::Authenticated
            | Self::WatchAdded
            | Self::WatchesRemoved
            | Self::Pong
            | Self::WatchesSet
            | Self::Closed => 0,
        }
    }
}

/// The change of a watched znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum EventKind {
    NodeCreated,
    NodeDeleted,
    NodeDataChanged,
    /// A child was created or deleted.
    NodeChildrenChanged,
}

/// A client's output: replies in the order of the requests, and each event before any reply that
/// reflects a later change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Output {
    /// The reply to the request that was submitted with `tag`.
    Reply {
        tag: i32,
        /// The zxid of an update, even if it failed. For other requests, the last zxid applied
        /// here.
        zxid: Zxid,
        result: Result<Response, Error>,
    },
    /// A watch fired.
    Event {
        /// The zxid of the change. None for an event that `SetWatches` found missed.
        zxid: Option<Zxid>,
        kind: EventKind,
        path: String,
    },
}

impl Output {
    /// Size of its paths, data and names in bytes.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Event { path, .. } => path.len(),
            Self::Reply { result, .. } => result.as_ref().map_or(0, Response::bytes_len),
        }
    }
}

/// The size of the tree. It may lag behind by a few updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Sizes {
    pub znodes: u64,
    pub ephemerals: u64,
    /// Of all paths and data, in bytes.
    pub data_bytes: u64,
}

impl Sizes {
    /// That of a tree without clients' znodes. ZooKeeper counts its root twice, as the empty path
    /// and as `/`.
    pub(crate) const BUILT_IN: Self = Self {
        znodes: 5,
        ephemerals: 0,
        data_bytes: 44,
    };
}

/// Parameters for opening or resuming a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// The highest zxid that the client has seen. A server that has not reached it refuses.
    pub last_zxid_seen: Zxid,
    /// The requested timeout. The granted one is within the configured bounds.
    pub timeout: Duration,
    /// The session to resume. None opens a new one.
    pub resume: Option<(SessionId, Password)>,
}
