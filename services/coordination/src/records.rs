//! Records that the service stores and sends between its functions, and their encoding.
//!
//! Every record starts with a version byte, so that a later build can read the records of an
//! earlier one. The encoding is postcard's.

use bytes::{Bytes, BytesMut};
use ports::{DurabilityPoint, Incarnation, key_value::Version};
use primitives::RecordFormat;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Error,
    model::{Acl, EventKind, Identity, Lifetime, Naming, SessionId, Stat, Zxid},
};

/// The format of the records below. Any change to them raises the version. Once a version was
/// released, the change also adds a decoder for the old one.
const FORMAT: RecordFormat = RecordFormat::new(7);

/// Encodes `record` after its version byte.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_sized(record, 96)
}

/// Encodes a record of about `bytes_len` bytes, so that the buffer need not grow.
pub fn encode_sized<T: Serialize>(record: &T, bytes_len: usize) -> Bytes {
    FORMAT.encode(record, bytes_len)
}

/// Encodes `record` after the bytes that `buffer` has.
pub(crate) fn encode_at_end<T: Serialize>(buffer: &mut BytesMut, record: &T) {
    FORMAT.encode_at_end(buffer, record);
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

impl UpdateId {
    /// The creator of the built-in znodes: no update has this id.
    pub(crate) const NONE: Self = Self {
        session: SessionId(0),
        sequence: 0,
    };
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub version: i32,
    /// Number of times its ACL was set.
    pub aversion: i32,
    /// Number of children ever created in it: the counter behind sequential names.
    pub creates: i32,
    pub children: i32,
    pub kind: Kind,
    /// Its ACL as [`crate::access`] encodes it. Empty for the ACL that allows everything to all.
    pub acl: Bytes,
    /// The last update that touched it, which the next one follows (rule C-3).
    pub last: UpdateId,
}

/// What ends a znode other than a client's deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Persistent,
    /// The end of the session of the update that created it.
    Ephemeral(UpdateId),
    /// The deletion of its last child, some time later.
    Container,
    /// This many milliseconds without children, and without an update of its data since `set_at_ms`
    /// on the writer's clock.
    TimeToLive {
        ms: i64,
        set_at_ms: i64,
    },
}

impl NodeState {
    /// A znode without children, as `last` creates it.
    pub(crate) fn created(kind: Kind, acl: Bytes, last: UpdateId) -> Self {
        Self {
            version: 0,
            aversion: 0,
            creates: 0,
            children: 0,
            kind,
            acl,
            last,
        }
    }

    /// For an ephemeral, the update that created it. The session of that update owns the znode.
    pub fn owner(&self) -> Option<UpdateId> {
        match self.kind {
            Kind::Ephemeral(create) => Some(create),
            _ => None,
        }
    }

    /// If it may end without a client's deletion: the time that must have passed, in milliseconds
    /// since the epoch. A container that never had a child does not end.
    pub fn due_ms(&self) -> Option<i64> {
        match self.kind {
            _ if self.children > 0 => None,
            Kind::Container => (self.creates != 0).then_some(0),
            Kind::TimeToLive { ms, set_at_ms } => Some(set_at_ms.saturating_add(ms)),
            Kind::Persistent | Kind::Ephemeral(_) => None,
        }
    }

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
    /// The length of the bytes that it carries itself.
    pub fn inline_len(&self) -> usize {
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
    /// The identities of its connection when it was submitted, for ACLs.
    pub identities: Identities,
    pub operation: Operation,
}

/// The identities of a connection. They are decoded only for an ACL that is not the open one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Identities(Bytes);

impl Identities {
    /// No identities.
    pub const NONE: Self = Self(Bytes::new());

    /// Encodes them.
    pub fn of(identities: &[Identity]) -> Self {
        Self(encode(&identities))
    }

    /// Their values. Ones that do not decode, which only damage to a store can cause, are none.
    pub fn decode(&self) -> Vec<Identity> {
        if self.0.is_empty() {
            return Vec::new();
        }
        decode(&self.0, "identities").unwrap_or_default()
    }
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
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    /// Only a part of a multi.
    Check {
        path: String,
        version: i32,
    },
    /// All of these or none. A part is no `Multi`.
    Multi(Vec<Operation>),
    /// Fail with this error, at its place in the order.
    Refuse(Error),
    /// No change. The answer tells a new connection that all earlier requests are applied (rule
    /// C-6).
    Attach,
    /// End the session at its client's request.
    Close,
    /// End the session because the heartbeat moved it to closing.
    Expire,
    /// Remove a container or a znode with a time to live if it is due. Otherwise correct its entry
    /// in the index, if the entry is still at this version.
    RemoveExpired {
        path: String,
        entry: Version,
    },
}

impl Operation {
    /// Estimated encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        64 + match self {
            Self::Create {
                path, data, acl, ..
            } => path.len() + data.inline_len() + acl.iter().map(Acl::bytes_len).sum::<usize>(),
            Self::SetData { path, data, .. } => path.len() + data.inline_len(),
            Self::SetAcl { path, acl, .. } => {
                path.len() + acl.iter().map(Acl::bytes_len).sum::<usize>()
            }
            Self::Delete { path, .. }
            | Self::Check { path, .. }
            | Self::RemoveExpired { path, .. } => path.len(),
            Self::Multi(parts) => parts.iter().map(Self::bytes_len).sum(),
            Self::Refuse(_) | Self::Attach | Self::Close | Self::Expire => 0,
        }
    }

    /// Whether the operation is refused by a full store. The store's reserve is for deletes and
    /// sessions.
    pub fn needs_room(&self) -> bool {
        match self {
            Self::Create { .. } | Self::SetData { .. } | Self::SetAcl { .. } | Self::Refuse(_) => {
                true
            }
            Self::Multi(parts) => parts.iter().any(Self::needs_room),
            _ => false,
        }
    }

    /// The temporary objects that hold its data.
    pub fn temporary_objects(&self) -> Vec<String> {
        match self {
            Self::Create { data, .. } | Self::SetData { data, .. } => {
                data.object().map(str::to_owned).into_iter().collect()
            }
            Self::Multi(parts) => parts.iter().flat_map(Self::temporary_objects).collect(),
            _ => Vec::new(),
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
    /// The ephemerals of other sessions that it deletes: the updates that created them, and their
    /// places among the deleted paths. Once the deletion is applied, the distributor removes the
    /// entries from the indexes of those sessions.
    pub foreign_ephemerals: Vec<(UpdateId, u32)>,
    /// The temporary objects that held its data. They are garbage once the request is applied.
    pub temporaries: Vec<String>,
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
        self.outcome.as_ref().map_or(0, Effect::path_bytes)
    }

    /// The ephemerals of other sessions that it deletes: the updates that created them, and their
    /// paths.
    pub fn foreign_ephemerals(&self) -> Vec<(UpdateId, &str)> {
        if self.foreign_ephemerals.is_empty() {
            return Vec::new();
        }
        let deleted = self.outcome.as_ref().map_or(Vec::new(), Effect::deleted);
        let path = |place: u32| deleted.get(place as usize).map(|path| path.as_str());
        let foreign = self.foreign_ephemerals.iter();
        foreign
            .filter_map(|(create, place)| Some((*create, path(*place)?)))
            .collect()
    }

    /// The data that it writes to znodes.
    pub fn written(&self) -> impl Iterator<Item = Written<'_>> {
        let (parts, whole) = match &self.outcome {
            Ok(Effect::Multi(parts)) => (parts.as_slice(), None),
            Ok(effect) => (&[][..], effect.written(0)),
            Err(_) => (&[][..], None),
        };
        let effects = parts.iter().map(|part| &part.effect).enumerate();
        let of_parts = effects.filter_map(|(part, effect)| effect.written(part as u32));
        of_parts.chain(whole)
    }
}

/// Data that an update writes to a znode.
#[derive(Debug, Clone, Copy)]
pub struct Written<'decided> {
    /// The number of the part of a multi, from zero.
    pub part: u32,
    pub path: &'decided str,
    pub data: &'decided Payload,
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
        /// As in [`NodeState::acl`].
        acl: Bytes,
    },
    /// Deletes znodes together: one for a delete, several for a part of a session's end.
    Delete {
        paths: Vec<String>,
    },
    SetData {
        path: String,
        data: Payload,
    },
    SetAcl {
        path: String,
        /// As in [`NodeState::acl`].
        acl: Bytes,
    },
    /// Changes nothing.
    Check,
    /// All of these, at one zxid.
    Multi(Vec<Part>),
    /// Changes nothing, because the part with this number failed, of so many.
    MultiFailed {
        failed: u32,
        parts: u32,
        error: Error,
    },
    Attach,
    /// Ends the session and deletes its ephemerals.
    Close {
        paths: Vec<String>,
    },
}

impl Effect {
    /// The paths that a client's deletes remove.
    pub fn deleted(&self) -> Vec<&String> {
        match self {
            Self::Delete { paths } => paths.iter().collect(),
            Self::Multi(parts) => parts
                .iter()
                .flat_map(|part| part.effect.deleted())
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The number of ephemerals that the end of a session deletes.
    pub fn ended(&self) -> usize {
        match self {
            Self::Delete { paths } | Self::Close { paths } => paths.len(),
            _ => 0,
        }
    }

    fn path_bytes(&self) -> usize {
        match self {
            Self::Create { path, .. } | Self::SetData { path, .. } | Self::SetAcl { path, .. } => {
                path.len()
            }
            Self::Delete { paths } | Self::Close { paths } => paths.iter().map(String::len).sum(),
            Self::Multi(parts) => parts.iter().map(|part| part.effect.path_bytes()).sum(),
            Self::Check | Self::MultiFailed { .. } | Self::Attach => 0,
        }
    }

    fn written(&self, part: u32) -> Option<Written<'_>> {
        match self {
            Self::Create { path, data, .. } | Self::SetData { path, data } => {
                Some(Written { part, path, data })
            }
            _ => None,
        }
    }
}

/// One part of a multi.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub effect: Effect,
    /// The znodes that it touches, as its own change leaves them.
    pub touched: Vec<Touched>,
}

/// A slot of the distributor's fenced log (rule C-4): a run of zxids with their answers and events,
/// in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The zxid of the first entry; the others follow without a gap.
    pub first: Zxid,
    /// The updates that got these zxids.
    pub entries: Vec<LogEntry>,
    /// The statistics of quotas after the slot: their paths and texts.
    pub statistics: Vec<(String, Bytes)>,
}

impl Slot {
    /// The zxid of the last entry.
    pub fn last(&self) -> Zxid {
        Zxid(self.first.0 + self.entries.len() as i64 - 1)
    }

    /// The entries with their zxids.
    pub fn numbered(self) -> impl Iterator<Item = (Zxid, LogEntry)> {
        let zxids = (self.first.0..).map(Zxid);
        zxids.zip(self.entries)
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
    pub events: Vec<Change>,
}

/// The change of a znode, for its watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub kind: EventKind,
    pub path: String,
    /// The ACL that says who may learn of it, as in [`NodeState::acl`]: that of the changed znode,
    /// or the one it had when it was deleted.
    pub acl: Bytes,
}

/// The answer to an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateAnswer {
    Created {
        path: String,
        stat: Stat,
    },
    Deleted,
    /// Of set data and set ACL.
    Set(Stat),
    Checked,
    Multi(Vec<UpdateAnswer>),
    MultiFailed {
        failed: u32,
        parts: u32,
        error: Error,
    },
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
