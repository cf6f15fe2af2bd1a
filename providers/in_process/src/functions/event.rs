//! Events on their way to a function, as its event queue carries them. The id of a call travels as its message's
//! deduplication id: so a repeat within the window is no second event. A failure carries it inside, since events of two
//! functions may have one id and fail to one handler.

use std::slice;

use bytes::Bytes;
use ports::{Error, Result, functions::Event};
use serde::{Deserialize, Serialize};

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Envelope {
    /// An event sent by somebody.
    Call(Bytes),
    /// An event without an id that another function gave up on.
    Failed {
        function: String,
        payload: Bytes,
        reason: String,
    },
    /// The same with one.
    NamedFailed {
        function: String,
        id: Bytes,
        payload: Bytes,
        reason: String,
    },
    /// One that several functions gave up on, each told by the one before it: the last one last.
    HandedOn {
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

    /// The functions that gave up on it, each told by the one before it.
    pub(super) fn given_up_by(&self) -> &[String] {
        match self {
            Self::Call(_) => &[],
            Self::Failed { function, .. } | Self::NamedFailed { function, .. } => {
                slice::from_ref(function)
            }
            Self::HandedOn { functions, .. } => functions,
        }
    }

    /// What tells an exception handler that `function` gave up on this, which came with `id`. One that fails in its turn hands on
    /// what it was told about.
    pub(super) fn failed(self, function: &str, id: Option<Bytes>, reason: &str) -> Self {
        let (function, reason) = (function.to_owned(), reason.to_owned());
        let (mut functions, inner, payload) = match self {
            Self::Call(payload) => {
                return match id {
                    None => Self::Failed {
                        function,
                        payload,
                        reason,
                    },
                    Some(id) => Self::NamedFailed {
                        function,
                        id,
                        payload,
                        reason,
                    },
                };
            }
            Self::Failed {
                function, payload, ..
            } => (vec![function], None, payload),
            Self::NamedFailed {
                function,
                id,
                payload,
                ..
            } => (vec![function], Some(id), payload),
            Self::HandedOn {
                functions,
                id,
                payload,
                ..
            } => (functions, id, payload),
        };
        functions.push(function);
        Self::HandedOn {
            functions,
            id: id.or(inner),
            payload,
            reason,
        }
    }

    /// The event as its function sees it; `id` is its message's.
    pub(super) fn into_event(self, id: Option<Bytes>) -> Event {
        match self {
            Self::Call(payload) => Event::Call { id, payload },
            Self::Failed {
                function,
                payload,
                reason,
            } => Event::Failed {
                function,
                id: None,
                payload,
                reason,
            },
            Self::NamedFailed {
                function,
                id,
                payload,
                reason,
            } => Event::Failed {
                function,
                id: Some(id),
                payload,
                reason,
            },
            Self::HandedOn {
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

    /// Events wait in queues over an upgrade: what was written stays readable.
    #[test]
    fn what_earlier_builds_have_queued_is_read() {
        let bytes = b"\x02\x01f\x02id\x07payload\x06reason";
        let read = Envelope::decode(bytes).expect("it is read");
        assert_eq!(read.given_up_by(), ["f"]);
        assert_eq!(read.encode().expect("it is written"), &bytes[..]);
    }

    #[test]
    fn what_is_handed_on_says_who_gave_up_on_it() {
        let event = Envelope::Call("payload".into());
        let told = event
            .failed("f", Some("id".into()), "first")
            .failed("g", None, "second");
        let told = Envelope::decode(&told.encode().expect("it is written")).expect("it is read");
        assert_eq!(told.given_up_by(), ["f", "g"]);
        let Event::Failed {
            function,
            id,
            payload,
            reason,
        } = told.into_event(None)
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
