//! The messages between nodes, and their encoding.

use std::fmt::Debug;

use bytes::Bytes;
use ports::DurabilityPoint;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::peers::{ANNOUNCE, ASK, FORWARD, SEQUENCE, STOP_TIMESTAMPS};
use crate::{
    Error, Result,
    cluster::{
        forwarded::{Forwarded, Refused, Reply},
        peers::MESSAGE_BYTES_MAX,
    },
    model::{Attempt, Call, KeyspaceId, NodeId, Position, Timestamp, TransactionId, Version},
    sequencer::Wish,
    storage::{
        frontier::Heard,
        records::{CommitRecord, Write, decode, encode_behind},
        secret::Secret,
    },
};

/// What is answered to a node: the version, or why not.
pub(crate) type Ordered = Result<Version, Refused>;

/// What a node is asked or told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    /// How do you stand?
    Ask,
    /// This has happened here.
    Announce(Announcement),
    /// A call for a transaction of yours.
    Forward(Forwarded),
    /// You are the sequencer: decide about this.
    Sequence(Wish),
    /// Give no timestamps there any more.
    StopTimestamps(KeyspaceId),
}

/// What it says to that.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// To what was asked or announced.
    Standing(Standing),
    /// To a call.
    Reply(Reply),
    /// To a wish.
    Ordered(Ordered),
    /// No timestamps are given there, and what was given one is decided.
    Stopped,
    /// That node is not here, or no more.
    NotHere,
    /// What kind of message this is, is not known.
    Unknown(u8),
}

const STANDING: u8 = 1;
const REPLY: u8 = 2;
const NOT_HERE: u8 = 3;
const UNKNOWN: u8 = 4;
const ORDERED: u8 = 5;
const STOPPED: u8 = 6;

/// Between whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Way {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) secret: Secret,
}

/// How a node stands. All but its clock only grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Its wall clock, in milliseconds.
    pub(crate) wall_ms: u64,
    /// The highest timestamp it has given or heard of.
    pub(crate) timestamp: Timestamp,
    /// What it has heard.
    pub(crate) heard: Heard,
    /// What everybody who runs there had heard at the begin.
    pub(crate) horizon: Heard,
    /// Up to where deletions may be dropped.
    pub(crate) dropped: Heard,
    /// How often it has noted what died in packs that others take care of.
    pub(crate) noted: u64,
}

/// What has happened in the log of a node since the receiver last heard of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) standing: Standing,
    /// The first slot it tells of.
    pub(crate) from: u64,
    /// Up to here everything is decided.
    pub(crate) through: u64,
    /// The last slot there is.
    pub(crate) last: u64,
    /// What has committed in between, but for what a newer version of every key supersedes.
    pub(crate) records: Vec<Announced>,
}

/// A commit, as it is announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announced {
    id: TransactionId,
    attempt: Attempt,
    version: Version,
    position: Position,
    writes: Vec<Write>,
    parts: u32,
}

impl From<&CommitRecord> for Announced {
    fn from(record: &CommitRecord) -> Self {
        let CommitRecord {
            id,
            attempt,
            version,
            position,
            writes,
            parts,
            ..
        } = record.clone();
        Self {
            id,
            attempt,
            version,
            position,
            writes,
            parts,
        }
    }
}

impl From<Announced> for CommitRecord {
    fn from(announced: Announced) -> Self {
        let Announced {
            id,
            attempt,
            version,
            position,
            mut writes,
            parts,
        } = announced;
        writes.sort_by(|left, right| left.key.cmp(&right.key));
        // Nothing is announced before it is durable.
        let point = DurabilityPoint::DURABLE;
        Self {
            id,
            attempt,
            version,
            position,
            writes,
            parts,
            point,
        }
    }
}

impl Message {
    pub(crate) fn encode(&self, way: Way) -> Bytes {
        match self {
            Self::Ask => frame(ASK, &(way, ())),
            Self::Announce(announcement) => frame(ANNOUNCE, &(way, announcement)),
            Self::Forward(forwarded) => frame(FORWARD, &(way, forwarded)),
            Self::Sequence(wish) => frame(SEQUENCE, &(way, wish)),
            Self::StopTimestamps(keyspace) => frame(STOP_TIMESTAMPS, &(way, keyspace)),
        }
    }

    /// What was sent, and between whom. Errors: the kind of a message that is not known.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Way, Self), u8> {
        let (kind, body) = unframe(bytes).ok_or(0_u8)?;
        let damaged = |_| kind;
        match kind {
            ASK => read::<(Way, ())>(body)
                .map(|(way, ())| (way, Self::Ask))
                .map_err(damaged),
            ANNOUNCE => read(body)
                .map(|(way, said)| (way, Self::Announce(said)))
                .map_err(damaged),
            FORWARD => read(body)
                .map(|(way, said)| (way, Self::Forward(said)))
                .map_err(damaged),
            SEQUENCE => read(body)
                .map(|(way, said)| (way, Self::Sequence(said)))
                .map_err(damaged),
            STOP_TIMESTAMPS => read(body)
                .map(|(way, said)| (way, Self::StopTimestamps(said)))
                .map_err(damaged),
            unknown => Err(unknown),
        }
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Standing(standing) => frame(STANDING, standing),
            Self::Reply(reply) => frame(REPLY, reply),
            Self::Ordered(ordered) => frame(ORDERED, ordered),
            Self::Stopped => frame(STOPPED, &()),
            Self::NotHere => frame(NOT_HERE, &()),
            Self::Unknown(kind) => frame(UNKNOWN, kind),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let refuse = || Error::unavailable("a node answers what this build does not know");
        let (kind, body) = unframe(bytes).ok_or_else(refuse)?;
        match kind {
            STANDING => Ok(Self::Standing(read(body)?)),
            REPLY => Ok(Self::Reply(read(body)?)),
            ORDERED => Ok(Self::Ordered(read(body)?)),
            STOPPED => Ok(Self::Stopped),
            NOT_HERE => Ok(Self::NotHere),
            UNKNOWN => Ok(Self::Unknown(read(body)?)),
            _ => Err(refuse()),
        }
    }
}

/// A message of each kind, as `from` sends it to `to` without knowing the secret: for tests of those who carry messages.
#[doc(hidden)]
pub fn messages_of_a_stranger(from: NodeId, to: NodeId) -> Vec<Bytes> {
    let way = Way {
        from,
        to,
        secret: Secret(0),
    };
    let all = Heard::everything();
    let standing = Standing {
        wall_ms: u64::MAX,
        timestamp: Timestamp(u64::MAX - 1),
        heard: all.clone(),
        horizon: all.clone(),
        dropped: all,
        noted: u64::MAX,
    };
    let announcement = Announcement {
        standing,
        from: 1,
        through: u64::MAX - 1,
        last: u64::MAX,
        records: Vec::new(),
    };
    let id = TransactionId::new("a stranger's").expect("a name");
    let forwarded = Forwarded::commit(&Call::latest(id.clone()));
    let wish = Wish::to_close(
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
        Message::Sequence(wish),
        Message::StopTimestamps(KeyspaceId::default()),
    ];
    messages.iter().map(|message| message.encode(way)).collect()
}

/// What says that no node is here that could be asked.
pub fn not_here() -> Bytes {
    Answer::NotHere.encode()
}

/// What a node answers. Errors: it is gone, or of another build.
pub(crate) fn understood(answer: &[u8]) -> Result<Answer> {
    match Answer::decode(answer)? {
        Answer::NotHere => Err(Error::unavailable("the node is gone")),
        Answer::Unknown(kind) => Err(Error::unavailable(&format!(
            "the node does not know messages of kind {kind}"
        ))),
        answer => Ok(answer),
    }
}

fn frame<T: Serialize>(kind: u8, body: &T) -> Bytes {
    encode_behind(&[kind], body)
}

fn unframe(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (kind, body) = bytes.split_first()?;
    (bytes.len() <= MESSAGE_BYTES_MAX).then_some((*kind, body))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    Ok(decode(body, "what a node says")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::Key, storage::records::Place};

    fn standing() -> Standing {
        let mut heard = Heard::default();
        heard.finish(NodeId(1), NodeId(4));
        heard.advance(NodeId(6), 9);
        let (horizon, dropped) = (heard.clone(), Heard::default());
        Standing {
            wall_ms: 5,
            timestamp: Timestamp(6),
            heard,
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
        let records = vec![Announced::from(&record)];
        let announcement = Announcement {
            standing: standing(),
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
        let sequence = Message::Sequence(Wish::to_close(&record.id, attempt));
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
            Answer::Standing(standing()),
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

    /// Whatever bytes come: no panic, and no more memory than they name.
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
