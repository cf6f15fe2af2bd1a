//! The receivers of messages from steps. They record each message, and check at once whether the
//! far store holds its dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use ports::{
    Error, ErrorKind, Queue, Receipt, Result,
    decorate::QueueDecorator,
    decorates,
    queue::{Message, QueueOptions, SharedQueue},
};
use simulated::World;
use transactions::{Destinations, queue_name};

use super::{
    checks::{Claim, Far},
    far::FarFaults,
};
use crate::transactions::{crashable::Life, destinations};

/// The queue that steps send to.
pub const QUEUE: &str = "receivers";
/// Messages of a run with this id are refused until [`Receivers::takes_all`].
pub const STUCK: &str = "stuck";

/// All receivers. Clones share them.
#[derive(Debug, Clone)]
pub struct Receivers {
    world: World,
    /// The store that must hold the dependencies of messages; none: no check.
    far: Option<World>,
    far_faults: FarFaults,
    noted: Arc<Mutex<ReceivedMessages>>,
}

/// The received messages.
#[derive(Debug, Default)]
pub struct ReceivedMessages {
    /// Their ids, by text.
    ids: BTreeMap<String, BTreeSet<Bytes>>,
    /// Their texts, by id.
    texts: BTreeMap<Bytes, String>,
    /// In the order of their first arrivals.
    order: Vec<String>,
    /// Facts that the far store must hold from now on.
    claims: Vec<Claim>,
    /// Violations.
    wrong: Vec<String>,
    takes_all: bool,
}

impl Receivers {
    /// No messages yet.
    pub async fn new(seed: u64, far: Option<World>, far_faults: FarFaults) -> Self {
        let world = World::new(seed);
        let created = world
            .queue()
            .create(&queue_name(QUEUE), QueueOptions::default())
            .await;
        created.expect("it is calm");
        Self {
            world,
            far,
            far_faults,
            noted: Arc::default(),
        }
    }

    /// The destinations of a process during its life.
    pub fn destinations(&self, life: &Life) -> Destinations {
        let queue = Receiver {
            inner: self.world.queue(),
            receivers: self.clone(),
        };
        destinations::through(Arc::new(queue), &self.world, life)
    }

    /// Accepts all messages from now on.
    pub fn takes_all(&self) {
        self.received_messages().takes_all = true;
    }

    /// The received messages.
    pub fn received_messages(&self) -> MutexGuard<'_, ReceivedMessages> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn note(&self, message: &Message) {
        let text = String::from_utf8_lossy(&message.body).into_owned();
        let claim = Claim::of(&text);
        if let (Some(far), Some(claim)) = (&self.far, &claim)
            && let Some(wrong) = Far::look(far).await.lacks(claim)
        {
            self.received_messages()
                .wrong
                .push(format!("early: {text:?} was sent, and {wrong}"));
        }
        let mut noted = self.received_messages();
        let id = message.deduplication.clone().unwrap_or_default();
        let before = noted
            .texts
            .entry(id.clone())
            .or_insert_with(|| text.clone())
            .clone();
        if before != text {
            // A receiver takes it for a repeat.
            noted.wrong.push(format!(
                "named alike: {text:?} came as {id:?}, as which {before:?} came"
            ));
        }
        let ids = noted.ids.entry(text.clone()).or_default();
        let is_first = ids.is_empty();
        if ids.insert(id) && !is_first {
            let said = format!("new id: {text:?} came as {ids:?}");
            noted.wrong.push(said);
        }
        if is_first {
            noted.order.push(text);
            noted.claims.extend(claim);
        }
    }
}

impl ReceivedMessages {
    /// An output depends on this fact.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// The facts that `far` lacks, and the other violations.
    pub fn check(&self, far: &Far) -> Vec<String> {
        let lacks = self
            .claims
            .iter()
            .filter_map(|claim| far.lacks(claim).map(|lack| format!("lost: {lack}")));
        self.wrong.iter().cloned().chain(lacks).collect()
    }

    /// The messages with this prefix, in the order of their first arrivals.
    pub fn received(&self, prefix: &str) -> Vec<&str> {
        self.order
            .iter()
            .map(String::as_str)
            .filter(|text| text.starts_with(prefix))
            .collect()
    }
}

/// A queue that records the messages sent to it.
#[derive(Debug)]
struct Receiver {
    inner: SharedQueue,
    receivers: Receivers,
}

decorates!(Receiver, dyn Queue, inner);

impl QueueDecorator for Receiver {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let struck = if messages.is_empty() {
            None
        } else {
            self.receivers.far_faults.strikes()
        };
        if let Some(kind) = struck.filter(|kind| *kind != ErrorKind::OutcomeUnknown) {
            return Err(Error::new(kind, "reach the receivers"));
        }
        let is_stuck = |message: &Message| {
            message
                .body
                .windows(STUCK.len())
                .any(|word| word == STUCK.as_bytes())
        };
        if messages.iter().any(is_stuck) && !self.receivers.received_messages().takes_all {
            return Err(Error::unavailable("have a message taken"));
        }
        for message in &messages {
            self.receivers.note(message).await;
        }
        let receipt = self.inner.send(queue, messages).await?;
        match struck {
            Some(kind) => Err(Error::new(kind, "get an answer from the receivers")),
            None => Ok(receipt),
        }
    }
}
