//! Events in the event queue of a function.
//!
//! The id of a call is its message's deduplication id, so a repeat within the window sends no
//! second event. A failure carries the id in its body, because events of two functions may have the
//! same id and the same exception handler.

use bytes::Bytes;
use ports::{Error, Result, functions::Event};
use serde::{Deserialize, Serialize};

/// The body of a message in an event queue. The variants' order is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Envelope {
    /// An event that a client sent.
    Call(Bytes),
    /// An event that functions gave up on, in this order. Each was the exception handler of the one
    /// before it.
    Failed {
        functions: Vec<String>,
        id: Option<Bytes>,
        payload: Bytes,
        reason: String,
    },
}

impl Envelope {
    pub(super) fn encode(&self) -> Result<Bytes> {
        let encoded = postcard::to_stdvec(self)
            .map_err(|error| Error::invalid("encode an event").caused_by(error))?;
        Ok(Bytes::from(encoded))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        postcard::from_bytes(bytes)
            .map_err(|error| Error::corrupt("decode an event").caused_by(error))
    }

    /// The functions that gave up on the event, in order.
    pub(super) fn failed_functions(&self) -> &[String] {
        match self {
            Self::Call(_) => &[],
            Self::Failed { functions, .. } => functions,
        }
    }

    /// The event for the exception handler after `function` gave up on this one, which arrived with
    /// `id`. If the function was itself an exception handler, the original event is forwarded.
    pub(super) fn failed(self, function: &str, id: Option<Bytes>, reason: &str) -> Self {
        let (mut functions, id, payload) = match self {
            Self::Call(payload) => (Vec::new(), id, payload),
            Self::Failed {
                functions,
                id: original,
                payload,
                ..
            } => (functions, id.or(original), payload),
        };
        functions.push(function.to_owned());
        Self::Failed {
            functions,
            id,
            payload,
            reason: reason.to_owned(),
        }
    }

    /// The event as its function receives it; `id` is that of its message.
    pub(super) fn into_event(self, id: Option<Bytes>) -> Event {
        match self {
            Self::Call(payload) => Event::Call { id, payload },
            Self::Failed {
                mut functions,
                id,
                payload,
                reason,
            } => Event::Failed {
                function: functions.pop().unwrap_or_default(),
                id,
                payload,
                reason,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_event_names_the_functions_that_gave_up() {
        let event = Envelope::Call("payload".into());
        let forwarded = event
            .failed("f", Some("id".into()), "first")
            .failed("g", None, "second");
        let forwarded =
            Envelope::decode(&forwarded.encode().expect("it is written")).expect("it is read");
        assert_eq!(forwarded.failed_functions(), ["f", "g"]);
        let Event::Failed {
            function,
            id,
            payload,
            reason,
        } = forwarded.into_event(None)
        else {
            panic!("a failure")
        };
        assert_eq!(
            (function.as_str(), id, reason.as_str()),
            ("g", Some("id".into()), "second")
        );
        assert_eq!(payload, "payload");
    }
}
