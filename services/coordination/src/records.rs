//! Records that the service stores and sends between its functions, and their encoding.
//!
//! Every record starts with a version byte, so that a later build can read the records of an
//! earlier one. The encoding is postcard's.

use bytes::Bytes;
use ports::{DurabilityPoint, Incarnation};
use primitives::RecordFormat;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Error,
    model::{Acl, EventKind, Lifetime, Naming, SessionId, Stat, Zxid},
};

/// The format of the records below. Any change to them raises the version. Once a version was
/// released, the change also adds a decoder for the old one.
const FORMAT: RecordFormat = RecordFormat::new(5);

/// Encodes `record` after its version byte.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_sized(record, 96)
}

/// Encodes a record of about `bytes_len` bytes, so that the buffer need not grow.
pub fn encode_sized<T: Serialize>(record: &T, bytes_len: usize) -> Bytes {
    FORMAT.encode(record, bytes_len)
}

/// Decodes a record that [`encode`] encoded.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> ports::Result<T> {
    FORMAT.decode(bytes, what)
}

/// Identifies one decided update permanently: the session that asked for it, and its sequence
/// number in that session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UpdateId {
    pub session: SessionId,
    /// One above the update before it, over all attaches of the session.
    pub sequence: u64,
}

/// The holder of a lock: the first of the requests that are decided together, and the fencing
/// number of the writer that works for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub request: UpdateId,
    pub fence: u64,
}

/// A znode in the system store: the state that the writer validates against. Only the distributor
/// assigns zxids, so they are in the user store alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub version: i32,
    /// Number of children ever created in it: the counter behind sequential names.
    pub creates: i32,
    pub children: i32,
    /// For an ephemeral, the update that created it. The session of that update owns the znode.
    pub owner: Option<UpdateId>,
    /// The last update that touched it, which the next one follows (rule C-3).
    pub last: UpdateId,
}

impl NodeState {
    /// Number of creates and deletions of its children.
    pub fn cversion(&self) -> i32 {
        self.creates.wrapping_mul(2).wrapping_sub(self.children)
    }
}

/// Data of a znode, in transit or stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Null, which is not the same as empty.
    Null,
    Inline(Bytes),
    Object {
        name: String,
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

    /// The name of the object that holds the bytes.
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Object { name, .. } => Some(name),
            Self::Null | Self::Inline(_) => None,
        }
    }

    /// The data length that Stat shows.
    pub fn bytes_len(&self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Object { bytes_len, .. } => *bytes_len,
        }
    }
}

/// A request on its way to the writer, as a message of its session's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    pub session: SessionId,
    /// The attach under which it was submitted. The writer refuses it if the row's attach is
    /// higher.
    pub attach: u64,
    /// Its number within the attach, from one. Zero for a request that does not come from a client.
    pub request: u64,
    pub operation: Operation,
}

/// The operations of a writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    Create {
        path: String,
        data: Payload,
        acl: Vec<Acl>,
        lifetime: Lifetime,
        naming: Naming,
    },
    Delete {
        path: String,
        version: i32,
    },
    SetData {
        path: String,
        data: Payload,
        version: i32,
    },
    /// Fail with this error, at its place in the order.
    Refuse(Error),
    /// No change. The answer tells a new connection that all earlier requests are applied (rule
    /// C-6).
    Attach,
    /// End the session at its client's request.
    Close,
    /// End the session because the heartbeat moved it to closing.
    Expire,
}

impl Operation {
    /// Estimated encoded length in bytes.
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

    /// Whether the operation is refused by a full store. The store's reserve is for deletes and
    /// sessions.
    pub fn needs_room(&self) -> bool {
        matches!(
            self,
            Self::Create { .. } | Self::SetData { .. } | Self::Refuse(_)
        )
    }

    /// The temporary object that holds its data, if there is one.
    pub fn temporary_object(&self) -> Option<&str> {
        match self {
            Self::Create { data, .. } | Self::SetData { data, .. } => data.object(),
            _ => None,
        }
    }
}

/// A request decided in its session's row (rule C-1). It is the outbox entry and the message to the
/// distributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    pub id: UpdateId,
    /// The incarnation of the store in which it was planned. A reader in a later incarnation asks
    /// the row whether the decision was lost.
    pub incarnation: Incarnation,
    /// The fencing number of the writer that decided it. Locks with other numbers are not its own.
    pub fence: u64,
    /// The sequence in its locks: that of the first request decided together with it.
    pub locks: u64,
    pub attach: u64,
    /// The number of the request that it answers, see [`Submitted::request`].
    pub request: u64,
    /// The writer's wall clock in milliseconds since the epoch, for ctime and mtime.
    pub time_ms: i64,
    /// Its effect, or the reason for the refusal.
    pub outcome: Result<Effect, Error>,
    /// The znodes that it touches, in path order. A refusal touches the znodes that caused it and
    /// changes nothing in them. A session end also touches the znodes that it was planned from.
    /// Both get their position in the order from this (rule C-3).
    pub touched: Vec<Touched>,
    /// If it deletes an ephemeral of another session, the update that created the ephemeral. Once
    /// the deletion is applied, the distributor removes the entry from that session's index.
    pub foreign_ephemeral: Option<UpdateId>,
    /// The temporary object that held its data. It is garbage once the request is applied.
    pub temporary: Option<String>,
}

impl Decided {
    /// The holder that its locks name.
    pub fn holder(&self) -> Holder {
        Holder {
            request: UpdateId {
                sequence: self.locks,
                ..self.id
            },
            fence: self.fence,
        }
    }

    /// Total length of the changed paths in bytes.
    pub fn path_bytes(&self) -> usize {
        match &self.outcome {
            Ok(Effect::Create { path, .. } | Effect::SetData { path, .. }) => path.len(),
            Ok(Effect::Delete { paths } | Effect::Close { paths }) => {
                paths.iter().map(String::len).sum()
            }
            Ok(Effect::Attach) | Err(_) => 0,
        }
    }

    /// The ephemeral of another session that it deletes: the update that created it, and its path.
    pub fn foreign_ephemeral(&self) -> Option<(UpdateId, &str)> {
        match &self.outcome {
            Ok(Effect::Delete { paths }) => self
                .foreign_ephemeral
                .zip(paths.first().map(String::as_str)),
            _ => None,
        }
    }

    /// The data that it writes to a znode.
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
    pub path: String,
    /// The update that it follows on this znode (rule C-3), or `None` if the znode did not exist.
    pub follows: Option<UpdateId>,
    /// The znode's new state, or `None` if it is deleted.
    pub becomes: Option<NodeState>,
}

/// The change that an update makes to the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    Create {
        path: String,
        data: Payload,
        acl: Vec<Acl>,
    },
    /// Deletes znodes together: one for a delete, several for a part of a session's end.
    Delete {
        paths: Vec<String>,
    },
    SetData {
        path: String,
        data: Payload,
    },
    Attach,
    /// Ends the session and deletes its ephemerals.
    Close {
        paths: Vec<String>,
    },
}

/// A slot of the distributor's fenced log (rule C-4): a run of zxids with their answers and events,
/// in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The zxid of the first entry; the others follow without a gap.
    pub first: Zxid,
    /// The updates that got these zxids.
    pub entries: Vec<LogEntry>,
}

impl Slot {
    /// The zxid of the last entry.
    pub fn last(&self) -> Zxid {
        Zxid(self.first.0 + self.entries.len() as i64 - 1)
    }

    /// The entries with their zxids.
    pub fn numbered(&self) -> impl Iterator<Item = (Zxid, &LogEntry)> {
        self.entries
            .iter()
            .zip(self.first.0..)
            .map(|(entry, zxid)| (Zxid(zxid), entry))
    }
}

/// One update in the total order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub id: UpdateId,
    pub attach: u64,
    /// The number of the request that it answers, see [`Submitted::request`].
    pub request: u64,
    pub answer: Result<UpdateAnswer, Error>,
    /// The events for watches, in order.
    pub events: Vec<(EventKind, String)>,
}

/// The answer to an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateAnswer {
    Created { path: String, stat: Stat },
    Deleted,
    Set(Stat),
    Attached,
    Closed,
}

/// The payload of the watch function: one applied slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// The index of the slot before it, or zero if there is none.
    pub previous: u64,
    pub index: u64,
    /// The epoch of the distributor that logged it.
    pub epoch: u64,
    pub slot: Bytes,
    /// No part of the slot may be sent to a client before this point is durable (rule P5).
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
