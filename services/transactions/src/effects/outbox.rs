//! The outbox: sends the effects of committed transactions.
//!
//! ```text
//!  round one of a commit: the outbox row of the attempt, with its effects; large ones in parts
//!    of their own
//!  the decision row commits, and is durable (P5)
//!  for each effect in order: sent, durable there, the row counts it
//!  parts and row are deleted
//! ```
//!
//! The rows of a node lie in one partition, so a successor finds the unsent effects of a dead node
//! by one scan. The decision row tells whether they are sent or deleted. Successors scan a node's
//! partition until it is empty.
//!
//! Invariants
//! - Nothing is sent before the decision row that commits it is durable.
//! - A row is deleted once all its effects are sent, and durable at their destinations.
//! - A crash between two steps sends the same effect again, under the same id: at least once, never
//!   zero times.
//!
//! Bounds: `unsent_max` transactions, beyond which no effect is accepted; [`SENDING_MAX`] of them
//! are sent at a time. Those whose destination fails wait without blocking others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{TryStreamExt, future::join_all, stream};
use parking_lot::Mutex;
use ports::{
    Condition, DurabilityPoint, Item, Update,
    key_value::{Action, Name, Scan, Value},
    queue::Message,
};
use primitives::Backoff;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    Error, Result,
    broken::Broken,
    effects::{Effect, Effects, effect_id, queue_name},
    model::{Attempt, NodeId, TransactionId},
    node::Node,
    storage::{
        layout, node_registry,
        records::{decode, encode},
        store::Store,
    },
};

/// The transaction's id in an outbox row.
const ID: &str = "id";
/// The effects of an outbox row, or one of a part.
const EFFECTS: &str = "effects";
/// The number of sent effects in an outbox row.
const SENT: &str = "sent";

/// Transactions whose effects are sent at a time.
pub(crate) const SENDING_MAX: usize = 64;

/// Parts written at a time.
const WRITES_AT_ONCE: usize = 8;

/// Outbox rows read in one page.
const PAGE_ROWS: usize = 100;

/// For destinations that fail: repeated as long as the node lives.
const SEND_AGAIN: Backoff = Backoff {
    first: Duration::from_millis(20),
    longest: Duration::from_secs(30),
    attempts_max: u32::MAX,
};

/// The effects of an outbox row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Stored {
    /// Themselves.
    Inline(Vec<Effect>),
    /// Too large for that: the number of separate parts.
    Parts(u32),
}

/// Transactions with unsent effects, as this node knows them, by the node that sends them.
#[derive(Debug)]
pub(crate) struct Outbox {
    unsent: Mutex<BTreeMap<(NodeId, Attempt), Unsent>>,
    sending: Semaphore,
}

#[derive(Debug, Default)]
struct Unsent {
    effects: usize,
    /// Whether the last try of the next one was refused.
    is_failing: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            unsent: Mutex::default(),
            sending: Semaphore::new(SENDING_MAX),
        }
    }
}

impl Outbox {
    /// Whether this node has reached its limit of transactions with unsent effects.
    pub(crate) fn is_full(&self, unsent_max: usize) -> bool {
        self.unsent.lock().len() >= unsent_max
    }

    /// The number of unsent effects, and of transactions whose next effect fails.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let unsent = self.unsent.lock();
        let effects: usize = unsent.values().map(|unsent| unsent.effects).sum();
        let failing = unsent.values().filter(|unsent| unsent.is_failing).count();
        (effects as u64, failing as u64)
    }

    /// The next serving node finds them in the store.
    pub(crate) fn clear(&self) {
        self.unsent.lock().clear();
    }

    /// Registers `effects` of `attempt` to be sent by `node`, unless it cannot go on: then another
    /// node sends them.
    fn insert(&self, node: &Node, attempt: Attempt, effects: usize) {
        let mut all = self.unsent.lock();
        if !node.store.is_fenced() {
            let unsent = all.entry((node.id, attempt)).or_default();
            unsent.effects = effects;
        }
    }
}

/// The unsent effects of an earlier node.
#[derive(Debug)]
pub(crate) struct Left {
    node: NodeId,
    /// Committed attempts, the points of their commits, and the numbers of their unsent effects.
    unsent: Vec<(Attempt, DurabilityPoint, usize)>,
}

#[derive(Debug)]
struct Row {
    id: TransactionId,
    effects: Stored,
    sent: u32,
}

impl Row {
    fn decode(item: &Item) -> Result<Self> {
        let corrupt = || Error::Corrupt("decode an outbox row".into());
        let id = TransactionId::new(item.bytes(ID).ok_or_else(corrupt)?.clone())?;
        let effects = decode(item.bytes(EFFECTS).ok_or_else(corrupt)?, "an outbox row")?;
        let sent = item
            .integer(SENT)
            .and_then(|sent| u32::try_from(sent).ok())
            .ok_or_else(corrupt)?;
        Ok(Self { id, effects, sent })
    }

    fn count(&self) -> u32 {
        match &self.effects {
            Stored::Inline(effects) => effects.len() as u32,
            Stored::Parts(parts) => *parts,
        }
    }

    fn parts(&self) -> u32 {
        match self.effects {
            Stored::Inline(_) => 0,
            Stored::Parts(parts) => parts,
        }
    }
}

impl Store {
    /// Writes the effects of `attempt` before it commits. The row exists before its parts: none is
    /// without an owner.
    pub(crate) async fn put_effects(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        effects: &[Effect],
        inline_bytes_max: usize,
    ) -> Result<()> {
        if effects.is_empty() {
            return Ok(());
        }
        let parts = parts(effects, inline_bytes_max);
        let stored = if parts == 0 {
            Stored::Inline(effects.to_vec())
        } else {
            Stored::Parts(parts)
        };
        let attributes = vec![
            (Name::from(ID), Value::Bytes(id.as_bytes().clone())),
            (Name::from(EFFECTS), Value::Bytes(encode(&stored))),
            (Name::from(SENT), Value::Integer(0)),
        ];
        self.update(Update::put(layout::outbox_row(attempt), attributes))
            .await?;
        let updates = (0..parts).zip(effects).map(|(place, effect)| {
            let held = vec![(Name::from(EFFECTS), Value::Bytes(encode(effect)))];
            Ok(Update::put(layout::effect(attempt, place), held))
        });
        let put = |update| async move { self.update(update).await.map(drop) };
        stream::iter(updates)
            .try_for_each_concurrent(WRITES_AT_ONCE, put)
            .await
    }

    /// Deletes the outbox row of `attempt`, and the parts it names: they are sent, or the attempt
    /// did not commit.
    pub(crate) async fn delete_effects(&self, attempt: Attempt, parts: u32) -> Result<()> {
        for place in 0..parts {
            let update = Update::delete(layout::effect(attempt, place));
            self.finish(&update).await?;
        }
        let update = Update::delete(layout::outbox_row(attempt));
        self.finish(&update).await.map(drop)
    }

    /// Whether `attempt` would have unsent effects, if it has committed.
    pub(crate) async fn has_unsent(&self, attempt: Attempt) -> Result<bool> {
        Ok(self.outbox_row(attempt).await?.is_some())
    }

    /// Deletes the effects of `attempt`, which did not commit.
    pub(crate) async fn delete_outbox(&self, attempt: Attempt) -> Result<()> {
        match self.outbox_row(attempt).await? {
            Some(row) => self.delete_effects(attempt, row.parts()).await,
            None => Ok(()),
        }
    }

    async fn outbox_row(&self, attempt: Attempt) -> Result<Option<Row>> {
        let read = self.get(&layout::outbox_row(attempt)).await?;
        read.value.map(|item| Row::decode(&item)).transpose()
    }

    async fn effect(&self, attempt: Attempt, row: &Row, place: u32) -> Result<Effect> {
        if let Stored::Inline(effects) = &row.effects {
            return Ok(effects[place as usize].clone());
        }
        let read = self.get(&layout::effect(attempt, place)).await?;
        let part = read.value.as_ref().and_then(|item| item.bytes(EFFECTS));
        let missing = || Error::Corrupt("an effect that an outbox row names is not there".into());
        Ok(decode(part.ok_or_else(missing)?, "an effect")?)
    }

    /// Notes that the first `sent` effects of `attempt` are sent.
    async fn mark_sent(&self, attempt: Attempt, sent: u32) -> Result<()> {
        let actions = vec![Action::set_integer(SENT, i64::from(sent))];
        let update = Update::modify(layout::outbox_row(attempt), actions).when(Condition::Exists);
        self.finish(&update).await.map(drop)
    }
}

impl Effects {
    /// Sends the `count` effects of `attempt`, which has committed, once `point` is durable.
    pub(crate) fn on_commit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        attempt: Attempt,
        count: usize,
        point: DurabilityPoint,
    ) {
        if count == 0 {
            return;
        }
        self.outbox.insert(node, attempt, count);
        let (effects, node) = (Arc::clone(self), Arc::clone(node));
        self.context
            .spawn(async move { effects.deliver(&node, attempt, point).await });
    }

    /// Finds the unsent effects of the nodes before `own`.
    pub(crate) async fn find_unsent(&self, store: &Store, own: NodeId) -> Result<Vec<Left>> {
        let mut left = Vec::new();
        for row in node_registry::list(store).await? {
            if row.node != own && !row.is_sent {
                left.push(self.find_unsent_of(store, row.node).await?);
            }
        }
        Ok(left)
    }

    /// Finds the unsent effects of one node. Its log is resolved, so its attempts are decided;
    /// effects of uncommitted ones are deleted.
    pub(crate) async fn find_unsent_of(&self, store: &Store, node: NodeId) -> Result<Left> {
        let unsent = if self.context.breaks(Broken::ForgetsUnsent) {
            Vec::new()
        } else {
            left_by(store, node).await?
        };
        Ok(Left { node, unsent })
    }

    /// Sends the effects of earlier nodes.
    pub(crate) fn hand_over(
        self: &Arc<Self>,
        node: &Arc<Node>,
        left: impl IntoIterator<Item = Left>,
    ) {
        for Left {
            node: earlier,
            unsent,
        } in left
        {
            for (attempt, _, effects) in &unsent {
                self.outbox.insert(node, *attempt, *effects);
            }
            let (effects, node) = (Arc::clone(self), Arc::clone(node));
            self.context.spawn(async move {
                let deliveries =
                    unsent.iter().map(|(attempt, point, _)| effects.deliver(&node, *attempt, *point));
                join_all(deliveries).await;
                // Any failure is harmless: the next start scans a node that is not marked again.
                if let Err(error) = node_registry::mark_sent(&node.store, earlier).await {
                    tracing::debug!(%error, "the completed outbox of an earlier node was not noted");
                }
            });
        }
    }

    /// Sends the unsent effects of `attempt`, for as long as the node lives.
    async fn deliver(&self, node: &Node, attempt: Attempt, point: DurabilityPoint) {
        let mut delays = SEND_AGAIN.delays();
        let mut is_durable = self.context.breaks(Broken::SendsBeforeDurable);
        while !node.store.is_fenced() {
            let sent = async {
                let permit = self.outbox.sending.acquire().await;
                let _permit = permit.expect("it is never closed");
                if !is_durable {
                    node.store.externalize(point).await?;
                    is_durable = true;
                }
                self.send_all(node, attempt).await
            };
            match sent.await {
                Ok(()) => break,
                Err(error) => self.note_failure(node, attempt, &error),
            }
            self.context.pause(&mut delays).await;
        }
        self.outbox.unsent.lock().remove(&(node.id, attempt));
    }

    fn note_failure(&self, node: &Node, attempt: Attempt, error: &Error) {
        let mut all = self.outbox.unsent.lock();
        let unsent = all.get_mut(&(node.id, attempt));
        if let Some(unsent) = unsent.filter(|unsent| !unsent.is_failing) {
            unsent.is_failing = true;
            let effects = unsent.effects;
            tracing::warn!(%error, %attempt, effects, "effects cannot be sent; retrying until they are");
        }
    }

    /// Errors: the next effect could not be sent now.
    async fn send_all(&self, node: &Node, attempt: Attempt) -> Result<()> {
        let store = &node.store;
        let Some(row) = store.outbox_row(attempt).await? else {
            return Ok(());
        };
        let count = row.count();
        for place in row.sent..count {
            let effect = store.effect(attempt, &row, place).await?;
            let id = if self.context.breaks(Broken::NamesEffectsAnew) {
                Bytes::from(format!("{:x}", self.context.entropy.next_u64()))
            } else {
                effect_id(&row.id, place)
            };
            self.send_one(effect, id).await?;
            self.context.counters.lock().effects_sent += 1;
            if place + 1 < count || row.parts() > 0 {
                store.mark_sent(attempt, place + 1).await?;
            }
            if let Some(unsent) = self.outbox.unsent.lock().get_mut(&(node.id, attempt)) {
                (unsent.effects, unsent.is_failing) = ((count - place - 1) as usize, false);
            }
        }
        store.delete_effects(attempt, row.parts()).await
    }

    /// Sends one effect. It is durable at its destination when this returns.
    pub(crate) async fn send_one(&self, effect: Effect, id: Bytes) -> Result<()> {
        match effect {
            Effect::Message {
                queue: name,
                group,
                body,
            } => {
                let queue = self.queue()?;
                let message = Message {
                    group,
                    deduplication: Some(id),
                    body,
                };
                let receipt = queue.send(&queue_name(&name), vec![message]).await?;
                queue.externalize(receipt.point).await?;
            }
            Effect::Invocation { function, payload } => {
                let functions = self.functions()?;
                functions.send(&function, Some(id), payload).await?;
            }
        }
        Ok(())
    }
}

/// The number of parts that `effects` take beside their outbox row.
pub(crate) fn parts(effects: &[Effect], inline_bytes_max: usize) -> u32 {
    let bytes: usize = effects.iter().map(Effect::bytes_len).sum();
    if bytes <= inline_bytes_max {
        0
    } else {
        effects.len() as u32
    }
}

/// The unsent effects of `node`, whose log is resolved; those of uncommitted attempts are deleted.
pub(crate) async fn left_by(
    store: &Store,
    node: NodeId,
) -> Result<Vec<(Attempt, DurabilityPoint, usize)>> {
    let mut scan = Scan::partition(layout::outbox(node), PAGE_ROWS);
    let mut unsent = Vec::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let sequence = layout::outbox_sequence(&sort);
            let sequence =
                sequence.ok_or_else(|| Error::Corrupt("decode an outbox row's key".into()))?;
            let (attempt, row) = (Attempt { node, sequence }, Row::decode(&item)?);
            let (decision, point) = store.decision(&row.id).await?;
            if decision.is_some_and(|decision| decision.has_committed(attempt)) {
                unsent.push((attempt, point, (row.count() - row.sent) as usize));
            } else {
                store.delete_effects(attempt, row.parts()).await?;
            }
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(unsent),
        }
    }
}
