//! How long things may take, and how much there may be of them.

use std::time::Duration;

/// Larger values are refused here, before they are sent: a server refuses them by closing the connection.
pub(crate) const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longer messages and payloads are refused here likewise.
pub(crate) const EFFECT_BYTES_MAX: usize = 256 * 1024;
/// The most keys of one page.
pub(crate) const KEYS_MAX: usize = 1_000;
/// A longer answer is not read to its end.
pub(crate) const ANSWER_BYTES_MAX: usize = VALUE_BYTES_MAX + 64 * 1024;
/// Requests at once to one node; further ones wait. A server takes 256 connections in all.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// An older idle connection is closed instead of used: the server ends it after 10 s.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(5);
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// One call in all, repeats and pauses included, unless the caller says otherwise.
pub(crate) const CALL_MAX_DEFAULT: Duration = Duration::from_secs(30);

const REPLY_MAX: Duration = Duration::from_secs(10);
const ABORT_MAX: Duration = Duration::from_secs(2);
/// What one client does at a time without anybody waiting for it: a server has no more open transactions to end.
pub(crate) const ASIDE_MAX: usize = 10_000;
/// How long each of them may take in all, with its waits for a connection and its repeats. A server ends an idle transaction by itself.
pub(crate) const ASIDE_CALL_MAX: Duration = Duration::from_secs(10);
/// The slowest line that a large body is given time for.
const BYTES_PER_MILLISECOND_MIN: u64 = 1024;

/// How long one call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In all, repeats and pauses included; an answer that has begun by then is read to its end (`pace.rs`).
    pub(crate) call: Duration,
    /// Until a reply begins. A server answers a commit within 8 s, if only to say that it does not know yet.
    pub(crate) reply: Duration,
}

impl Limits {
    pub(crate) fn of_calls(call: Duration) -> Self {
        Self {
            call,
            reply: REPLY_MAX,
        }
    }

    /// Telling the server to forget an attempt: a courtesy, since it would time out by itself.
    pub(crate) fn of_aborts() -> Self {
        Self {
            call: ABORT_MAX,
            reply: ABORT_MAX,
        }
    }

    /// What nobody waits for.
    pub(crate) fn of_aside() -> Self {
        Self {
            call: ASIDE_CALL_MAX,
            reply: ASIDE_CALL_MAX,
        }
    }

    /// The same with the time that a large body needs on a slow line.
    pub(crate) fn for_body(self, body_bytes: usize) -> Self {
        let extra = Duration::from_millis(body_bytes as u64 / BYTES_PER_MILLISECOND_MIN);
        Self {
            call: self.call.saturating_add(extra),
            reply: self.reply + extra,
        }
    }
}
