//! Counters of the front end, for metrics and operators' commands.
//!
//! A connection counts in its own [`Tally`] and adds it here once per turn. So the hot path touches
//! no memory that cores share for each request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::latency::{LastReply, Latency};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Relaxed);
        }
    }
}

/// Counters of one server since its start. Each is exact, but they are not read at one moment.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Accepted connections that are closed.
    pub connections_closed: Counter,
    /// Connections closed at once because too many were open.
    pub connections_refused: Counter,
    /// Connections that got no session.
    pub sessions_refused: Counter,
    /// Connections closed and requests refused because of bytes that no client sends.
    pub malformed: Counter,
    /// Requests of every operation.
    pub requests: Counter,
    /// Replies and watch events.
    pub packets_sent: Counter,
    /// Bytes that clients sent.
    pub bytes_received: Counter,
    /// Bytes sent to clients.
    pub bytes_sent: Counter,
    requests_before: AtomicU64,
    packets_before: AtomicU64,
}

impl Statistics {
    /// Connections that are open.
    pub fn connections_open(&self) -> u64 {
        // Closed first: a connection that closes in between then counts as open, and the difference
        // never becomes negative.
        let closed = self.connections_closed.get();
        self.connections_accepted.get().saturating_sub(closed)
    }

    /// The requests since [`Statistics::start_again`].
    pub(crate) fn received_again(&self) -> u64 {
        let before = self.requests_before.load(Relaxed);
        self.requests.get().saturating_sub(before)
    }

    /// The replies and events since [`Statistics::start_again`].
    pub(crate) fn sent_again(&self) -> u64 {
        let before = self.packets_before.load(Relaxed);
        self.packets_sent.get().saturating_sub(before)
    }

    /// Lets the commands for operators count requests and replies from zero. The counters
    /// themselves only grow.
    pub(crate) fn start_again(&self) {
        self.requests_before.store(self.requests.get(), Relaxed);
        self.packets_before.store(self.packets_sent.get(), Relaxed);
    }

    /// Adds a connection's counts and resets them.
    pub(crate) fn add(&self, tally: &mut Tally) {
        let counted = std::mem::take(tally);
        self.requests.add(counted.requests);
        self.packets_sent.add(counted.packets_sent);
        self.bytes_received.add(counted.bytes_received);
        self.bytes_sent.add(counted.bytes_sent);
    }
}

/// Counts of one connection since it was last added.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) packets_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) latency: Latency,
    pub(crate) last: Option<LastReply>,
}
