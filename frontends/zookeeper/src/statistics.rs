//! Counters of the front end, for metrics and operators' commands.
//!
//! A connection counts in its own [`Tally`] and adds it here once per turn. So the hot path touches
//! no memory that cores share for each request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::jute::Operation;

const OPERATIONS: usize = Operation::ALL.len();

/// Counters of one server since its start. Each is exact, but they are not read at one moment.
#[derive(Debug, Default)]
pub struct Statistics {
    connections_accepted: AtomicU64,
    connections_closed: AtomicU64,
    connections_refused: AtomicU64,
    sessions_refused: AtomicU64,
    malformed: AtomicU64,
    requests: [AtomicU64; OPERATIONS],
    replies: AtomicU64,
    errors: AtomicU64,
    events: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
}

impl Statistics {
    /// Connections that are open.
    pub fn connections_open(&self) -> u64 {
        // Closed first: a connection that closes in between then counts as open, and the difference
        // never becomes negative.
        let closed = self.connections_closed.load(Relaxed);
        self.connections_accepted().saturating_sub(closed)
    }

    /// Connections accepted.
    pub fn connections_accepted(&self) -> u64 {
        self.connections_accepted.load(Relaxed)
    }

    /// Connections closed at once because too many were open.
    pub fn connections_refused(&self) -> u64 {
        self.connections_refused.load(Relaxed)
    }

    /// Connections that got no session.
    pub fn sessions_refused(&self) -> u64 {
        self.sessions_refused.load(Relaxed)
    }

    /// Connections closed and requests refused because of bytes that no client sends.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Relaxed)
    }

    /// Requests by operation.
    pub fn requests(&self) -> impl Iterator<Item = (Operation, u64)> + '_ {
        Operation::ALL
            .into_iter()
            .map(|operation| (operation, self.requests[operation.index()].load(Relaxed)))
    }

    /// Requests of every operation.
    pub fn requests_total(&self) -> u64 {
        self.requests().map(|(_, count)| count).sum()
    }

    /// Replies, including errors.
    pub fn replies(&self) -> u64 {
        self.replies.load(Relaxed)
    }

    /// Replies with an error.
    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Watch events.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Replies and events.
    pub fn packets_sent(&self) -> u64 {
        self.replies() + self.events()
    }

    /// Bytes that clients sent.
    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Relaxed)
    }

    /// Bytes sent to clients.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Relaxed)
    }

    pub(crate) fn connection_accepted(&self) {
        self.connections_accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections_closed.fetch_add(1, Relaxed);
    }

    pub(crate) fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn session_refused(&self) {
        self.sessions_refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn peer_malformed(&self) {
        self.malformed.fetch_add(1, Relaxed);
    }

    /// Adds a connection's counts and resets them.
    pub(crate) fn add(&self, tally: &mut Tally) {
        let Tally {
            requests,
            replies,
            errors,
            events,
            bytes_received,
            bytes_sent,
        } = std::mem::take(tally);
        for (total, count) in self.requests.iter().zip(requests) {
            if count > 0 {
                total.fetch_add(u64::from(count), Relaxed);
            }
        }
        for (total, count) in [
            (&self.replies, replies),
            (&self.errors, errors),
            (&self.events, events),
            (&self.bytes_received, bytes_received),
            (&self.bytes_sent, bytes_sent),
        ] {
            if count > 0 {
                total.fetch_add(count, Relaxed);
            }
        }
    }
}

/// Counts of one connection since it was last added.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: [u32; OPERATIONS],
    pub(crate) replies: u64,
    pub(crate) errors: u64,
    pub(crate) events: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}
