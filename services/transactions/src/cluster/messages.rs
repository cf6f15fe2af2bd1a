//! The messages between nodes, and their encoding.
//!
//! A message names its sender and its receiver, carries the store's secret, and begins with its
//! kind. A node of another build refuses an unknown kind by its number, so builds can coexist.

use std::fmt::Debug;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::peers::{ANNOUNCE, ASK, FORWARD, SEQUENCE, STOP_TIMESTAMPS};
use crate::{
    Error, Result,
    cluster::{
        forwarded::{Forwarded, Refused, Reply, not_understood},
        peers::MESSAGE_BYTES_MAX,
    },
    model::{Attempt, Call, KeyspaceId, NodeId, Timestamp, TransactionId, Version},
    sequencer::Proposal,
    storage::{
        frontier::Frontier,
        records::{CommitRecord, decode, encode, encode_behind},
        secret::Secret,
    },
};

/// The sequencer's answer: the version, or the refusal.
pub(crate) type Ordered = Result<Version, Refused>;

/// A request or an announcement to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Requests the receiver's state.
    Ask,
    /// The sender's new commits, and its state.
    Announce(Announcement),
    /// A call for a transaction of the receiver.
    Forward(Forwarded),
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

/// The sender and the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    pub(crate) records: Vec<CommitRecord>,
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Ask => ASK,
            Self::Announce(_) => ANNOUNCE,
            Self::Forward(_) => FORWARD,
            Self::Sequence(_) => SEQUENCE,
            Self::StopTimestamps(_) => STOP_TIMESTAMPS,
        }
    }

    pub(crate) fn encode(&self, way: Way) -> Bytes {
        encode_behind(&[self.kind()], &(way, self))
    }

    /// Decodes a message and its sender and receiver. Errors: the number of an unknown kind.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Way, Self), u8> {
        let (&kind, body) = bytes.split_first().ok_or(0_u8)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(kind);
        }
        decode::<(Way, Self)>(body, "a node's message")
            .ok()
            .filter(|(_, message)| message.kind() == kind)
            .ok_or(kind)
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

/// One message of each kind, sent from `from` to `to` without the secret, for tests of transports.
#[doc(hidden)]
pub fn messages_of_a_stranger(from: NodeId, to: NodeId) -> Vec<Bytes> {
    let way = Way {
        from,
        to,
        secret: Secret(0),
    };
    let all = Frontier::everything();
    let state = NodeState {
        wall_ms: u64::MAX,
        timestamp: Timestamp(u64::MAX - 1),
        applied: all.clone(),
        horizon: all.clone(),
        dropped: all,
        noted: u64::MAX,
    };
    let announcement = Announcement {
        state,
        from: 1,
        through: u64::MAX - 1,
        last: u64::MAX,
        records: Vec::new(),
    };
    let id = TransactionId::new("a stranger's").expect("a name");
    let forwarded = Forwarded::commit(&Call::latest(id.clone()));
    let proposal = Proposal::to_close(
        &id,
        Attempt {
            node: to,
            sequence: 1,
        },
    );
    let messages = [
        Message::Ask,
        Message::Announce(announcement),
        Message::Forward(forwarded),
        Message::Sequence(proposal),
        Message::StopTimestamps(KeyspaceId::default()),
    ];
    messages.iter().map(|message| message.encode(way)).collect()
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
        model::{Key, Position},
        storage::records::{Place, Write},
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
        let forwarded = Forwarded::commit(&Call {
            id: id.clone(),
            attempt: Some(attempt),
        });
        let stop = Message::StopTimestamps(KeyspaceId(7));
        let sequence = Message::Sequence(Proposal::to_close(&record.id, attempt));
        vec![
            Message::Ask,
            Message::Announce(announcement),
            Message::Forward(forwarded),
            sequence,
            stop,
        ]
    }

    #[test]
    fn messages_are_read_back_as_they_were_sent() {
        let way = Way {
            from: NodeId(1),
            to: NodeId(2),
            secret: Secret(u128::MAX / 3),
        };
        for message in messages() {
            assert_eq!(Message::decode(&message.encode(way)), Ok((way, message)));
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
        let way = Way {
            from: NodeId(1),
            to: NodeId(2),
            secret: Secret(u128::MAX / 3),
        };
        let mut message = Message::Ask.encode(way).to_vec();
        message[0] = 77;
        assert_eq!(Message::decode(&message), Err(77));
        assert_eq!(Message::decode(&[]), Err(0));
        assert!(Answer::decode(&[9, 1]).is_err() && Answer::decode(&[]).is_err());
    }

    /// Arbitrary bytes cause no panic, and allocate no more memory than they declare.
    #[test]
    fn hostile_bytes_are_refused() {
        let mut random = fastrand::Rng::with_seed(7);
        let way = Way {
            from: NodeId(1),
            to: NodeId(2),
            secret: Secret(u128::MAX / 3),
        };
        for message in messages() {
            let whole = message.encode(way);
            for _ in 0..2_000 {
                let mut bytes = whole.to_vec();
                bytes.truncate(random.usize(..=bytes.len()));
                for _ in 0..random.usize(0..4) {
                    if !bytes.is_empty() {
                        let place = random.usize(..bytes.len());
                        bytes[place] = random.u8(..);
                    }
                }
                let _ = (Message::decode(&bytes), Answer::decode(&bytes));
            }
        }
    }
}
