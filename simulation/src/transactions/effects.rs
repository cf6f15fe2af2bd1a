//! Effects and their receivers: which effects arrived, who sent them, and whether they were to be
//! sent.
//!
//! Receivers act at once on durable and other effects alike, as the outside world does, so what
//! they saw cannot be undone. They lose their answers, release messages and fail, so that messages
//! are delivered again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use fastrand::Rng;
use ports::{
    Event, Handler,
    functions::{Definition, Failure, FunctionOptions},
    key_value::{Scan, SharedKeyValue},
    queue::{Delivery, OnFailure, QueueOptions},
};
use simulated::World;
use transactions::{
    Effect,
    effects::{effect_id, queue_name},
    layout,
    model::{Attempt, TransactionId},
};

use super::{history::Writer, stored_state::StoredState};

/// The queue of effects, and the function.
const QUEUE: &str = "orders";
const FUNCTION: &str = "notify";

/// How long a message stays with a receiver that has lost it.
const VISIBILITY: Duration = Duration::from_secs(5);
/// The pause of a receiver whose queue fails.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The most deliveries and runs of an effect: practically unbounded.
const ATTEMPTS_MAX: u32 = 10_000;
/// One in this many deliveries is lost, and one is released.
const ONE_TROUBLED_IN: usize = 6;

/// An effect, as its content identifies it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// The attempt.
    pub writer: Writer,
    /// The index among the effects of that attempt.
    pub place: u32,
}

impl Sent {
    /// Messages and invocations alternate; those of one client share a message group.
    pub fn effect(&self, client: usize) -> Effect {
        if self.place % 2 == 1 {
            return Effect::Invocation {
                function: FUNCTION.to_owned(),
                payload: self.content(),
            };
        }
        let group = Bytes::from(format!("client {client}"));
        Effect::Message {
            queue: QUEUE.to_owned(),
            group,
            body: self.content(),
        }
    }

    fn content(&self) -> Bytes {
        let mut content = BytesMut::new();
        content.put_u32(self.place);
        content.put_slice(&self.writer.attempt.to_bytes());
        content.put_slice(self.writer.id.as_bytes());
        content.freeze()
    }

    fn of(content: &Bytes) -> Option<Self> {
        let mut rest = content.clone();
        let place = rest.try_get_u32().ok()?;
        let attempt = Attempt::from_bytes(rest.get(..Attempt::BYTES)?)?;
        rest.advance(Attempt::BYTES);
        Some(Self {
            writer: Writer {
                id: TransactionId::new(rest).ok()?,
                attempt,
            },
            place,
        })
    }
}

/// One receipt: the id, and the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The deduplication id.
    pub id: Option<Bytes>,
    /// The effect.
    pub sent: Sent,
}

/// All receipts, in order.
#[derive(Debug, Clone, Default)]
pub struct Receipts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    all: Mutex<Vec<Receipt>>,
    /// Whether receivers have stopped failing.
    is_calm: AtomicBool,
}

impl Receipts {
    /// The receipts so far.
    pub fn all(&self) -> Vec<Receipt> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Receipt>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receivers do not fail from now on.
    pub fn calm(&self) {
        self.0.is_calm.store(true, Ordering::Relaxed);
    }

    fn is_calm(&self) -> bool {
        self.0.is_calm.load(Ordering::Relaxed)
    }

    fn note(&self, id: Option<Bytes>, content: &Bytes) {
        let sent = Sent::of(content).expect("only effects of clients arrive");
        self.lock().push(Receipt { id, sent });
    }
}

/// Creates the queue and the function durably, and starts their receivers.
pub async fn receive(world: &World, mut rng: Rng) -> Receipts {
    let receipts = Receipts::default();
    let options = QueueOptions {
        visibility_timeout_ms: VISIBILITY.as_millis() as u64,
        attempts_max: ATTEMPTS_MAX,
        on_failure: OnFailure::Block,
        ..QueueOptions::default()
    };
    let created = world
        .queue()
        .create(&queue_name(QUEUE), options)
        .await
        .expect("a calm world");
    world
        .queue()
        .externalize(created.point)
        .await
        .expect("a calm world");
    let options = FunctionOptions {
        attempts_max: ATTEMPTS_MAX,
        ..FunctionOptions::default()
    };
    let handler = Notify {
        receipts: receipts.clone(),
        rng: Mutex::new(rng.fork()),
    };
    world.functions().register(Definition {
        name: FUNCTION.into(),
        options,
        handler: Arc::new(handler),
    });
    tokio::spawn(consume(world.clone(), receipts.clone(), rng));
    receipts
}

async fn consume(world: World, receipts: Receipts, mut rng: Rng) {
    let (queue, name) = (world.queue(), queue_name(QUEUE));
    loop {
        if queue.ready(&name).await.is_err() {
            tokio::time::sleep(AGAIN_AFTER).await;
            continue;
        }
        // A lost answer costs its batch the visibility timeout.
        let batch = queue.receive(&name, 5).await.unwrap_or_default();
        for Delivery {
            handle,
            deduplication,
            body,
            ..
        } in batch
        {
            receipts.note(deduplication, &body);
            // The result does not matter: if it fails, the message is delivered again.
            match if receipts.is_calm() {
                ONE_TROUBLED_IN
            } else {
                rng.usize(..=ONE_TROUBLED_IN)
            } {
                0 => break,
                1 => {
                    drop(queue.release(&name, &handle, 10, "it was given back").await);
                    break;
                }
                _ => drop(queue.acknowledge(&name, &[handle]).await),
            }
        }
    }
}

#[derive(Debug)]
struct Notify {
    receipts: Receipts,
    rng: Mutex<Rng>,
}

#[async_trait]
impl Handler for Notify {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { id, payload } = event else {
            return Err(Failure::new("it is called only"));
        };
        self.receipts.note(id, &payload);
        let fails = self
            .rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .usize(..ONE_TROUBLED_IN)
            == 0;
        if fails && !self.receipts.is_calm() {
            Err(Failure::new("now and then"))
        } else {
            Ok(Bytes::new())
        }
    }
}

/// T13: leftover effects, although all have been sent or have no effect.
pub async fn left(store: &SharedKeyValue, stored_state: &StoredState) -> Vec<String> {
    let mut partitions: Vec<Bytes> = partition(store, layout::NODES.into()).await;
    for node in &mut partitions {
        *node = layout::outbox(layout::node_of(node).expect("a node's row"));
    }
    let attempts = stored_state.had_large_effects.iter();
    partitions.extend(
        attempts.map(|attempt| Bytes::copy_from_slice(layout::effect(*attempt, 0).partition())),
    );
    let mut violations = Vec::new();
    for place in partitions {
        for sort in partition(store, place.clone()).await {
            violations.push(format!("{}, {}", place.escape_ascii(), sort.escape_ascii()));
        }
    }
    violations
}

/// The sort keys of a partition; in these tests they fit into a page.
async fn partition(store: &SharedKeyValue, partition: Bytes) -> Vec<Bytes> {
    let page = store
        .scan(&Scan::partition(partition, 10_000))
        .await
        .expect("a calm store")
        .value;
    page.items.into_iter().map(|(sort, _)| sort).collect()
}

/// T13: effects of attempts that did not commit.
pub fn uncommitted(receipts: &[Receipt], stored_state: &StoredState) -> Vec<String> {
    let wrong = receipts
        .iter()
        .filter(|receipt| !stored_state.is_committed(&receipt.sent.writer));
    wrong
        .map(|receipt| format!("{:?} was received, and did not commit", receipt.sent))
        .collect()
}

/// T13: effects of commits that were never received.
pub fn unsent(receipts: &[Receipt], stored_state: &StoredState) -> Vec<String> {
    let received: BTreeSet<&Sent> = receipts.iter().map(|receipt| &receipt.sent).collect();
    let mut violations = Vec::new();
    for (writer, record) in stored_state.records() {
        for sent in (0..record.effects).map(|place| Sent {
            writer: writer.clone(),
            place,
        }) {
            if !received.contains(&sent) {
                violations.push(format!("{sent:?} was never received"));
            }
        }
    }
    violations
}

/// T13: ids with which a receiver that remembers them would apply an effect twice or skip one, and
/// malformed ids.
pub fn miscounted(receipts: &[Receipt]) -> Vec<String> {
    let mut by_id: BTreeMap<&Option<Bytes>, &Sent> = BTreeMap::new();
    let mut by_effect: BTreeMap<&Sent, &Option<Bytes>> = BTreeMap::new();
    let mut violations = Vec::new();
    for Receipt { id, sent } in receipts {
        if *by_effect.entry(sent).or_insert(id) != id || *by_id.entry(id).or_insert(sent) != sent {
            violations.push(format!(
                "{sent:?} does not always come under one id, or not alone: {id:?}"
            ));
        }
    }
    violations
}

/// T13: ids that are not derived as specified.
pub fn misnamed(receipts: &[Receipt]) -> Vec<String> {
    let named = |receipt: &&Receipt| {
        receipt.id != Some(effect_id(&receipt.sent.writer.id, receipt.sent.place))
    };
    receipts
        .iter()
        .filter(named)
        .map(|receipt| format!("{receipt:?} has another id"))
        .collect()
}

/// T13: messages of one transaction whose first receipts are out of order.
pub fn reordered(receipts: &[Receipt]) -> Vec<String> {
    let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
    let mut violations = Vec::new();
    let messages = receipts
        .iter()
        .map(|receipt| &receipt.sent)
        .filter(|sent| sent.place % 2 == 0);
    for sent in messages.filter(|sent| seen.insert(*sent)) {
        let expected = last
            .insert(&sent.writer, sent.place)
            .map_or(0, |before| before + 2);
        if sent.place != expected {
            violations.push(format!("{sent:?} came where {expected} was expected"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use transactions::{
        model::{NodeId, Position, Version},
        records::{StoredRecord, WriteSet},
    };

    use super::*;
    use crate::transactions::stored_state::{Decision, Row};

    fn receipt(name: &'static str, place: u32) -> Receipt {
        let id = TransactionId::new(name).expect("a name");
        let writer = Writer {
            id: id.clone(),
            attempt: Attempt {
                node: NodeId(1),
                sequence: 1,
            },
        };
        Receipt {
            id: Some(effect_id(&id, place)),
            sent: Sent { writer, place },
        }
    }

    fn committed(effects: u32) -> StoredState {
        let mut stored_state = StoredState::default();
        let (version, position) = (
            Version::default(),
            Position {
                log: NodeId(1),
                slot: 1,
            },
        );
        let record = StoredRecord {
            version,
            position,
            writes: WriteSet::Inline(Vec::new()),
            effects,
        };
        let sent = receipt("t", 0).sent;
        let row = Row {
            attempt: sent.writer.attempt,
            decision: Decision::Committed(record, Vec::new()),
        };
        stored_state.rows.insert(sent.writer.id, row);
        stored_state
    }

    /// T13.
    #[test]
    fn violations_of_effects_are_found() {
        let sent = receipt("t", 3).sent;
        assert_eq!(Sent::of(&sent.content()), Some(sent));
        let right = [
            receipt("t", 0),
            receipt("t", 0),
            receipt("t", 1),
            receipt("t", 2),
        ];
        assert!(
            uncommitted(&right, &committed(3)).is_empty()
                && unsent(&right, &committed(3)).is_empty()
        );
        assert!(
            miscounted(&right).is_empty()
                && misnamed(&right).is_empty()
                && reordered(&right).is_empty()
        );
        assert_eq!(uncommitted(&[receipt("u", 0)], &committed(1)).len(), 1);
        assert_eq!(unsent(&right, &committed(4)).len(), 1);
        let renamed = Receipt {
            id: Some(Bytes::from("t/9")),
            ..receipt("t", 0)
        };
        assert_eq!(miscounted(&[receipt("t", 0), renamed.clone()]).len(), 1);
        assert_eq!(misnamed(&[renamed]).len(), 1);
        let shared = Receipt {
            id: receipt("t", 0).id,
            ..receipt("t", 2)
        };
        assert_eq!(miscounted(&[receipt("t", 0), shared]).len(), 1);
        assert_eq!(reordered(&[receipt("t", 2), receipt("t", 0)]).len(), 2);
    }
}
