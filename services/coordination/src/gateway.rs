//! The client library: sessions of this process, their requests, replies and watches, in order.

use std::time::Duration;

use crate::{
    error::{ConnectError, Ended},
    model::{Connect, Output, Password, Request, SessionId, Zxid},
};

/// One process's view of the tree; makes clients.
#[derive(Debug)]
pub struct Gateway {}

impl Gateway {
    /// Opens or resumes a session.
    pub async fn connect(&self, _connect: Connect) -> Result<Client, ConnectError> {
        todo!()
    }

    /// The last zxid applied here.
    pub fn applied(&self) -> Zxid {
        todo!()
    }
}

/// One connection to one session. Dropping it without [`Request::Close`] leaves the session to its timeout.
///
/// A front end loops: [`Client::pump`], write the outputs, then wait for whichever comes first: bytes of
/// the peer, which become [`Client::submit`] calls, or [`Client::wait`].
#[derive(Debug)]
pub struct Client {}

impl Client {
    /// The session.
    pub fn session(&self) -> SessionId {
        todo!()
    }

    /// Its password.
    pub fn password(&self) -> Password {
        todo!()
    }

    /// The timeout granted.
    pub fn timeout(&self) -> Duration {
        todo!()
    }

    /// Whether another request may be submitted now; if not, stop reading from the peer (back-pressure).
    pub fn has_room(&self) -> bool {
        todo!()
    }

    /// Takes the next request; `tag` comes back with its reply. Does no I/O.
    pub fn submit(&mut self, _tag: i32, _request: Request) {
        todo!()
    }

    /// Sends what was submitted, runs the reads that may run, and appends every output that is ready, in
    /// order. Does not wait for anything but stores. Not cancellation safe: run it to its end.
    pub async fn pump(&mut self, _outputs: &mut Vec<Output>) -> Result<(), Ended> {
        todo!()
    }

    /// Returns once [`Client::pump`] has something to do. Cancellation safe.
    pub async fn wait(&mut self) {
        todo!()
    }
}
