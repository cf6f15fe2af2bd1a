//! Proposals: all that a transaction has read and writes, sent as one request; and their verdicts.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Key, KeyRange, Slot, VALUE_BYTES_MAX};
use crate::{Error, Result, serializable::FORMAT};

/// The longest id of a proposal, in bytes.
pub const ID_BYTES_MAX: usize = 128;
/// The most reads and predicates of one proposal together.
pub const READS_MAX: usize = 100_000;
/// The most bytes of writes within a proposal; more are staged first.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// The most bytes of writes in the stage of one proposal.
pub const STAGED_BYTES_MAX: u64 = 1 << 30;
/// The most bytes of one part of a stage: a value of the longest kind with its key fits.
pub const PART_BYTES_MAX: usize = 300 << 10;
/// The most parts of a stage.
pub const PARTS_MAX: u32 = 65_536;

/// The identity of a proposal. It commits at most once, however often it is sent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Bytes, u64)")]
pub struct ProposalId {
    id: Bytes,
    attempt: u64,
}

impl ProposalId {
    /// Attempt `attempt` of the transaction `id`: 16 random bytes, or a client's id of 1 to
    /// [`ID_BYTES_MAX`] bytes. Of all attempts of one id, at most one commits. Errors: `Invalid` if
    /// the id has a wrong length.
    pub fn new(id: impl Into<Bytes>, attempt: u64) -> Result<Self> {
        let id = id.into();
        if (1..=ID_BYTES_MAX).contains(&id.len()) {
            Ok(Self { id, attempt })
        } else {
            Err(Error::Invalid("the id of a proposal has 1 to 128 bytes"))
        }
    }

    /// The id of the transaction.
    pub fn id(&self) -> &Bytes {
        &self.id
    }

    /// Which attempt of it.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }
}

impl TryFrom<(Bytes, u64)> for ProposalId {
    type Error = Error;

    fn try_from((id, attempt): (Bytes, u64)) -> Result<Self> {
        Self::new(id, attempt)
    }
}

/// A transaction that wants to commit.
///
/// It commits if no other transaction has written its reads since `at`, and if its predicates
/// hold now. Its reads and writes then happen at once, in its slot. Writes are never validated, so
/// blind writes do not conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The slot at which it read.
    pub at: Slot,
    /// Its identity.
    pub id: ProposalId,
    /// The keys that it read, also those that were absent.
    pub reads: Vec<Key>,
    /// The conditions that must hold besides.
    pub predicates: Vec<Predicate>,
    /// Its writes, which take effect in their order.
    pub writes: Writes,
}

/// A condition of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Predicate {
    /// No key of the range was written since the proposal's `at`.
    Untouched(KeyRange),
    /// The number at `key`, before the proposal's own writes, compares so *now*. A value that is no
    /// number fails.
    Number {
        /// The key.
        key: Key,
        /// The comparison.
        is: Is,
    },
    /// No session holds a lock on the key, and none has held one since the proposal's `at`.
    LockFree(Key),
}

/// A comparison of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Is {
    /// The number is this or more.
    AtLeast(u64),
    /// The number is this or less.
    AtMost(u64),
    /// The number is this.
    Equals(u64),
}

impl Is {
    /// Whether it holds for `number`.
    pub fn holds(self, number: u64) -> bool {
        match self {
            Self::AtLeast(bound) => number >= bound,
            Self::AtMost(bound) => number <= bound,
            Self::Equals(other) => number == other,
        }
    }
}

/// The writes of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Writes {
    /// In the proposal, at most [`INLINE_BYTES_MAX`] bytes.
    Inline(Vec<Write>),
    /// In a stage that is complete. The parts follow each other, from part 0.
    Staged {
        /// The stage.
        stage: StageId,
        /// The number of its parts.
        parts: u32,
        /// The bytes of all parts.
        bytes: u64,
        /// The CRC-32 of all parts, one after the other.
        crc: u32,
    },
}

/// The name of a stage: random bytes, used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageId(pub [u8; 16]);

/// A write of one key. [`Write::Append`] writes several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Sets the value.
    Put {
        /// The key.
        key: Key,
        /// The value, at most [`VALUE_BYTES_MAX`] bytes.
        value: Bytes,
    },
    /// Removes the key.
    Delete {
        /// The key.
        key: Key,
    },
    /// Replaces a part of the value. A missing value is empty, and gaps are zeros.
    Patch {
        /// The key.
        key: Key,
        /// Where the part begins.
        offset: u32,
        /// The part; it ends within [`VALUE_BYTES_MAX`].
        data: Patch,
    },
    /// Adds to the number. A sum out of range is refused ([`Refusal::OutOfRange`]).
    Add {
        /// The key.
        key: Key,
        /// The number that is added.
        delta: i64,
    },
    /// Raises the number to `value`. It writes nothing if the number is as high already.
    Max {
        /// The key.
        key: Key,
        /// The value.
        value: u64,
    },
    /// Patches `data` into the blocks after the byte that the number `length` counts, and raises
    /// the number. The verdict tells the position.
    Append {
        /// The key of the length.
        length: Key,
        /// The blocks; [`Key::block`] names each.
        blocks: Key,
        /// The size of a block in bytes, at most [`VALUE_BYTES_MAX`].
        block_bytes: u32,
        /// The data.
        data: Bytes,
    },
}

/// The data of a [`Write::Patch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Patch {
    /// These bytes.
    Bytes(Bytes),
    /// As many zeros.
    Zeros(u32),
}

impl Patch {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(count) => *count as usize,
        }
    }

    /// Whether it has no bytes. It still lengthens a value to its offset.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The decision about a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It takes effect.
    Committed {
        /// In this slot.
        slot: Slot,
        /// The byte position of each of its appends, in their order.
        appended_at: Vec<u64>,
    },
    /// It never takes effect: another transaction wrote its reads, or a predicate does not hold.
    /// Begin again at a newer snapshot.
    Conflict {
        /// The key that was written, compared or locked.
        key: Key,
    },
    /// It never takes effect: writes after its `at` are forgotten. Begin again at a newer snapshot.
    SnapshotTooOld,
    /// It never takes effect, and another attempt would fare no better.
    Refused(Refusal),
}

/// The reason of a permanent refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It would exceed the volume's quota.
    Quota,
    /// The store is full.
    NoRoom,
    /// A number is added to, raised or appended after, and the value of this key is no number.
    NoNumber(Key),
    /// The sum at this key, or the end of an append, is no number of 64 bits.
    OutOfRange(Key),
    /// A later attempt of the same transaction has begun.
    Superseded,
    /// Its stage changes more numbers, or appends more often, than one slot can hold. Split the
    /// transaction.
    TooManyNumbers,
    /// Its stage is incomplete, does not match its checksum, or is too old. Stage it again.
    Stage,
}

impl Proposal {
    /// Checks the bounds. Errors: `TooLarge`, `Invalid`.
    pub fn check(&self) -> Result<()> {
        if self.reads.len() + self.predicates.len() > READS_MAX {
            return Err(Error::TooLarge(
                "a proposal has at most 100,000 reads and predicates",
            ));
        }
        match &self.writes {
            Writes::Inline(writes) => {
                let bytes: usize = writes.iter().map(Write::bytes_len).sum();
                if bytes > INLINE_BYTES_MAX {
                    return Err(Error::TooLarge(
                        "more than 64 KiB of writes are staged before the proposal",
                    ));
                }
                writes.iter().try_for_each(Write::check)
            }
            Writes::Staged { parts, bytes, .. } => {
                if *parts > PARTS_MAX || *bytes > STAGED_BYTES_MAX {
                    return Err(Error::TooLarge("a proposal stages at most 1 GiB of writes"));
                }
                Ok(())
            }
        }
    }
}

impl Write {
    /// Checks the bounds. Errors: `TooLarge`, `Invalid`.
    pub fn check(&self) -> Result<()> {
        let end = match self {
            Self::Put { value, .. } => value.len(),
            Self::Patch { offset, data, .. } => *offset as usize + data.len(),
            Self::Append {
                blocks,
                block_bytes,
                ..
            } => {
                if *block_bytes == 0 {
                    return Err(Error::Invalid("a block has at least one byte"));
                }
                blocks.block(0)?;
                *block_bytes as usize
            }
            Self::Delete { .. } | Self::Add { .. } | Self::Max { .. } => 0,
        };
        if end > VALUE_BYTES_MAX {
            return Err(Error::TooLarge("a value has at most 256 KiB"));
        }
        Ok(())
    }

    /// The approximate encoded length, in bytes, of all that it changes.
    pub fn bytes_len(&self) -> usize {
        16 + match self {
            Self::Put { key, value } => key.bytes_len() + value.len(),
            Self::Patch {
                key,
                data: Patch::Bytes(bytes),
                ..
            } => key.bytes_len() + bytes.len(),
            Self::Delete { key }
            | Self::Patch { key, .. }
            | Self::Add { key, .. }
            | Self::Max { key, .. } => key.bytes_len(),
            // A part for each block, and the length.
            Self::Append {
                length,
                blocks,
                block_bytes,
                data,
            } => {
                let parts = data.len() / (*block_bytes).max(1) as usize + 2;
                length.bytes_len() + data.len() + parts * (blocks.bytes_len() + 32)
            }
        }
    }
}

/// Encodes `writes` as one part of a stage; at most [`PART_BYTES_MAX`] bytes are accepted.
pub fn encode_part(writes: &[Write]) -> Bytes {
    let bytes_len = writes.iter().map(Write::bytes_len).sum::<usize>() + 16;
    FORMAT.encode(&writes, bytes_len)
}

/// Decodes a part of a stage, and checks each write. Errors: `Corrupt`, `TooLarge`, `Invalid`.
pub fn decode_part(part: &[u8]) -> Result<Vec<Write>> {
    let writes: Vec<Write> = FORMAT.decode(part, "a part of a stage")?;
    writes.iter().try_for_each(Write::check)?;
    Ok(writes)
}
