//! Whoever receives what steps send: it notes each message, and looks at once whether the far store has what it rests on.

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
    far::Weather,
};
use crate::transactions::{destinations, mortal::Life};

/// The queue that steps send to.
pub const QUEUE: &str = "outside";
/// Messages of a run of this name are not taken, until [`Outside::takes_all`].
pub const STUCK: &str = "stuck";

/// All who receive. Clones share it.
#[derive(Debug, Clone)]
pub struct Outside {
    world: World,
    /// Where what messages rest on has to be; none: nobody looks.
    far: Option<World>,
    weather: Weather,
    noted: Arc<Mutex<Noted>>,
}

/// What was received.
#[derive(Debug, Default)]
pub struct Noted {
    /// By what they say, their ids.
    ids: BTreeMap<String, BTreeSet<Bytes>>,
    /// By their ids, what they say.
    texts: BTreeMap<Bytes, String>,
    /// In the order of their first arrivals.
    order: Vec<String>,
    /// What has to be far from now on.
    claims: Vec<Claim>,
    /// What went wrong.
    wrong: Vec<String>,
    takes_all: bool,
}

impl Outside {
    /// Nothing has arrived yet.
    pub async fn new(seed: u64, far: Option<World>, weather: Weather) -> Self {
        let world = World::new(seed);
        let created = world
            .queue()
            .create(&queue_name(QUEUE), QueueOptions::default())
            .await;
        created.expect("it is calm");
        Self {
            world,
            far,
            weather,
            noted: Arc::default(),
        }
    }

    /// Where a process that lives so long has its messages go.
    pub fn destinations(&self, life: &Life) -> Destinations {
        let queue = Receiver {
            inner: self.world.queue(),
            outside: self.clone(),
        };
        destinations::through(Arc::new(queue), &self.world, life)
    }

    /// From now on everything is taken.
    pub fn takes_all(&self) {
        self.noted().takes_all = true;
    }

    /// What was noted.
    pub fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn note(&self, message: &Message) {
        let text = String::from_utf8_lossy(&message.body).into_owned();
        let claim = Claim::of(&text);
        if let (Some(far), Some(claim)) = (&self.far, &claim)
            && let Some(wrong) = Far::look(far).await.lacks(claim)
        {
            self.noted()
                .wrong
                .push(format!("early: {text:?} was sent, and {wrong}"));
        }
        let mut noted = self.noted();
        let id = message.deduplication.clone().unwrap_or_default();
        let before = noted
            .texts
            .entry(id.clone())
            .or_insert_with(|| text.clone())
            .clone();
        if before != text {
            // Whoever receives takes it for a repeat.
            noted.wrong.push(format!(
                "named alike: {text:?} came as {id:?}, as which {before:?} came"
            ));
        }
        let ids = noted.ids.entry(text.clone()).or_default();
        let is_first = ids.is_empty();
        if ids.insert(id) && !is_first {
            let said = format!("named anew: {text:?} came as {ids:?}");
            noted.wrong.push(said);
        }
        if is_first {
            noted.order.push(text);
            noted.claims.extend(claim);
        }
    }
}

impl Noted {
    /// What was shown or let out rests on this.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// What `far` lacks of it, and what went wrong else.
    pub fn check(&self, far: &Far) -> Vec<String> {
        let lacks = self
            .claims
            .iter()
            .filter_map(|claim| far.lacks(claim).map(|lack| format!("lost: {lack}")));
        self.wrong.iter().cloned().chain(lacks).collect()
    }

    /// Messages that begin so, in the order in which they first came.
    pub fn received(&self, prefix: &str) -> Vec<&str> {
        self.order
            .iter()
            .map(String::as_str)
            .filter(|text| text.starts_with(prefix))
            .collect()
    }
}

/// A queue that notes what it is sent.
#[derive(Debug)]
struct Receiver {
    inner: SharedQueue,
    outside: Outside,
}

decorates!(Receiver, dyn Queue, inner);

impl QueueDecorator for Receiver {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let struck = if messages.is_empty() {
            None
        } else {
            self.outside.weather.strikes()
        };
        if let Some(kind) = struck.filter(|kind| *kind != ErrorKind::OutcomeUnknown) {
            return Err(Error::new(kind, "reach whoever receives"));
        }
        let is_stuck = |message: &Message| {
            message
                .body
                .windows(STUCK.len())
                .any(|word| word == STUCK.as_bytes())
        };
        if messages.iter().any(is_stuck) && !self.outside.noted().takes_all {
            return Err(Error::unavailable("have a message taken"));
        }
        for message in &messages {
            self.outside.note(message).await;
        }
        let receipt = self.inner.send(queue, messages).await?;
        match struck {
            Some(kind) => Err(Error::new(kind, "hear from whoever receives")),
            None => Ok(receipt),
        }
    }
}
