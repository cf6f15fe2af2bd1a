//! Events on their way to a function, as its event queue carries them.

use bytes::Bytes;
use ports::{Error, Result, functions::Event};
use serde::{Deserialize, Serialize};

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Envelope {
    /// An event sent by somebody.
    Call(Bytes),
    /// An event that another function gave up on.
    Failed { function: String, payload: Bytes, reason: String },
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

    /// What its last recipient could not handle.
    pub(super) fn payload(&self) -> &Bytes {
        match self {
            Self::Call(payload) | Self::Failed { payload, .. } => payload,
        }
    }

    pub(super) fn into_event(self) -> Event {
        match self {
            Self::Call(payload) => Event::Call(payload),
            Self::Failed { function, payload, reason } => Event::Failed { function, payload, reason },
        }
    }
}
