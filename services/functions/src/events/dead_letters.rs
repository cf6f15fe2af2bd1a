//! Dead letters: events and messages that a function failed permanently without an `on_failure`
//! function. Callers list them, send them again, or remove them.
//!
//! Dead letters stay in the queues of a function: its event queue and the queues in its manifest.
//! The id of a dead letter names its queue and its number there, so that pages go through all
//! queues in turn.
//!
//! Invariants
//! - The queue sends a dead letter again in one step (Q13). If the process dies in between, some
//!   were sent again and the others were not; none is lost or sent twice. An event keeps its
//!   request id, so its transactions under that id do not apply twice.
//! - At least the process that sends an event again also takes it: its first sender may be gone.
//! - An operation on all dead letters covers those present when it begins. Events that fail again
//!   meanwhile stay.

use bytes::Bytes;
use ports::{
    Event,
    queue::{self, LetterId},
};
use serde::Serialize;

use super::{
    context::Context,
    format::{self, Failed},
    handler::notice,
};
use crate::{
    error::{Error, Result},
    ids::{own_name, registered_name, request_id},
};

const LETTERS_MAX: usize = 100;
/// The most bytes of payloads in one page, unless a single one is longer.
const SHOWN_BYTES_MAX: usize = 1 << 20;
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// The most dead letters in memory at a time, each with its whole body.
const HELD_MAX: usize = 8;

/// The name of a function's event queue in ids.
const EVENTS: &str = "";

/// An event or a message that a function has failed permanently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its id among the dead letters of its function.
    pub id: String,
    /// The queue of a message; none: it is an event.
    pub queue: Option<String>,
    /// The request id of an event; none: an earlier release did not store it.
    pub request_id: Option<String>,
    /// The group of a message.
    pub group: Option<String>,
    /// How often it was delivered to the function.
    pub attempts: u32,
    /// The function's last error.
    pub reason: String,
    /// The payload of an event, or the body of a message. A long one is cut, and one that is not
    /// UTF-8 is in hexadecimal.
    pub payload: String,
    /// The bytes of the whole payload.
    pub payload_bytes: usize,
}

/// A page of a function's dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterPage {
    /// The dead letters, queue by queue, oldest first.
    pub letters: Vec<DeadLetter>,
    /// The id to continue after; none: there are no more.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Redrive,
    Purge,
}

#[derive(Debug)]
struct Source {
    /// The registered name of the function.
    function: String,
    name: String,
    at_provider: String,
}

#[derive(Debug)]
pub(crate) struct DeadLetters<'service>(pub(crate) &'service Context);

impl DeadLetters<'_> {
    /// As [`Service::dead_letters`](crate::Service::dead_letters).
    pub(crate) async fn page(&self, function: &str, after: Option<&str>) -> Result<DeadLetterPage> {
        let sources = self.sources(function)?;
        let (from, mut after) = match after.map(parsed).transpose()? {
            Some((queue, letter)) => (place(&sources, queue)?, Some(letter)),
            None => (0, None),
        };
        let (mut letters, mut bytes) = (Vec::new(), 0);
        for source in &sources[from..] {
            loop {
                let page = self.some_of(source, after, HELD_MAX).await?;
                // Dead letters that an earlier release adds meanwhile have no number, and follow
                // none.
                let Some(last) = page
                    .last()
                    .filter(|last| after.is_none_or(|after| after < last.id))
                else {
                    break;
                };
                after = Some(last.id);
                for letter in page {
                    let shown = self.shown(function, source, letter);
                    bytes += shown.payload.len();
                    if letters.len() >= LETTERS_MAX
                        || bytes > SHOWN_BYTES_MAX && !letters.is_empty()
                    {
                        let next = letters.last().map(|last: &DeadLetter| last.id.clone());
                        return Ok(DeadLetterPage { letters, next });
                    }
                    letters.push(shown);
                }
            }
            after = None;
        }
        Ok(DeadLetterPage {
            letters,
            next: None,
        })
    }

    /// As [`Service::redrive`](crate::Service::redrive), or [`Service::purge`](crate::Service::purge).
    pub(crate) async fn settle(
        &self,
        function: &str,
        id: Option<&str>,
        action: Action,
    ) -> Result<u64> {
        let sources = self.sources(function)?;
        if let Some(id) = id {
            let (queue, letter) = parsed(id)?;
            let source = &sources[place(&sources, queue)?];
            if !self.is_there(source, letter).await? {
                return Err(Error::NoSuchDeadLetter(id.to_owned()));
            }
            self.settle_these(source, &[letter], action).await?;
            return Ok(1);
        }
        let mut settled = 0;
        for source in &sources {
            let mut left = self.count(source).await?;
            while left > 0 {
                let mut some: Vec<_> = self
                    .some_of(source, None, HELD_MAX)
                    .await?
                    .iter()
                    .map(|letter| letter.id)
                    .collect();
                some.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                if some.is_empty() {
                    break;
                }
                self.settle_these(source, &some, action).await?;
                settled += some.len() as u64;
                left -= some.len() as u64;
            }
        }
        Ok(settled)
    }

    async fn settle_these(
        &self,
        source: &Source,
        letters: &[LetterId],
        action: Action,
    ) -> Result<()> {
        let admin = &self.0.parts.queue_admin;
        let settled = match action {
            Action::Redrive => admin.redrive(&source.at_provider, letters).await,
            Action::Purge => admin.purge(&source.at_provider, letters).await,
        };
        let Some(receipt) = of_queue(settled)? else {
            return Ok(());
        };
        if action == Action::Redrive && source.has_events() {
            self.0.parts.functions.take_events(&source.function);
        }
        Ok(admin.externalize(receipt.point).await?)
    }

    async fn is_there(&self, source: &Source, letter: LetterId) -> Result<bool> {
        let before = letter.0.checked_sub(1).map(LetterId);
        Ok(self
            .some_of(source, before, 1)
            .await?
            .first()
            .is_some_and(|found| found.id == letter))
    }

    /// Dead letters of `source` after `after`, oldest first.
    async fn some_of(
        &self,
        source: &Source,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<queue::DeadLetter>> {
        let admin = &self.0.parts.queue_admin;
        let queue = &source.at_provider;
        let letters = admin.dead_letters(queue, after, letters_max).await;
        Ok(of_queue(letters)?.unwrap_or_default())
    }

    async fn count(&self, source: &Source) -> Result<u64> {
        let backlog = self.0.parts.queue_admin.backlog(&source.at_provider).await;
        Ok(of_queue(backlog)?.map_or(0, |backlog| backlog.dead_letters))
    }

    fn sources(&self, function: &str) -> Result<Vec<Source>> {
        let deployed = self.0.lookup.deployed(function)?;
        let events = self.0.event_queue(function);
        let function = registered_name(function);
        let mut sources = vec![Source {
            function: function.clone(),
            name: EVENTS.to_owned(),
            at_provider: events,
        }];
        sources.extend(deployed.table.queues().map(|trigger| Source {
            function: function.clone(),
            name: trigger.queue.clone(),
            at_provider: (self.0.parts.queue_name)(&trigger.queue),
        }));
        Ok(sources)
    }

    fn shown(&self, function: &str, source: &Source, letter: queue::DeadLetter) -> DeadLetter {
        let is_event = source.has_events();
        let (request_id, payload) = if is_event {
            self.given(function, &letter.body, letter.deduplication)
        } else {
            (None, letter.body)
        };
        let is_message = |text: String| (!is_event).then_some(text);
        DeadLetter {
            id: format!("{}:{}", source.name, letter.id.0),
            queue: is_message(source.name.clone()),
            request_id,
            group: is_message(format::text(&letter.group)),
            attempts: letter.attempts,
            reason: letter.reason,
            payload_bytes: payload.len(),
            payload: beginning(&payload),
        }
    }

    /// The request id and the payload of the event of `function` that the message `body` holds.
    fn given(
        &self,
        function: &str,
        body: &Bytes,
        deduplication: Option<Bytes>,
    ) -> (Option<String>, Bytes) {
        match self.0.parts.functions.event_of(body, deduplication.clone()) {
            Ok(Event::Call { id, payload }) => (id.map(|id| request_id(&id)), payload),
            Ok(Event::Failed {
                function: failed,
                id,
                payload,
                reason,
            }) => {
                let id = id.map(|id| request_id(&id));
                // Without an id, each attempt has a new one.
                let (called, is_called) = (id.as_deref().unwrap_or_default(), id.is_some());
                let failed = Failed {
                    function: own_name(&failed),
                    id: called,
                    payload: &payload,
                    reason: &reason,
                };
                let (own_id, given) = notice(function, &failed, self.0);
                (is_called.then_some(own_id), given)
            }
            // A message that does not decode as an event failed for that, and is shown unchanged.
            Ok(_) | Err(_) => (deduplication.map(|id| request_id(&id)), body.clone()),
        }
    }
}

impl Source {
    fn has_events(&self) -> bool {
        self.name == EVENTS
    }
}

/// The result of a queue's call; none: the queue does not exist, because nothing was ever sent.
fn of_queue<T>(result: ports::Result<T>) -> ports::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ports::ErrorKind::Invalid => Ok(None),
        result => result.map(Some),
    }
}

/// The queue and the number in the id of a dead letter.
fn parsed(id: &str) -> Result<(&str, LetterId)> {
    let parts = id.split_once(':');
    let parsed = parts.and_then(|(queue, letter)| Some((queue, LetterId(letter.parse().ok()?))));
    parsed.ok_or_else(|| {
        Error::Invalid(format!(
            "{id:?} is no dead letter's id: take one from the list"
        ))
    })
}

fn place(sources: &[Source], queue: &str) -> Result<usize> {
    let place = sources.iter().position(|source| source.name == queue);
    place.ok_or_else(|| Error::Invalid(format!("the queue {queue:?} does not start this function")))
}

fn beginning(payload: &Bytes) -> String {
    let whole = format::text(payload);
    whole[..whole.floor_char_boundary(PAYLOAD_BYTES_MAX)].to_owned()
}
