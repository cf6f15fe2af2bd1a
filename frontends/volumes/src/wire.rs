//! The codec: requests, answers and errors, without I/O.
//!
//! A connection begins with a [`Hello`] and a [`Welcome`] of a fixed layout, so that builds of all
//! versions understand a refusal. Then frames follow, whose bodies are records of [`FORMAT`]. A
//! change of any of them raises [`VERSION`].
//!
//! Decoding checks the bounds of each key, name and list of a request. A decoded message takes a
//! bounded multiple of its bytes.

pub mod answer;
pub mod fault;
pub mod hello;
mod list;
pub mod request;

use primitives::RecordFormat;
use transactions::Error;

pub use self::{
    answer::Answer,
    fault::Fault,
    hello::{Hello, Refusal, SessionKey, Welcome},
    list::List,
    request::{Call, Request, SentProposal, VolumeNumber},
};

/// The version of the protocol. Both sides have the same.
pub const VERSION: u16 = 2;

/// The format of all messages.
pub const FORMAT: RecordFormat = RecordFormat::new(VERSION as u8);

/// Decodes a request. Errors: `Invalid`.
pub fn decode_request(body: &[u8]) -> Result<Request, Error> {
    let request = FORMAT.decode(body, "a request");
    request.map_err(|_| Error::Invalid("the request does not decode, or is out of bounds"))
}

/// Decodes an answer. Errors: `Unavailable`, because the server is of another build.
pub fn decode_answer(body: &[u8]) -> Result<Answer, Error> {
    let answer = FORMAT.decode(body, "an answer");
    answer.map_err(|error: ports::Error| Error::Unavailable(error.to_string().into()))
}
