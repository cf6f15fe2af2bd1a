//! What one client did and was shown, in the order it happened to it.

use coordination::model::{Output, Request, SessionId};

/// One thing that happened to a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    /// It was connected to this session.
    Connected(SessionId),
    /// It asked; the tag comes back with the reply.
    Asked(i32, Request),
    /// It was answered or notified.
    Shown(Output),
    /// Its connection ended; unanswered requests may or may not have happened.
    Disconnected,
    /// It learned that its session had ended.
    Expired(SessionId),
}

/// What happened to one client.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Who, for messages.
    pub client: usize,
    /// What, in order.
    pub moments: Vec<Moment>,
}

impl History {
    /// The stretches between connecting and disconnecting.
    pub fn connections(&self) -> Vec<&[Moment]> {
        self.moments
            .split(|moment| matches!(moment, Moment::Disconnected))
            .collect()
    }

    /// How many requests were answered.
    pub fn answered(&self) -> usize {
        self.moments
            .iter()
            .filter(|moment| matches!(moment, Moment::Shown(Output::Reply { .. })))
            .count()
    }
}
