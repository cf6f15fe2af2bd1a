//! What a function has failed for good and nobody was told of: looked at, sent again, removed.
//!
//! Dead letters lie in the queues of a function: its event queue and those that its manifest names. A letter is called by its queue
//! and its name there, so that pages go through all of them, one queue after the other.
//!
//! Invariants
//! - A letter is sent again by its queue, in one step (Q13): whoever dies in between has sent some again and not the others, and none
//!   is lost or sent twice. An event keeps its request id, so what it wrote under that in a transaction it does not write again.
//! - What is sent again is taken by the process that was asked to, at least: whoever has sent it first may be gone.
//! - Whoever asks for all of them means those that are there: what fails again meanwhile is a letter, and left.

use bytes::Bytes;
use ports::{
    Event,
    queue::{DeadLetter, LetterId},
};
use serde::Serialize;

use crate::{
    event,
    handler::Told,
    service::{Error, PREFIX, Result, Service, request_id},
};

/// Letters in one answer.
const LETTERS_MAX: usize = 100;
/// What is shown of them in one answer, unless one is longer.
const SHOWN_BYTES_MAX: usize = 1 << 20;
/// What is shown of one that is longer.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Letters that are held at a time, each with all of its body.
const HELD_MAX: usize = 8;

/// What is called a queue here, among those of one function, that has its events.
const EVENTS: &str = "";

/// An event or a message that a function has failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// Names it among those of its function.
    pub id: String,
    /// The queue that it is a message of; none: it is an event.
    pub queue: Option<String>,
    /// The request id under which its function ran for an event; none: its store did not keep that yet.
    pub request_id: Option<String>,
    /// The group of a message.
    pub group: Option<String>,
    /// How often it was given to the function.
    pub attempts: u32,
    /// What that said last.
    pub reason: String,
    /// What its function was given of an event, or what a message was sent with: the beginning, if that is long; what is no text in letters.
    pub payload: String,
    /// How many bytes that is in all.
    pub payload_bytes: usize,
}

/// Some of a function's letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Letters {
    /// Those of each queue from the oldest on.
    pub letters: Vec<Letter>,
    /// Behind which there may be more; none: those were all.
    pub next: Option<String>,
}

/// What is done with letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Redrive,
    Purge,
}

/// A queue of a function.
#[derive(Debug)]
struct Source {
    /// What runs it calls the function so.
    function: String,
    name: String,
    at_provider: String,
}

impl Service {
    /// Letters of a function, behind the one called `after`.
    ///
    /// Errors: `NoSuchFunction`; `Invalid` for what calls no letter; `Port`.
    pub async fn dead_letters(&self, function: &str, after: Option<&str>) -> Result<Letters> {
        let sources = self.sources(function)?;
        let (from, mut after) = match after.map(parsed).transpose()? {
            Some((queue, letter)) => (place(&sources, queue)?, Some(letter)),
            None => (0, None),
        };
        let (mut letters, mut bytes) = (Vec::new(), 0);
        for source in &sources[from..] {
            loop {
                let page = self.page(source, after, HELD_MAX).await?;
                // Those that an earlier release has buried meanwhile have no number, and come after none.
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
                        let next = letters.last().map(|last: &Letter| last.id.clone());
                        return Ok(Letters { letters, next });
                    }
                    letters.push(shown);
                }
            }
            after = None;
        }
        Ok(Letters {
            letters,
            next: None,
        })
    }

    /// Sends a function's letter `id` again, or all of its letters; returns once that is durable, with how many were asked for: what
    /// others settle in the same moment counts as well.
    ///
    /// Errors: as [`Self::dead_letters`], and `NoSuchLetter`. Some may have been sent again before that, and none is lost.
    pub async fn redrive(&self, function: &str, id: Option<&str>) -> Result<u64> {
        self.settle(function, id, Deed::Redrive).await
    }

    /// Removes a function's letter `id`, or all of its letters, for good; returns as [`Self::redrive`] does.
    pub async fn purge(&self, function: &str, id: Option<&str>) -> Result<u64> {
        self.settle(function, id, Deed::Purge).await
    }

    async fn settle(&self, function: &str, id: Option<&str>, deed: Deed) -> Result<u64> {
        let sources = self.sources(function)?;
        if let Some(id) = id {
            let (queue, letter) = parsed(id)?;
            let source = &sources[place(&sources, queue)?];
            if !self.is_there(source, letter).await? {
                return Err(Error::NoSuchLetter(id.to_owned()));
            }
            self.settle_these(source, &[letter], deed).await?;
            return Ok(1);
        }
        let mut settled = 0;
        for source in &sources {
            let mut left = self.count(source).await?;
            while left > 0 {
                let mut some: Vec<_> = self
                    .page(source, None, HELD_MAX)
                    .await?
                    .iter()
                    .map(|letter| letter.id)
                    .collect();
                some.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                if some.is_empty() {
                    break;
                }
                self.settle_these(source, &some, deed).await?;
                settled += some.len() as u64;
                left -= some.len() as u64;
            }
        }
        Ok(settled)
    }

    async fn settle_these(&self, source: &Source, letters: &[LetterId], deed: Deed) -> Result<()> {
        let admin = &self.inner.parts.queue_admin;
        let settled = match deed {
            Deed::Redrive => admin.redrive(&source.at_provider, letters).await,
            Deed::Purge => admin.purge(&source.at_provider, letters).await,
        };
        let receipt = match settled {
            Ok(receipt) => receipt,
            Err(error) if is_of_no_queue(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if deed == Deed::Redrive && source.has_events() {
            self.events().take_events(&source.function);
        }
        Ok(admin.externalize(receipt.point).await?)
    }

    async fn is_there(&self, source: &Source, letter: LetterId) -> Result<bool> {
        let before = letter.0.checked_sub(1).map(LetterId);
        Ok(self
            .page(source, before, 1)
            .await?
            .first()
            .is_some_and(|found| found.id == letter))
    }

    /// Some letters of `source`, oldest first.
    async fn page(
        &self,
        source: &Source,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        match self
            .inner
            .parts
            .queue_admin
            .dead_letters(&source.at_provider, after, letters_max)
            .await
        {
            Err(error) if is_of_no_queue(&error) => Ok(Vec::new()),
            letters => Ok(letters?),
        }
    }

    async fn count(&self, source: &Source) -> Result<u64> {
        match self
            .inner
            .parts
            .queue_admin
            .backlog(&source.at_provider)
            .await
        {
            Err(error) if is_of_no_queue(&error) => Ok(0),
            backlog => Ok(backlog?.dead_letters),
        }
    }

    fn sources(&self, function: &str) -> Result<Vec<Source>> {
        let known = self.inner.catalogue.function(function);
        let known = known.ok_or_else(|| self.inner.unknown(function))?;
        let function = [PREFIX, function].concat();
        let events = self.events().event_queue(&function);
        let mut sources = vec![Source {
            function: function.clone(),
            name: EVENTS.to_owned(),
            at_provider: events,
        }];
        sources.extend(known.table.queues().map(|trigger| Source {
            function: function.clone(),
            name: trigger.queue.clone(),
            at_provider: (self.inner.parts.queue_name)(&trigger.queue),
        }));
        Ok(sources)
    }

    fn shown(&self, function: &str, source: &Source, letter: DeadLetter) -> Letter {
        let is_event = source.has_events();
        let (request_id, payload) = if is_event {
            self.given(function, &letter.body, letter.deduplication)
        } else {
            (None, letter.body)
        };
        let is_message = |text: String| (!is_event).then_some(text);
        Letter {
            id: format!("{}:{}", source.name, letter.id.0),
            queue: is_message(source.name.clone()),
            request_id,
            group: is_message(event::text(&letter.group)),
            attempts: letter.attempts,
            reason: letter.reason,
            payload_bytes: payload.len(),
            payload: beginning(&payload),
        }
    }

    /// Under which request id `function` ran for the event that travels as `body`, and what it was given.
    fn given(
        &self,
        function: &str,
        body: &Bytes,
        deduplication: Option<Bytes>,
    ) -> (Option<String>, Bytes) {
        match self.events().event_of(body, deduplication.clone()) {
            Ok(Event::Call { id, payload }) => (id.map(|id| request_id(&id)), payload),
            Ok(Event::Failed {
                function: failed,
                id,
                payload,
                reason,
            }) => {
                let id = id.map(|id| request_id(&id));
                // Without one each attempt has another.
                let (called, is_called) = (id.as_deref().unwrap_or_default(), id.is_some());
                let failed = Told {
                    function: &failed,
                    id: called,
                    payload: &payload,
                    reason: &reason,
                };
                let (own_id, given) = failed.to(function, &self.inner);
                (is_called.then_some(own_id), given)
            }
            // What cannot be read as an event failed for that, and is shown as it is.
            Ok(_) | Err(_) => (deduplication.map(|id| request_id(&id)), body.clone()),
        }
    }
}

impl Source {
    fn has_events(&self) -> bool {
        self.name == EVENTS
    }
}

/// Nothing was ever sent: there is no queue.
fn is_of_no_queue(error: &ports::Error) -> bool {
    error.kind() == ports::ErrorKind::Invalid
}

/// The queue and the letter that `id` calls.
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
    let whole = event::text(payload);
    whole[..whole.floor_char_boundary(PAYLOAD_BYTES_MAX)].to_owned()
}
