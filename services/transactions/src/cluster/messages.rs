//! The messages between nodes, and their encoding.
//!
//! A message begins with a fixed head: its kind, its sender and its receiver, and the store's
//! secret. The receiver checks the head before it decodes the body, because the bytes may come from
//! any process that reaches the listener. A node of another build refuses an unknown kind by its
//! number, so builds can coexist.
//!
//! Invariants
//! - The body of a message without the secret is never decoded.
//! - A decoded body takes at most a few times the memory of its bytes, except for lists of small
//!   items. Those of an announcement are bounded by [`ANNOUNCED_MEMORY_MAX`], and a proposal is
//!   short.

use std::fmt::Debug;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

use super::peers::{ANNOUNCE, ASK, FORWARD, SEQUENCE, STOP_TIMESTAMPS, VOLUMES};
use crate::{
    Error, Result,
    cluster::{
        forwarded::{Asked, Refused, Reply, not_understood},
        peers::{MESSAGE_BYTES_MAX, message_bytes_max},
    },
    model::{Call, KeyspaceId, NodeId, Timestamp, Version},
    sequencer::Proposal,
    storage::{
        frontier::Frontier,
        records::{
            ANNOUNCED_MEMORY_MAX, CommitRecord, bounded_list, decode, encode, encode_behind,
        },
        secret::Secret,
    },
};

/// The sequencer's answer: the version, or the refusal.
pub(crate) type Ordered = Result<Version, Refused>;

/// A request or an announcement to a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    /// Requests the receiver's state.
    Ask,
    /// The sender's new commits, and its state.
    Announce(Announcement),
    /// A call for a transaction of the receiver.
    Forward(Call, Asked),
    /// A proposal for the receiver to decide as the sequencer.
    Sequence(Proposal),
    /// Requests that the receiver gives no more timestamps in that keyspace.
    StopTimestamps(KeyspaceId),
}

/// The answer to a message. New ones are appended, because nodes of two builds can work side by
/// side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The state of the node, in answer to a request for it or to an announcement.
    NodeState(NodeState),
    /// The answer to a call.
    Reply(Reply),
    /// The addressed node is not here, or no longer.
    NotHere,
    /// The kind of the message is unknown.
    Unknown(u8),
    /// The answer to a proposal.
    Ordered(Ordered),
    /// The node gives no timestamps in that keyspace, and the commits that had one are decided.
    Stopped,
}

/// The length of the first message of a connection for volumes, in bytes.
pub const VOLUMES_HEAD_BYTES: usize = 1 + Way::BYTES;

/// The head of a message after its kind: the sender and the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) secret: Secret,
}

/// The state of a node. All fields except its clock only grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeState {
    /// Its wall clock, in milliseconds.
    pub(crate) wall_ms: u64,
    /// The highest timestamp that it has given or seen.
    pub(crate) timestamp: Timestamp,
    /// Its applied frontier.
    pub(crate) applied: Frontier,
    /// The oldest frontier of its open transactions.
    pub(crate) horizon: Frontier,
    /// Up to where deletions may be dropped.
    pub(crate) dropped: Frontier,
    /// How often it has noted dead values in packs of other owners.
    pub(crate) noted: u64,
}

/// The slots of a node's log after the receiver's frontier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) state: NodeState,
    /// The first slot it covers.
    pub(crate) from: u64,
    /// The slot up to which everything is decided.
    pub(crate) through: u64,
    /// The last existing slot.
    pub(crate) last: u64,
    /// Their commits, except those superseded by a newer version of every key.
    #[serde(deserialize_with = "records")]
    pub(crate) records: Vec<CommitRecord>,
}

fn records<'de, D: Deserializer<'de>>(bytes: D) -> Result<Vec<CommitRecord>, D::Error> {
    bounded_list(bytes, ANNOUNCED_MEMORY_MAX, CommitRecord::bytes_len)
}

impl Way {
    const BYTES: usize = 24;

    /// The way of a message, from its head alone. Errors: the number of its kind, if this build
    /// does not know it, or the message is too short or too long for it.
    pub(crate) fn of(message: &[u8]) -> Result<Self, u8> {
        let (&kind, rest) = message.split_first().ok_or(0_u8)?;
        let is_known = (ASK..=VOLUMES).contains(&kind);
        if !is_known || message.len() > message_bytes_max(kind) {
            return Err(kind);
        }
        let (from, rest) = rest.split_first_chunk().ok_or(kind)?;
        let (to, rest) = rest.split_first_chunk().ok_or(kind)?;
        let (secret, _) = rest.split_first_chunk().ok_or(kind)?;
        Ok(Self {
            from: NodeId(u32::from_be_bytes(*from)),
            to: NodeId(u32::from_be_bytes(*to)),
            secret: Secret(u128::from_be_bytes(*secret)),
        })
    }

    /// The first bytes of a connection for volumes.
    pub(crate) fn to_volumes(self) -> Vec<u8> {
        self.head(VOLUMES)
    }

    /// The way of a connection for volumes, from its first bytes.
    pub(crate) fn of_volumes(bytes: &[u8]) -> Option<Self> {
        let is_whole = bytes.len() == VOLUMES_HEAD_BYTES && bytes[0] == VOLUMES;
        Self::of(bytes).ok().filter(|_| is_whole)
    }

    /// The head of a message of this kind.
    pub(crate) fn head(self, kind: u8) -> Vec<u8> {
        let Self { from, to, secret } = self;
        let mut head = vec![kind];
        head.extend(from.0.to_be_bytes());
        head.extend(to.0.to_be_bytes());
        head.extend(secret.0.to_be_bytes());
        head
    }
}

impl Message {
    pub(crate) fn encode(&self, way: Way) -> Bytes {
        match self {
            Self::Ask => way.head(ASK).into(),
            Self::Announce(announcement) => encode_behind(&way.head(ANNOUNCE), announcement),
            Self::Forward(call, asked) => encode_behind(&way.head(FORWARD), &(call, asked)),
            Self::Sequence(proposal) => encode_behind(&way.head(SEQUENCE), proposal),
            Self::StopTimestamps(keyspace) => encode_behind(&way.head(STOP_TIMESTAMPS), keyspace),
        }
    }

    /// Decodes a message whose [`Way`] the caller has checked. Errors: the number of its kind, if
    /// this build does not know such a message.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, u8> {
        let (&kind, rest) = message.split_first().ok_or(0_u8)?;
        let body = rest.get(Way::BYTES..).ok_or(kind)?;
        let decoded = match kind {
            ASK => Ok(Self::Ask),
            ANNOUNCE => decode(body, "an announcement").map(Self::Announce),
            FORWARD => {
                decode(body, "a forwarded call").map(|(call, asked)| Self::Forward(call, asked))
            }
            SEQUENCE => decode(body, "a proposal").map(Self::Sequence),
            STOP_TIMESTAMPS => decode(body, "a keyspace").map(Self::StopTimestamps),
            _ => return Err(kind),
        };
        decoded.map_err(|_| kind)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Bytes {
        encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes = Some(bytes).filter(|bytes| bytes.len() <= MESSAGE_BYTES_MAX);
        let bytes = bytes.ok_or_else(not_understood)?;
        // Another build may know more kinds. That is no damage: the decision row answers.
        decode(bytes, "a node's answer").map_err(|_| not_understood())
    }
}

/// The head of a message of each kind, sent from `from` to `to` without the secret, for tests of
/// transports.
#[doc(hidden)]
pub fn messages_of_a_stranger(from: NodeId, to: NodeId) -> Vec<Bytes> {
    let secret = Secret(0);
    let way = Way { from, to, secret };
    let kinds = ASK..=STOP_TIMESTAMPS;
    kinds
        .map(|kind| encode_behind(&way.head(kind), &1))
        .collect()
}

/// The answer that no node is here.
pub fn not_here() -> Bytes {
    Answer::NotHere.encode()
}

/// Decodes a node's answer. Errors: the node is gone, or of another build.
pub(crate) fn understood(answer: &[u8]) -> Result<Answer> {
    match Answer::decode(answer)? {
        Answer::NotHere => Err(Error::unavailable("the node is gone")),
        Answer::Unknown(kind) => Err(Error::unavailable(&format!(
            "the node does not know messages of kind {kind}"
        ))),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use ports::DurabilityPoint;

    use super::*;
    use crate::{
        model::{Attempt, Key, Position, TransactionId},
        storage::records::{Place, Write},
    };

    const WAY: Way = Way {
        from: NodeId(1),
        to: NodeId(2),
        secret: Secret(u128::MAX / 3),
    };

    fn state() -> NodeState {
        let mut applied = Frontier::default();
        applied.finish(NodeId(1), NodeId(4));
        applied.advance(NodeId(6), 9);
        let (horizon, dropped) = (applied.clone(), Frontier::default());
        NodeState {
            wall_ms: 5,
            timestamp: Timestamp(6),
            applied,
            horizon,
            dropped,
            noted: 7,
        }
    }

    fn messages() -> Vec<Message> {
        let attempt = Attempt {
            node: NodeId(6),
            sequence: 3,
        };
        let id = TransactionId::new("order-1").expect("a name");
        let key = Key::new("k").expect("short");
        let record = CommitRecord {
            id: id.clone(),
            attempt,
            version: Version::default(),
            position: Position {
                log: NodeId(6),
                slot: 9,
            },
            writes: vec![Write {
                key,
                write: 1,
                place: Place::Gone,
            }],
            parts: 0,
            point: DurabilityPoint::DURABLE,
        };
        let records = vec![record.clone()];
        let announcement = Announcement {
            state: state(),
            from: 8,
            through: 9,
            last: 11,
            records,
        };
        let call = Call {
            id: id.clone(),
            attempt: Some(attempt),
        };
        let forwarded = Message::Forward(call, Asked::Commit);
        let stop = Message::StopTimestamps(KeyspaceId(7));
        let sequence = Message::Sequence(Proposal::to_close(&record.id, attempt));
        vec![
            Message::Ask,
            Message::Announce(announcement),
            forwarded,
            sequence,
            stop,
        ]
    }

    #[test]
    fn messages_are_read_back_as_they_were_sent() {
        for message in messages() {
            let bytes = message.encode(WAY);
            assert_eq!(
                (Way::of(&bytes), Message::decode(&bytes)),
                (Ok(WAY), Ok(message))
            );
        }
        let ordered = Answer::Ordered(Ok(Version::sequenced(7, 1)));
        for answer in [
            Answer::NodeState(state()),
            ordered,
            Answer::Stopped,
            Answer::NotHere,
            Answer::Unknown(7),
        ] {
            assert_eq!(Answer::decode(&answer.encode()).expect("an answer"), answer);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_number() {
        let head = WAY.to_volumes();
        assert_eq!(Way::of_volumes(&head), Some(WAY));
        assert_eq!(Way::of_volumes(&head[1..]), None);
        assert_eq!(Message::decode(&head), Err(VOLUMES), "it is no call");
        let mut message = Message::Ask.encode(WAY).to_vec();
        assert_eq!(Way::of_volumes(&message), None);
        message[0] = 77;
        assert_eq!(Way::of(&message), Err(77));
        assert_eq!(Way::of(&[]), Err(0));
        assert_eq!(Way::of(&[ANNOUNCE, 1]), Err(ANNOUNCE));
        assert_eq!(Message::decode(&[ANNOUNCE, 1]), Err(ANNOUNCE));
        assert!(Answer::decode(&[9, 1]).is_err() && Answer::decode(&[]).is_err());
    }

    /// Each write of this announcement takes five bytes, and sixty-four in memory.
    #[test]
    fn an_announcement_takes_a_bounded_amount_of_memory() {
        let Some(Message::Announce(mut announcement)) = messages().into_iter().nth(1) else {
            unreachable!("it is the second")
        };
        let record = &mut announcement.records[0];
        let writes = ANNOUNCED_MEMORY_MAX / record.bytes_len() * record.writes.len();
        record.writes = vec![record.writes[0].clone(); writes];
        let bytes_max = announcement
            .records
            .iter()
            .map(CommitRecord::bytes_len)
            .sum::<usize>();
        assert!(bytes_max < ANNOUNCED_MEMORY_MAX);
        let fits = Message::Announce(announcement.clone());
        assert_eq!(Message::decode(&fits.encode(WAY)), Ok(fits));
        announcement.records = vec![announcement.records[0].clone(); 5];
        let is_beyond = Message::Announce(announcement).encode(WAY);
        assert!(is_beyond.len() < message_bytes_max(ANNOUNCE));
        assert_eq!(Message::decode(&is_beyond), Err(ANNOUNCE));
    }

    /// Arbitrary bytes cause no panic, and allocate no more memory than they declare.
    #[test]
    fn hostile_bytes_are_refused() {
        let mut random = fastrand::Rng::with_seed(7);
        for message in messages() {
            let whole = message.encode(WAY);
            for _ in 0..2_000 {
                let mut bytes = whole.to_vec();
                bytes.truncate(random.usize(..=bytes.len()));
                for _ in 0..random.usize(0..4) {
                    if !bytes.is_empty() {
                        let place = random.usize(..bytes.len());
                        bytes[place] = random.u8(..);
                    }
                }
                let _ = (
                    Way::of(&bytes),
                    Message::decode(&bytes),
                    Answer::decode(&bytes),
                );
            }
        }
    }
}
