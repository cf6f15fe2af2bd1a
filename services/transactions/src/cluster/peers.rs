//! How nodes ask each other: one call to one node, its messages and their bounds.
//!
//! A call is a question and its answer, both as bytes, so that whoever carries them knows nothing of what they say. It may
//! be lost, late or doubled: every message can be repeated, and none is more than news or a question. What a node promises
//! it promises by its log and its rows.
//!
//! A message says to which node it goes, not only to which address: a process that starts over is another node at the same
//! address. One whose kind is not known is refused by its number, so nodes of two builds can work beside each other.
//!
//! It also carries a secret that only those know who reach the store: whoever may call the listener is not yet a node, and a
//! stranger's news would be believed by all.
//!
//! Bounds: [`message_bytes_max`] a message, [`CALL_MAX`] a call. What clients wait for is asked *at length*: it may take longer, by what it
//! carries ([`more_time_for`]), as long as its node says in between how it stands ([`looks`](crate::cluster::probe)).

use std::{
    fmt::{self, Debug},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Entropy, Update,
    key_value::{Name, Test, Value},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Error, Result,
    broken::Broken,
    cluster::{
        forward::{Forwarded, Reply},
        membership::Address,
    },
    engine::Core,
    model::{Attempt, Call, KeyspaceId, NodeId, Position, Timestamp, TransactionId, Version},
    node::Node,
    serializable::sequencer::{Ordered, Wish},
    storage::{
        frontier::Heard,
        layout,
        records::{CommitRecord, Write, decode, encode_behind},
        store::Store,
    },
};

/// The longest message of any kind, and the longest answer: a value of the largest size, and what stands around it.
pub const MESSAGE_BYTES_MAX: usize = (64 << 20) + (64 << 10);

/// The longest announcement: its commits up to one of the largest, and how its node stands.
const ANNOUNCEMENT_BYTES_MAX: usize = 20 << 20;

/// The longest wish of a sequencer: what a transaction has read, a number for each key, and what it writes.
const SEQUENCE_BYTES_MAX: usize = 2 << 20;

/// The longest question, and the longest message of a kind that is not known here.
const QUESTION_BYTES_MAX: usize = 4 << 10;

/// The longest message that begins with `kind`.
pub const fn message_bytes_max(kind: u8) -> usize {
    match kind {
        FORWARD => MESSAGE_BYTES_MAX,
        ANNOUNCE => ANNOUNCEMENT_BYTES_MAX,
        SEQUENCE => SEQUENCE_BYTES_MAX,
        _ => QUESTION_BYTES_MAX,
    }
}

/// How long an answer is waited for.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// How long one is waited for that was asked at length, but for what it carries: a commit says within five seconds that it is undecided.
const AT_LENGTH_MAX: Duration = Duration::from_secs(6);
/// How much longer a call may take for each MiB that it carries.
const MORE_FOR_A_MIB: Duration = Duration::from_millis(125);

/// How much longer than others a call may take that carries `bytes`, on its way and into the store.
pub fn more_time_for(bytes: usize) -> Duration {
    MORE_FOR_A_MIB * (bytes >> 20) as u32
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody says anything: what was asked may have been done.
    #[error("no answer from a node: {0}")]
    Silence(Arc<str>),
    /// The node lives, and has no memory for the message: nothing was done.
    #[error("a node has no memory for what it is told")]
    TooMuchBuffered,
    /// The node lives, and cannot answer now: what was asked may have been done.
    #[error("a node cannot answer: {0}")]
    Unavailable(Arc<str>),
}

/// What is not known of something that was asked at length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// Its node is gone, or says nothing whatever it is asked.
    Silence(Error),
    /// Its node lives, and has nothing more to do for it.
    Refused(NoAnswer),
    /// Its node lives, and may still do it, at any time.
    Late(NoAnswer),
}

/// The way to the other nodes.
#[async_trait]
pub trait Peers: Debug + Send + Sync {
    /// Takes `message` to the node at `address`, and its answer back. Nothing is promised of order, nor that a message
    /// arrives once.
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer>;
}

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

const ASK: u8 = 1;
const ANNOUNCE: u8 = 2;
const FORWARD: u8 = 3;
const SEQUENCE: u8 = 4;
const STOP_TIMESTAMPS: u8 = 5;

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

/// What the nodes of one store know, and nobody else: it lies in the store. Another one in each incarnation: who has yet to notice
/// that the store has begun anew, and has heard what is lost, is a stranger to who has.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub(crate) struct Secret(u128);

/// The row's attributes.
const SECRET: &str = "secret";
const INCARNATION: &str = "incarnation";

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// That of `store` in its present incarnation, which the first to ask draws.
    pub(crate) async fn of(
        store: &Store,
        entropy: &dyn Entropy,
        broken: Option<Broken>,
    ) -> Result<Self> {
        let present = store.incarnation().0 as i64;
        let drawn = [
            entropy.next_u64().to_be_bytes(),
            entropy.next_u64().to_be_bytes(),
        ]
        .concat();
        let attributes = vec![
            (Name::from(SECRET), Value::Bytes(drawn.into())),
            (Name::from(INCARNATION), Value::Integer(present)),
        ];
        let is_earlier = [Test::Absent, Test::Below(present)]
            .map(|test| Condition::attribute(INCARNATION, test));
        let replaced = match broken {
            Some(Broken::BelievesEarlierLives) => Condition::Absent,
            _ => Condition::Any(
                vec![Condition::Absent]
                    .into_iter()
                    .chain(is_earlier)
                    .collect(),
            ),
        };
        store
            .update(Update::put(layout::secret(), attributes).when(replaced))
            .await?;
        let row = store.get(&layout::secret()).await?;
        store.externalize(row.point).await?;
        let bytes = row
            .value
            .and_then(|row| row.bytes(SECRET)?[..].try_into().ok());
        let damaged = || Error::Corrupt("decode the secret of the nodes".into());
        bytes
            .map(|bytes| Self(u128::from_be_bytes(bytes)))
            .ok_or_else(damaged)
    }
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
    fn decode(bytes: &[u8]) -> Result<(Way, Self), u8> {
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
    fn encode(&self) -> Bytes {
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

impl Core {
    /// Asks the node `to`. Errors: `Unavailable`, and it may have heard.
    pub(crate) async fn ask(
        &self,
        node: &Node,
        to: NodeId,
        address: &Address,
        message: &Message,
    ) -> Result<Answer> {
        let (peers, message) = self.envelope(node, to, message)?;
        let answered = self.call_in_time(peers, address, message).await;
        understood(&answered.map_err(|error| Error::unavailable(&error.to_string()))?)
    }

    pub(crate) async fn call_in_time(
        &self,
        peers: &dyn Peers,
        address: &Address,
        message: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        tokio::select! {
            biased;
            answered = peers.call(address, message) => answered,
            () = self.context.clock.sleep(CALL_MAX) => Err(NoAnswer::Silence("it takes too long".into())),
        }
    }

    /// Asks the node `to` for what takes as long as it takes: a large value is on its way, or into the store. As long as the node
    /// lives it is waited for, within bounds.
    pub(crate) async fn ask_at_length(
        self: &Arc<Self>,
        node: &Arc<Node>,
        to: NodeId,
        address: &Address,
        message: &Message,
    ) -> Result<Answer, Unheard> {
        let (peers, message) = self.envelope(node, to, message).map_err(Unheard::Silence)?;
        let wait_max = AT_LENGTH_MAX + more_time_for(message.len());
        let answered = tokio::select! {
            biased;
            answered = peers.call(address, message) => answered,
            why = self.silence_of(node, to, address) => return Err(Unheard::Silence(why)),
            () = self.context.clock.sleep(wait_max) => {
                return Err(Unheard::Late(NoAnswer::Unavailable("it takes too long".into())));
            }
        };
        match answered {
            Ok(answer) => understood(&answer).map_err(Unheard::Silence),
            Err(NoAnswer::Silence(why)) => Err(Unheard::Silence(Error::unavailable(&why))),
            Err(refused) => Err(Unheard::Refused(refused)),
        }
    }

    /// The way, and what goes there.
    pub(crate) fn envelope(
        &self,
        node: &Node,
        to: NodeId,
        message: &Message,
    ) -> Result<(&dyn Peers, Bytes)> {
        let (Some(peers), Some(secret)) = (&self.peers, node.secret()) else {
            return Err(Error::unavailable("there is no other node"));
        };
        let message = message.encode(Way {
            from: node.id,
            to,
            secret,
        });
        if message
            .first()
            .is_none_or(|kind| message.len() > message_bytes_max(*kind))
        {
            return Err(Error::TooLarge("what is to be told to a node"));
        }
        Ok((&**peers, message))
    }

    /// Answers what another node asks.
    pub(crate) async fn answer_peer(self: &Arc<Self>, message: Bytes) -> Bytes {
        let decoded = Message::decode(&message);
        // What it carries has been copied out of it, and may be long.
        drop(message);
        let answer = match decoded {
            Ok((way, message)) => self.answer_message(way, message).await,
            Err(kind) => Answer::Unknown(kind),
        };
        answer.encode()
    }

    async fn answer_message(self: &Arc<Self>, way: Way, message: Message) -> Answer {
        let node = self.serving.current().filter(|node| node.id == way.to);
        let node = node.filter(|node| {
            node.secret() == Some(way.secret)
                || self.context.config.is_broken(Broken::BelievesStrangers)
        });
        // What one has heard that nobody counts any more may lie below what is collected.
        let Some(node) = node.filter(|node| self.may_answer(node).is_ok()) else {
            return Answer::NotHere;
        };
        match message {
            Message::Ask => Answer::Standing(self.standing(&node)),
            Message::Announce(announcement) => {
                self.hear_announced(&node, way.from, announcement);
                Answer::Standing(self.standing(&node))
            }
            Message::Forward(forwarded) => Answer::Reply(self.serve_forwarded(forwarded).await),
            Message::Sequence(wish) => Answer::Ordered(self.serve_sequence(&node, wish).await),
            Message::StopTimestamps(keyspace) => {
                match self.stop_timestamps(&node, keyspace).await {
                    Ok(()) => Answer::Stopped,
                    Err(_) => Answer::NotHere,
                }
            }
        }
    }
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
