//! Requests of the daemon and replies of an instance.
//!
//! Every request has a number, which its reply repeats. The daemon issues an epoch at the start of
//! an instance, and every message carries it. A message of another epoch is void (promise M3).
//! Both also carry the state of the insertion log ([`super::log`]).
//!
//! The daemon chooses the id of a chunk. It can therefore free a chunk whose reply it never
//! received.

use bytes::Bytes;
use ports::Result;
use primitives::RecordFormat;
use serde::{Deserialize, Serialize};

const FORMAT: RecordFormat = RecordFormat::new(1);
/// The expected size of most messages.
const MESSAGE_BYTES: usize = 160;

/// The longest request. An instance closes a channel with a longer one.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The most chunks that one request removes.
pub const CHUNKS_PER_REMOVAL_MAX: usize = 256;
/// The variable in the environment of an instance that holds its epoch.
pub const EPOCH_VARIABLE: &str = "LANDFAST_MEMORY_EPOCH";
/// The variable in the environment of an instance that holds the size of its region in bytes.
pub const REGION_VARIABLE: &str = "LANDFAST_MEMORY_REGION_BYTES";

/// The epoch of an instance. No two instances of one daemon have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// The id of a chunk within one instance, chosen by the daemon and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

/// The place of a chunk in its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkName {
    /// The segment.
    pub segment: u128,
    /// The fragment of the segment.
    pub fragment: u32,
    /// The chunk of the fragment.
    pub index: u8,
}

/// The part of an instance's memory that a chunk counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Partition {
    /// Kept until it is removed.
    Storage,
    /// Removed by the daemon when another chunk needs its space.
    Cache,
}

/// The space and the chunks of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// The number of changes so far: of two counts, the one with more changes is newer.
    pub changes: u64,
    /// The size of the region in whole pages.
    pub capacity_bytes: u64,
    /// The pages of the storage partition.
    pub storage_bytes: u64,
    /// The pages of the cache partition.
    pub cache_bytes: u64,
    /// The chunks of both.
    pub chunks: u64,
}

/// A state of an insertion log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// The changes so far.
    pub term: u64,
    /// The insertions so far, with those of chunks that were removed (`diff_rank`).
    pub insertions: u64,
    /// The hash over all changes; zeros: there was none.
    pub hash: [u8; 32],
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its number, which no other request of the instance has.
    pub number: u64,
    /// The epoch of the instance that it is for.
    pub epoch: Epoch,
    /// The latest state of the instance's log that the daemon knows.
    pub record: Record,
    /// The call.
    pub call: Call,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Asks for the counts alone.
    Counts,
    /// Reserves space for a chunk.
    Reserve {
        /// Its id.
        id: ChunkId,
        /// Its name.
        name: ChunkName,
        /// Its size.
        bytes: u64,
        /// Its partition.
        partition: Partition,
    },
    /// Says that all bytes of a chunk are written.
    Seal(ChunkId),
    /// Removes up to [`CHUNKS_PER_REMOVAL_MAX`] chunks, whole or not. Unknown ones are ignored.
    Remove(Vec<ChunkId>),
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the request.
    pub number: u64,
    /// The epoch of the instance.
    pub epoch: Epoch,
    /// The state of the instance's memory after the call.
    pub counts: Counts,
    /// The state of the instance's log after the call.
    pub record: Record,
    /// The outcome of the call.
    pub outcome: Outcome,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The call had its effect.
    Done,
    /// The space is reserved.
    Reserved {
        /// The place of the chunk in the region.
        offset: u64,
    },
    /// There is no space for the chunk.
    Full,
    /// The request is for an instance of another epoch, or with another log. It had no effect.
    Diverged,
    /// There is no chunk with this id, or it is not in the state that the call needs.
    Unknown,
}

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Bytes {
        FORMAT.encode(self, MESSAGE_BYTES)
    }

    /// The request in a message. Errors: `Corrupt`.
    pub fn decode(message: &[u8]) -> Result<Self> {
        FORMAT.decode(message, "a request to function memory")
    }
}

impl Reply {
    /// The reply as a message.
    pub fn encode(&self) -> Bytes {
        FORMAT.encode(self, MESSAGE_BYTES)
    }

    /// The reply in a message. Errors: `Corrupt`.
    pub fn decode(message: &[u8]) -> Result<Self> {
        FORMAT.decode(message, "a reply of function memory")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> Vec<Request> {
        let id = ChunkId(7);
        let name = ChunkName {
            segment: u128::MAX,
            fragment: 3,
            index: 11,
        };
        let reserve = Call::Reserve {
            id,
            name,
            bytes: 1 << 40,
            partition: Partition::Cache,
        };
        let ids = (0..CHUNKS_PER_REMOVAL_MAX as u64).map(|id| ChunkId(u64::MAX - id));
        let calls = [
            Call::Counts,
            reserve,
            Call::Seal(id),
            Call::Remove(ids.collect()),
        ];
        let number = u64::MAX;
        let request = |call| Request {
            number,
            epoch: Epoch(u64::MAX),
            record: Record {
                term: u64::MAX,
                insertions: u64::MAX,
                hash: [255; 32],
            },
            call,
        };
        calls.map(request).into()
    }

    #[test]
    fn messages_are_decoded_as_they_were_encoded_and_fit_their_bound() {
        for request in requests() {
            let message = request.encode();
            assert!(message.len() <= REQUEST_BYTES_MAX, "{}", message.len());
            assert_eq!(Request::decode(&message).expect("whole"), request);
        }
        let reply = Reply {
            number: 5,
            epoch: Epoch(9),
            counts: Counts::default(),
            record: Record::default(),
            outcome: Outcome::Reserved { offset: 4096 },
        };
        assert_eq!(Reply::decode(&reply.encode()).expect("whole"), reply);
    }

    #[test]
    fn a_cut_message_is_refused() {
        for request in requests() {
            let message = request.encode();
            for bytes in 0..message.len() {
                assert!(Request::decode(&message[..bytes]).is_err(), "{bytes}");
            }
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_give_errors_and_no_panic(message in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Request::decode(&message);
            let _ = Reply::decode(&message);
            // The version is right.
            let versioned = [&[1], &message[..]].concat();
            let _ = Request::decode(&versioned);
            let _ = Reply::decode(&versioned);
        }
    }
}
