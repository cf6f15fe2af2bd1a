//! The history of one client: its requests and its outputs, in order.

use coordination::model::{Output, Request, SessionId};

/// One event in a client's history.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    /// It connected to this session.
    Connected(SessionId),
    /// It sent a request; the reply carries the same tag.
    Asked(i32, Request),
    /// It received a reply or a notification.
    Shown(Output),
    /// Its connection ended; requests without a reply may or may not have been executed.
    Disconnected,
    /// It learned that its session had ended.
    Expired(SessionId),
}

/// The history of one client.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The client, for messages.
    pub client: usize,
    /// Its events, in order.
    pub moments: Vec<Moment>,
}

impl History {
    /// The events between each connect and disconnect.
    pub fn connections(&self) -> Vec<&[Moment]> {
        self.moments
            .split(|moment| matches!(moment, Moment::Disconnected))
            .collect()
    }

    /// The number of answered requests.
    pub fn answered(&self) -> usize {
        self.moments
            .iter()
            .filter(|moment| matches!(moment, Moment::Shown(Output::Reply { .. })))
            .count()
    }
}
