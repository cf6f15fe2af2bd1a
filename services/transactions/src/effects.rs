//! Effects: queue messages and invocations that are sent once their transaction has committed.
//!
//! A transaction buffers them like writes. They are stored before its decision row, so they are
//! decided with the writes. Then the [`outbox`](crate::effects::outbox) sends them.
//!
//! Invariants
//! - Each has an index within its transaction, in the order of the calls. A call that is repeated
//!   under its index changes nothing: clients repeat requests whose answers were lost.
//! - The id that its receiver sees is derived only from the transaction's id and that index. It is
//!   the same for every sender and every repeat (T13).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Functions,
    queue::{GROUP_BYTES_MAX, SharedQueue},
};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, context::Context, effects::outbox::Outbox, model::TransactionId};

pub(crate) mod outbox;

/// The prefix of clients' queues at their provider: Landfast has queues of its own there.
const QUEUE_PREFIX: &str = "user/";

/// The longest name of a queue or a function.
const NAME_BYTES_MAX: usize = 256;

/// How many queues are known without asking their provider.
const KNOWN_MAX: usize = 1_024;

/// The overhead of an effect beside its bytes.
const EFFECT_BYTES: usize = 96;

/// An external action that happens once its transaction has committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Sends a message to a queue.
    Message {
        /// The queue's name among clients; at its provider it is [`queue_name`].
        queue: String,
        /// Its message group, of at most 128 bytes.
        group: Bytes,
        /// The message.
        body: Bytes,
    },
    /// Invokes a function asynchronously.
    Invocation {
        /// The function's name.
        function: String,
        /// Its payload.
        payload: Bytes,
    },
}

/// The destinations of effects. `None`: clients may name no queue, or no function.
#[derive(Debug, Clone, Default)]
pub struct Destinations {
    /// Clients may send to its queues with the prefix of [`queue_name`].
    pub queue: Option<SharedQueue>,
    /// Clients may invoke all its functions. An accepted invocation is ordered with the key-value
    /// store, or durable when it answers.
    pub functions: Option<Arc<dyn Functions>>,
}

/// The name of a client's queue at its provider.
pub fn queue_name(queue: &str) -> String {
    [QUEUE_PREFIX, queue].concat()
}

/// The id by which the receiver recognises an effect: `ID/PLACE`.
pub fn effect_id(id: &TransactionId, place: u32) -> Bytes {
    [id.as_bytes(), format!("/{place}").as_bytes()]
        .concat()
        .into()
}

impl Effect {
    /// Its content.
    pub fn content(&self) -> &Bytes {
        match self {
            Self::Message { body: content, .. }
            | Self::Invocation {
                payload: content, ..
            } => content,
        }
    }

    /// The name of its queue or function.
    pub fn destination(&self) -> &str {
        match self {
            Self::Message { queue: name, .. } | Self::Invocation { function: name, .. } => name,
        }
    }

    fn group(&self) -> &[u8] {
        match self {
            Self::Message { group, .. } => group,
            Self::Invocation { .. } => &[],
        }
    }

    /// Its approximate length, encoded and in memory.
    pub fn bytes_len(&self) -> usize {
        EFFECT_BYTES + self.destination().len() + self.group().len() + self.content().len()
    }
}

/// The effects of one attempt, by the indexes of their calls.
#[derive(Debug, Default)]
pub(crate) struct EffectBuffer {
    effects: BTreeMap<u32, Effect>,
    bytes: usize,
    /// The index after the last effect that came without one.
    unnumbered: u32,
}

impl EffectBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `effect` at `place`, or at the first free index after the last effect that came without
    /// one. A call with a high index thereby leaves lower ones for those without. Returns false if
    /// the same effect is there already.
    ///
    /// Errors: `Invalid` if another is there, `TooLarge` if there are `effects_max`.
    pub(crate) fn add(
        &mut self,
        effect: &Effect,
        place: Option<u32>,
        effects_max: usize,
    ) -> Result<bool> {
        let is_numbered = place.is_some();
        let is_free = |place: &u32| !self.effects.contains_key(place);
        let place = place
            .or_else(|| (self.unnumbered..=u32::MAX).find(is_free))
            .expect("fewer effects than places");
        match self.effects.get(&place) {
            Some(earlier) if earlier == effect => return Ok(false),
            Some(_) => return Err(Error::Invalid("another effect has this place")),
            None => {}
        }
        if self.effects.len() >= effects_max || place as usize >= effects_max {
            return Err(Error::TooLarge("the transaction has too many effects"));
        }
        self.bytes += effect.bytes_len();
        self.effects.insert(place, effect.clone());
        if !is_numbered {
            self.unnumbered = place + 1;
        }
        Ok(true)
    }

    /// All of them, in order. If an index was skipped, later effects move up.
    pub(crate) fn into_effects(self) -> Vec<Effect> {
        self.effects.into_values().collect()
    }
}

/// The destinations of effects, and the effects on their way.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) context: Arc<Context>,
    pub(crate) destinations: Destinations,
    /// Queues that existed at the last check.
    pub(crate) known_queues: Mutex<BTreeSet<String>>,
    pub(crate) outbox: Outbox,
}

impl Effects {
    /// Errors: `Invalid` and `TooLarge`, which its destination would otherwise return too late.
    pub(crate) fn check_effect(&self, effect: &Effect) -> Result<()> {
        let name = effect.destination();
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Invalid(
                "the name of a queue or function has 1 to 256 bytes",
            ));
        }
        if effect.group().len() > GROUP_BYTES_MAX {
            return Err(Error::Invalid("a message group has at most 128 bytes"));
        }
        let Destinations { queue, functions } = &self.destinations;
        let carried_max = match effect {
            Effect::Message { .. } => queue.as_ref().map(|queue| queue.limits().message_bytes_max),
            Effect::Invocation { .. } => {
                let functions = functions.as_ref();
                functions.map(|functions| functions.limits().payload_bytes_max)
            }
        };
        // An effect has to fit an item of its own.
        let item_bytes_max = self.context.key_value.limits().item_bytes_max;
        let bytes_max = self.context.config.effect_bytes_max.min(item_bytes_max / 2);
        if effect.content().len() > bytes_max.min(carried_max.unwrap_or(usize::MAX)) {
            return Err(Error::TooLarge(
                "the message or payload is beyond the limit of one effect",
            ));
        }
        Ok(())
    }

    fn queue(&self) -> Result<&SharedQueue> {
        self.destinations.queue.as_ref().ok_or(Error::NoSuchQueue)
    }

    fn functions(&self) -> Result<&Arc<dyn Functions>> {
        let functions = self.destinations.functions.as_ref();
        functions.ok_or(Error::NoSuchFunction)
    }

    /// Errors: `NoSuchQueue`, `NoSuchFunction`: an effect that cannot be sent must not be accepted.
    pub(crate) async fn check_destination(&self, effect: &Effect) -> Result<()> {
        match effect {
            Effect::Message { queue: name, .. } => {
                if self.known_queues.lock().contains(name) {
                    return Ok(());
                }
                let sent = self.queue()?.send(&queue_name(name), Vec::new()).await;
                sent.map_err(|error| match error.kind() {
                    ports::ErrorKind::Invalid => Error::NoSuchQueue,
                    _ => error.into(),
                })?;
                let mut known = self.known_queues.lock();
                if known.len() >= KNOWN_MAX {
                    known.clear();
                }
                known.insert(name.clone());
            }
            // The provider keeps its functions in memory, and functions can disappear, so this is
            // not cached.
            Effect::Invocation { function, .. } => {
                if !self.functions()?.knows(function).await? {
                    return Err(Error::NoSuchFunction);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &'static str) -> Effect {
        Effect::Message {
            queue: "q".to_owned(),
            group: Bytes::new(),
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    /// T13.
    #[test]
    fn a_repeated_call_changes_nothing_and_another_in_its_place_is_refused() {
        let mut buffer = EffectBuffer::default();
        assert_eq!(buffer.add(&message("b"), Some(1), 5), Ok(true));
        assert_eq!(buffer.add(&message("a"), Some(0), 5), Ok(true));
        let bytes = buffer.bytes();
        assert_eq!(buffer.add(&message("b"), Some(1), 5), Ok(false));
        assert!(matches!(
            buffer.add(&message("x"), Some(1), 5),
            Err(Error::Invalid(_))
        ));
        assert_eq!(buffer.bytes(), bytes);
        assert_eq!(buffer.add(&message("c"), None, 5), Ok(true));
        assert_eq!(
            buffer.add(&message("c"), None, 5),
            Ok(true),
            "without a place each call is its own"
        );
        assert!(matches!(
            buffer.add(&message("d"), Some(5), 5),
            Err(Error::TooLarge(_))
        ));
        assert_eq!(buffer.add(&message("d"), None, 5), Ok(true));
        assert!(matches!(
            buffer.add(&message("e"), None, 5),
            Err(Error::TooLarge(_))
        ));
        assert_eq!(buffer.bytes(), 5 * message("a").bytes_len());
        assert_eq!(
            buffer.into_effects(),
            ["a", "b", "c", "c", "d"].map(message)
        );
    }

    /// T13.
    #[test]
    fn effects_without_a_place_have_room_in_their_order_whatever_the_places_of_others() {
        let mut buffer = EffectBuffer::default();
        assert_eq!(buffer.add(&message("last"), Some(4), 5), Ok(true));
        assert_eq!(buffer.add(&message("a"), None, 5), Ok(true));
        assert_eq!(buffer.add(&message("placed"), Some(1), 5), Ok(true));
        assert_eq!(buffer.add(&message("b"), None, 5), Ok(true));
        assert_eq!(buffer.add(&message("c"), None, 5), Ok(true));
        assert!(matches!(
            buffer.add(&message("d"), None, 5),
            Err(Error::TooLarge(_))
        ));
        assert_eq!(
            buffer.into_effects(),
            ["a", "placed", "b", "c", "last"].map(message)
        );
    }

    #[test]
    fn ids_of_effects_tell_transactions_apart_also_by_names_with_slashes() {
        let id = |name: &'static str| TransactionId::new(name).expect("a name");
        assert_eq!(effect_id(&id("order-17"), 3), "order-17/3");
        assert_ne!(effect_id(&id("a/1"), 0), effect_id(&id("a"), 10));
        let longest = TransactionId::new(vec![b'x'; crate::model::transaction_id::ID_BYTES_MAX])
            .expect("a name");
        assert!(effect_id(&longest, u32::MAX).len() <= ports::queue::DEDUPLICATION_BYTES_MAX);
    }
}
