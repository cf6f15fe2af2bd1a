//! The types of the service: keys, versions, attempts, and the parameters and results of calls.
//!
//! Nothing here knows a store. Numbers with a meaning have a type.

use std::{fmt, str::FromStr};

use bytes::Bytes;
use ports::objects::ObjectPath;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub mod transaction_id;

pub use self::transaction_id::TransactionId;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;

/// The longest result that is kept with a commit, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 << 10;

/// One start of one process; never reused. Zero means none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Generated ids have 24 bits for it.
    pub const MAX: Self = Self((1 << 24) - 1);
    /// Not a node: positions and frontiers use it to name the sequencer's log.
    pub const SEQUENCER: Self = Self(u32::MAX);
}

/// One begin of a transaction, globally unique. Stored names use it, never the transaction's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// The node that began it.
    pub node: NodeId,
    /// The number of this begin on its node, from one.
    pub sequence: u64,
}

impl Attempt {
    /// The length of its stored form.
    pub const BYTES: usize = 12;

    /// Its stored form: big-endian, so that it sorts by node, then sequence.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.node.0.to_be_bytes());
        bytes[4..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }

    /// Decodes the stored form `bytes`, if it is one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (node, sequence) = bytes.split_first_chunk::<4>()?;
        let sequence = u64::from_be_bytes(sequence.try_into().ok()?);
        Some(Self {
            node: NodeId(u32::from_be_bytes(*node)),
            sequence,
        })
    }
}

/// The form in which clients send it: `NODE-SEQUENCE`.
impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.node.0, self.sequence)
    }
}

impl FromStr for Attempt {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (node, sequence) = text.split_once('-')?;
            Some(Self {
                node: NodeId(node.parse().ok()?),
                sequence: sequence.parse().ok()?,
            })
        };
        parse().ok_or(Error::Invalid("an attempt reads NODE-SEQUENCE"))
    }
}

/// Hybrid time: 48 bits of milliseconds since the epoch and a 16-bit counter.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

/// A committed value with its version.
pub type Versioned = (Bytes, Version);

/// The position of a commit in the order of its keys' versions. The order is total, because a
/// node's timestamps grow strictly. The default version precedes all commits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Version {
    /// Compared first.
    pub timestamp: Timestamp,
    /// Compared if the timestamps are equal.
    pub node: NodeId,
}

impl Version {
    /// Above all timestamps of a clock, so commits from before a keyspace was sequenced precede all
    /// later ones.
    const SEQUENCED: u64 = 1 << 63;

    /// In a sequenced keyspace: the index of a commit within a slot of the sequencer's log.
    pub fn sequenced(slot: u64, place: u32) -> Self {
        Self {
            timestamp: Timestamp(Self::SEQUENCED + slot),
            node: NodeId(place),
        }
    }

    /// Its slot in the sequencer's log, or `None` if a clock assigned this timestamp.
    pub fn slot(self) -> Option<u64> {
        self.timestamp.0.checked_sub(Self::SEQUENCED)
    }

    /// The timestamp that a clock must exceed. Slots are no times, so a sequenced one yields zero.
    pub fn timed(self) -> Timestamp {
        if self.slot().is_some() {
            Timestamp::default()
        } else {
            self.timestamp
        }
    }
}

/// The log slot that announced a commit.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// The node that owns the log.
    pub log: NodeId,
    /// The slot, from one. Zero precedes all slots.
    pub slot: u64,
}

/// Which keyspace a key lies in.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct KeyspaceId(pub u32);

/// A key: 0 to [`KEY_BYTES_MAX`] bytes of any value, in a keyspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    keyspace: KeyspaceId,
    name: Bytes,
}

impl Key {
    /// The key `name` of the default keyspace. Errors: `Invalid` if it is too long.
    pub fn new(name: impl Into<Bytes>) -> Result<Self> {
        Self::in_keyspace(KeyspaceId::default(), name)
    }

    /// The key `name` of `keyspace`. Errors: `Invalid` if it is too long.
    pub fn in_keyspace(keyspace: KeyspaceId, name: impl Into<Bytes>) -> Result<Self> {
        let name = name.into();
        if name.len() > KEY_BYTES_MAX {
            return Err(Error::Invalid("a key has at most 1,024 bytes"));
        }
        Ok(Self { keyspace, name })
    }

    /// Its keyspace.
    pub fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    /// Its bytes.
    pub fn name(&self) -> &Bytes {
        &self.name
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.keyspace.0, self.name.escape_ascii())
    }
}

/// The isolation level of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Read atomic: it reads nothing uncommitted and nothing fractured. Concurrent transactions may
    /// overwrite each other's writes.
    #[default]
    ReadAtomic,
    /// Strictly serializable: as if transactions ran one after the other, in an order consistent
    /// with real time. A transaction that reads and writes may end with a conflict; a read-only one
    /// never does.
    Serializable,
}

/// The parameters of a begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Begin {
    /// The client's id for the transaction. `None` requests a generated one.
    pub id: Option<TransactionId>,
    /// The isolation level.
    pub isolation: Isolation,
    /// The client's last commit, which the new transaction must see.
    pub after: Option<After>,
    /// The keyspaces that a serializable transaction uses; empty means the default one. They become
    /// sequenced permanently.
    pub keyspaces: Vec<KeyspaceId>,
}

/// The result of a begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It is open.
    Open {
        /// Its id.
        id: TransactionId,
        /// This attempt. Clients send it with every later call.
        attempt: Attempt,
    },
    /// A transaction with this id has committed before; nothing is open.
    Committed {
        /// Its id.
        id: TransactionId,
        /// The token with which a begin sees this commit. `None` if it wrote nothing.
        after: Option<After>,
        /// The result that was kept with the commit.
        result: Option<Bytes>,
    },
}

/// The transaction that a call belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its id.
    pub id: TransactionId,
    /// The attempt. `None` means the latest.
    pub attempt: Option<Attempt>,
}

impl Call {
    /// The latest attempt of `id`.
    pub fn latest(id: TransactionId) -> Self {
        Self { id, attempt: None }
    }
}

/// A commit as its client sends it: `TIMESTAMP-NODE-LOG-SLOT`, all hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct After {
    /// Its version.
    pub version: Version,
    /// Where it was announced.
    pub position: Position,
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, position } = self;
        write!(
            f,
            "{:x}-{:x}-{:x}-{:x}",
            version.timestamp.0, version.node.0, position.log.0, position.slot
        )
    }
}

impl FromStr for After {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text
                .split('-')
                .map(|part| u64::from_str_radix(part, 16).ok());
            let [timestamp, node, log, slot] = [(); 4].map(|()| parts.next().flatten());
            let node_id = |number: Option<u64>| Some(NodeId(u32::try_from(number?).ok()?));
            let version = Version {
                timestamp: Timestamp(timestamp?),
                node: node_id(node)?,
            };
            let position = Position {
                log: node_id(log)?,
                slot: slot?,
            };
            parts.next().is_none().then_some(Self { version, position })
        };
        parse().ok_or(Error::Invalid(
            "a commit token reads TIMESTAMP-NODE-LOG-SLOT",
        ))
    }
}

/// A commit that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The token with which the client's next begin sees this commit. `None` if the transaction
    /// wrote nothing.
    pub after: Option<After>,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is open.
    Open,
    /// It is being decided.
    Committing,
    /// All its writes take effect.
    Committed,
    /// None of its writes takes effect.
    Aborted,
    /// It timed out, and none of its writes takes effect. Or it began so long ago that its outcome
    /// was dropped.
    Expired,
    /// A later begin replaced this attempt: its writes do not take effect.
    BegunAnew,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Committing => "committing",
            Self::Committed => "committed",
            Self::Aborted => "aborted",
            Self::Expired => "expired",
            Self::BegunAnew => "begun-anew",
        })
    }
}

/// The address at which other nodes reach this one: that of its HTTP front end. Empty if no node
/// needs to reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub String);

/// Names a pack by its node and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackId {
    /// The node that put it.
    pub node: NodeId,
    /// Its number, from one.
    pub number: u64,
}

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The pack.
    pub pack: PackId,
    /// The offset of its first byte.
    pub offset: u64,
}

impl PackId {
    /// The length of its stored form.
    pub const BYTES: usize = Attempt::BYTES;

    /// Its form in items.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let (node, sequence) = (self.node, self.number);
        Attempt { node, sequence }.to_bytes()
    }

    /// Decodes the output of [`PackId::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let Attempt { node, sequence } = Attempt::from_bytes(bytes)?;
        let number = sequence;
        Some(Self { node, number })
    }

    /// The path of its object in an object store whose packs lie under `home`.
    pub fn path(self, home: &str) -> ObjectPath {
        ObjectPath::from(format!("{home}/{}/{}", self.node.0, self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_as_they_were_written() {
        let attempt = Attempt {
            node: NodeId(7),
            sequence: 1 << 39,
        };
        assert_eq!(attempt.to_string().parse(), Ok(attempt));
        assert_eq!(Attempt::from_bytes(&attempt.to_bytes()), Some(attempt));
        let version = Version {
            timestamp: Timestamp(u64::MAX),
            node: NodeId(3),
        };
        let after = After {
            version,
            position: Position {
                log: NodeId(3),
                slot: 12,
            },
        };
        assert_eq!(after.to_string().parse(), Ok(after));
    }

    #[test]
    fn hostile_tokens_are_refused() {
        for text in ["", "-", "1", "1-", "1-x", "-1-2", "1-2-3", "4294967296-1"] {
            assert!(text.parse::<Attempt>().is_err(), "{text}");
        }
        for text in [
            "",
            "1-2-3",
            "1-2-3-4-5",
            "1-2-3-",
            "g-1-1-1",
            "1-1ffffffff-1-1",
            "--1-1-1",
        ] {
            assert!(text.parse::<After>().is_err(), "{text}");
        }
        assert!(Key::new(vec![0; KEY_BYTES_MAX + 1]).is_err());
        assert!(Key::new(vec![0; KEY_BYTES_MAX]).is_ok());
    }

    #[test]
    fn a_pack_id_survives_its_encoding() {
        let id = PackId {
            node: NodeId(7),
            number: u64::MAX,
        };
        assert_eq!(PackId::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(PackId::from_bytes(b"short"), None);
        assert_eq!(
            id.path("packs/1f").as_ref(),
            "packs/1f/7/18446744073709551615"
        );
    }
}
