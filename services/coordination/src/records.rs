//! What the service stores and sends between its functions, and how it is encoded.
//!
//! Every record starts with a version byte, so that a later build reads what an earlier one wrote. The
//! encoding is postcard's.

use bytes::Bytes;
use ports::{DurabilityPoint, Incarnation, key_value::Room};
use primitives::RecordFormat;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Error,
    model::{Acl, EventKind, Lifetime, Naming, SessionId, Stat, Zxid},
    node::Holder,
};

/// The format of the records below. A change of any of them raises the version and, once a version
/// was released, adds a decoder for the old one.
const FORMAT: RecordFormat = RecordFormat::new(4);

/// Encodes `record` after its version byte.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_sized(record, 96)
}

/// As [`encode`], for a record of about `bytes_len` bytes, so that its buffer need not grow.
pub fn encode_sized<T: Serialize>(record: &T, bytes_len: usize) -> Bytes {
    FORMAT.encode(record, bytes_len)
}

/// Decodes a record that [`encode`] made.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> ports::Result<T> {
    FORMAT.decode(bytes, what)
}

/// Names one decided update for ever: the session that asked for it, and its place among the session's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UpdateId {
    /// The session.
    pub session: SessionId,
    /// Its place: one above the update before it, over all attaches of the session.
    pub sequence: u64,
}

/// A znode in the system store: what the writer validates against. Its zxids are the distributor's to give
/// and live in the user store alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// How often its data was set.
    pub version: i32,
    /// How many children were ever created in it: the counter behind sequential names.
    pub creates: i32,
    /// How many children it has.
    pub children: i32,
    /// If it is ephemeral, the update that made it: its session owns it.
    pub owner: Option<UpdateId>,
    /// The last update that touched it: what the next one follows (rule C-3).
    pub last: UpdateId,
}

/// Data on its way, or at rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Null, which is not the same as empty.
    Null,
    /// The bytes themselves.
    Inline(Bytes),
    /// An object holds them.
    Object {
        /// Its name.
        name: String,
        /// How long it is.
        bytes_len: u64,
    },
}

impl Payload {
    fn inline_len(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Inline(bytes) => bytes.len(),
            Self::Object { name, .. } => name.len(),
        }
    }

    /// The length that Stat shows.
    pub fn bytes_len(&self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Object { bytes_len, .. } => *bytes_len,
        }
    }
}

/// A request on its way to the writer: a message of its session's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Whose.
    pub session: SessionId,
    /// The attach it was submitted under; an older one than the row's is refused.
    pub attach: u64,
    /// Its number within the attach, from one. Zero: not from a client, and not numbered.
    pub request: u64,
    /// What is asked.
    pub operation: Operation,
}

/// What a writer can be asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Make a znode.
    Create {
        /// Its path or the prefix of it.
        path: String,
        /// Its data.
        data: Payload,
        /// Its ACL.
        acl: Vec<Acl>,
        /// Whether it dies with the session.
        lifetime: Lifetime,
        /// Whether the name is completed.
        naming: Naming,
    },
    /// Delete a znode.
    Delete {
        /// Which.
        path: String,
        /// At which version.
        version: i32,
    },
    /// Replace data.
    SetData {
        /// Which.
        path: String,
        /// Its new data.
        data: Payload,
        /// At which version.
        version: i32,
    },
    /// Fail with this error, in its place in the order.
    Refuse(Error),
    /// Nothing; its answer tells a new attach that all before it is applied (rule C-6).
    Attach,
    /// End the session: asked for by its client.
    Close,
    /// End the session: decided by the heartbeat, which marked its row.
    Expire,
}

impl Operation {
    /// About how long it is encoded.
    pub fn bytes_len(&self) -> usize {
        let (path, data) = match self {
            Self::Create { path, data, .. } | Self::SetData { path, data, .. } => {
                (path.len(), data.inline_len())
            }
            Self::Delete { path, .. } => (path.len(), 0),
            Self::Refuse(_) | Self::Attach | Self::Close | Self::Expire => (0, 0),
        };
        64 + path + data
    }

    /// The least room in which it is taken: the last of the room is for sessions. Whether they may be opened, resumed and
    /// condemned is asked before their rows are changed ([`crate::session`]); what follows from that is finished.
    pub fn room_min(&self) -> Room {
        match self {
            Self::Create { .. } | Self::SetData { .. } | Self::Refuse(_) => Room::Free,
            Self::Delete { .. } => Room::Scarce,
            Self::Attach | Self::Close | Self::Expire => Room::Exhausted,
        }
    }

    /// The temporary object that carries its data, if one does.
    pub fn temporary_object(&self) -> Option<&str> {
        match self {
            Self::Create {
                data: Payload::Object { name, .. },
                ..
            }
            | Self::SetData {
                data: Payload::Object { name, .. },
                ..
            } => Some(name),
            _ => None,
        }
    }
}

/// A request decided in its session's row (rule C-1): the outbox entry, and the message to the distributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Names it.
    pub id: UpdateId,
    /// The start of the store in which it was planned: who reads of it in a later one asks the row whether the decision
    /// was lost with the start before.
    pub incarnation: Incarnation,
    /// The writer's fencing number that decided it: locks of other numbers are not its own.
    pub fence: u64,
    /// The sequence that its locks name: the first of the requests that were decided together with it.
    pub locks: u64,
    /// The attach and request number it answers.
    pub attach: u64,
    /// See [`Submitted::request`].
    pub request: u64,
    /// The writer's wall clock, for ctime and mtime.
    pub time_ms: i64,
    /// What it does, or why not.
    pub outcome: Result<Effect, Error>,
    /// The znodes it touches, in path order. A failure touches what it was refused for and changes nothing there, and
    /// an end what else it was planned by: so they have their places in the order (rule C-3).
    pub touched: Vec<Touched>,
    /// If it deletes an ephemeral of another session, the update that made that: once it is gone, whoever applies this removes
    /// it from the index of its session.
    pub taken: Option<UpdateId>,
    /// A temporary object that carried its data and is garbage once it is applied.
    pub temporary: Option<String>,
}

impl Decided {
    /// What its locks name.
    pub fn holder(&self) -> Holder {
        Holder {
            request: UpdateId {
                sequence: self.locks,
                ..self.id
            },
            fence: self.fence,
        }
    }

    /// How long the paths are that it changes.
    pub fn path_bytes(&self) -> usize {
        match &self.outcome {
            Ok(Effect::Create { path, .. } | Effect::SetData { path, .. }) => path.len(),
            Ok(Effect::Delete { paths } | Effect::Close { paths }) => {
                paths.iter().map(String::len).sum()
            }
            Ok(Effect::Attach) | Err(_) => 0,
        }
    }

    /// The ephemeral of another session that it deletes: the update that made it, and its path.
    pub fn taken(&self) -> Option<(UpdateId, &str)> {
        match &self.outcome {
            Ok(Effect::Delete { paths }) => self.taken.zip(paths.first().map(String::as_str)),
            _ => None,
        }
    }

    /// The data that it puts into a znode.
    pub fn data(&self) -> Option<&Payload> {
        match &self.outcome {
            Ok(Effect::Create { data, .. } | Effect::SetData { data, .. }) => Some(data),
            _ => None,
        }
    }
}

/// A znode touched by a decided update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// Which.
    pub path: String,
    /// The update it follows there (rule C-3); none if the znode was not there.
    pub follows: Option<UpdateId>,
    /// What it becomes; none: it is gone.
    pub becomes: Option<NodeState>,
}

/// What an update does to the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A znode appears.
    Create {
        /// Its whole path.
        path: String,
        /// Its data.
        data: Payload,
        /// Its ACL.
        acl: Vec<Acl>,
    },
    /// Znodes vanish, together: one for a delete, all ephemerals for the end of a session.
    Delete {
        /// Their paths, in order.
        paths: Vec<String>,
    },
    /// Data is replaced.
    SetData {
        /// Whose.
        path: String,
        /// By this.
        data: Payload,
    },
    /// Nothing.
    Attach,
    /// The session ends with its ephemerals.
    Close {
        /// Their paths, in order.
        paths: Vec<String>,
    },
}

/// A slot of the distributor's fenced log (rule C-4): zxids given, answers and events, all in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The zxid of the first entry; the others follow without a gap.
    pub first: Zxid,
    /// What was given a zxid.
    pub entries: Vec<Entry>,
}

impl Slot {
    /// The zxid of the last entry.
    pub fn last(&self) -> Zxid {
        Zxid(self.first.0 + self.entries.len() as i64 - 1)
    }

    /// The entries with their zxids.
    pub fn numbered(&self) -> impl Iterator<Item = (Zxid, &Entry)> {
        self.entries
            .iter()
            .zip(self.first.0..)
            .map(|(entry, zxid)| (Zxid(zxid), entry))
    }
}

/// One update in the order of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Names it.
    pub id: UpdateId,
    /// The attach and request number it answers.
    pub attach: u64,
    /// See [`Submitted::request`].
    pub request: u64,
    /// The answer its client gets.
    pub answer: Result<Answer, Error>,
    /// What watchers hear, in order.
    pub events: Vec<(EventKind, String)>,
}

/// What a client is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To create.
    Created {
        /// The whole path.
        path: String,
        /// As created.
        stat: Stat,
    },
    /// To delete.
    Deleted,
    /// To set data.
    Set(Stat),
    /// To an attach.
    Attached,
    /// To the end of the session.
    Closed,
}

/// What the watch function is told: a slot was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// The index of the slot before it; zero if there is none.
    pub previous: u64,
    /// Its index in the log.
    pub index: u64,
    /// The epoch it was logged under.
    pub epoch: u64,
    /// Its encoded form.
    pub slot: Bytes,
    /// Nothing of it may leave before this point is durable (rule P5).
    pub point: DurabilityPoint,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_version_is_refused_by_number() {
        let mut bytes = encode(&UpdateId {
            session: SessionId(1),
            sequence: 2,
        })
        .to_vec();
        assert_eq!(
            decode::<UpdateId>(&bytes, "id").expect("decodes").sequence,
            2
        );
        bytes[0] = 9;
        let refused = decode::<UpdateId>(&bytes, "id").expect_err("refused");
        assert!(refused.to_string().contains("version 9"), "{refused}");
        assert!(decode::<UpdateId>(&[], "id").is_err());
    }
}
