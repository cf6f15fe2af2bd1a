//! Events on their way to a function, as its event queue carries them. The id of a call travels as its message's
//! deduplication id: so a repeat within the window is no second event. A failure carries it inside, since events of two
//! functions may have one id and fail to one handler.

use bytes::Bytes;
use ports::{Error, Result, functions::Event};
use serde::{Deserialize, Serialize};

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Envelope {
    /// An event sent by somebody.
    Call(Bytes),
    /// An event without an id that another function gave up on.
    Failed { function: String, payload: Bytes, reason: String },
    /// The same with one.
    NamedFailed { function: String, id: Bytes, payload: Bytes, reason: String },
}

impl Envelope {
    pub(super) fn encode(&self) -> Result<Bytes> {
        let encoded =
            postcard::to_stdvec(self).map_err(|error| Error::invalid("encode an event").caused_by(error))?;
        Ok(Bytes::from(encoded))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        postcard::from_bytes(bytes).map_err(|error| Error::corrupt("decode an event").caused_by(error))
    }

    /// What tells an exception handler that `function` gave up on this, which came with `id`.
    pub(super) fn failed(self, function: &str, id: Option<Bytes>, reason: &str) -> Self {
        // A handler that fails in its turn hands on what it was told about, as before ids.
        let (inner, payload) = match self {
            Self::Call(payload) | Self::Failed { payload, .. } => (None, payload),
            Self::NamedFailed { id, payload, .. } => (Some(id), payload),
        };
        let (function, reason) = (function.to_owned(), reason.to_owned());
        match id.or(inner) {
            None => Self::Failed { function, payload, reason },
            Some(id) => Self::NamedFailed { function, id, payload, reason },
        }
    }

    /// The event as its function sees it; `id` is its message's.
    pub(super) fn into_event(self, id: Option<Bytes>) -> Event {
        match self {
            Self::Call(payload) => Event::Call { id, payload },
            Self::Failed { function, payload, reason } => {
                Event::Failed { function, id: None, payload, reason }
            }
            Self::NamedFailed { function, id, payload, reason } => {
                Event::Failed { function, id: Some(id), payload, reason }
            }
        }
    }
}
