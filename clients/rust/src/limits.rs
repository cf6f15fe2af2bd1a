//! Bounds on durations, sizes and counts.

use std::time::Duration;

/// The client refuses larger values before it sends them: a server refuses them by closing the
/// connection.
pub(crate) const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The client refuses longer messages and payloads likewise.
pub(crate) const EFFECT_BYTES_MAX: usize = 256 * 1024;
/// The longest result that is kept with a commit, in JSON.
pub(crate) const RESULT_BYTES_MAX: usize = 64 * 1024;
/// The most keys of one page.
pub(crate) const KEYS_MAX: usize = 1_000;
/// A longer response is not read to its end.
pub(crate) const ANSWER_BYTES_MAX: usize = VALUE_BYTES_MAX + 64 * 1024;
/// Concurrent requests to one node; further ones wait. A server takes 256 connections in all.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// An older idle connection is closed instead of used: the server ends it after 10 s.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(5);
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// One call in all, repeats and pauses included, unless the caller sets another bound.
pub(crate) const CALL_MAX_DEFAULT: Duration = Duration::from_secs(30);

const REPLY_MAX: Duration = Duration::from_secs(10);
const ABORT_MAX: Duration = Duration::from_secs(2);
/// Concurrent background tasks of one client: no server has more open transactions that could need
/// an abort.
pub(crate) const ASIDE_MAX: usize = 10_000;
/// How long each of them may take in all, including its waits for a connection and its repeats. A
/// server ends an idle transaction by itself.
pub(crate) const ASIDE_CALL_MAX: Duration = Duration::from_secs(10);
/// The slowest line that the time for a large body allows for.
const BYTES_PER_MILLISECOND_MIN: u64 = 1024;

/// How long one call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In all, repeats and pauses included; a response that has begun by then is read to its end
    /// (`pace.rs`).
    pub(crate) call: Duration,
    /// Until a response begins. A server answers a call within 8 s, a commit if only to say that
    /// the outcome is still unknown.
    pub(crate) reply: Duration,
}

impl Limits {
    /// Bounds of an abort, which is a courtesy: the attempt would time out by itself.
    pub(crate) const OF_ABORTS: Self = Self::all(ABORT_MAX);
    /// Bounds of background work.
    pub(crate) const OF_ASIDE: Self = Self::all(ASIDE_CALL_MAX);

    const fn all(most: Duration) -> Self {
        Self {
            call: most,
            reply: most,
        }
    }

    pub(crate) fn of_calls(call: Duration) -> Self {
        Self {
            call,
            reply: REPLY_MAX,
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
