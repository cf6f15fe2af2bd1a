//! What failed, by what is known of its effects; and why a store could not be opened.

use std::fmt;

use ports::Error;
use redis::{RedisError, ServerErrorKind};

/// How a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It never left: nothing changed.
    NotSent(RedisError),
    /// It may have been executed: the connection broke, or the answer did not come in time.
    Unanswered(RedisError),
    /// The server said no. Scripts check everything before their first write, so nothing changed.
    Refused(RedisError),
    /// It is larger than what one command may carry: nothing was sent.
    TooLarge(usize),
    /// An answer that no script of ours gives.
    Garbled(String),
}

/// Whether a call that got no answer may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Changes,
}

impl Failure {
    /// The code of the server's refusal.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error.code(),
            _ => None,
        }
    }

    pub(crate) fn is_no_script(&self) -> bool {
        self.is_server(ServerErrorKind::NoScript)
    }

    pub(crate) fn is_server(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Refused(error) if error.kind() == redis::ErrorKind::Server(kind))
    }

    /// The same failure of what comes before a command that was then never sent.
    pub(crate) fn before_sending(self) -> Self {
        match self {
            Self::Unanswered(error) => Self::NotSent(error),
            other => other,
        }
    }

    /// As the port says it; `attempted` reads like `update "a/b"`.
    pub(crate) fn into_error(self, effect: Effect, attempted: impl fmt::Display) -> Error {
        let attempted = format!("{attempted} in redis");
        match self {
            Self::NotSent(error) => Error::unavailable(attempted).caused_by(error),
            Self::Unanswered(error) if effect == Effect::Reads => {
                Error::unavailable(attempted).caused_by(error)
            }
            Self::Unanswered(error) => {
                Error::new(ports::ErrorKind::OutcomeUnknown, attempted).caused_by(error)
            }
            Self::Refused(error) => Error::new(refusal(&error), attempted).caused_by(error),
            Self::TooLarge(bytes) => {
                Error::invalid(attempted).caused_by(format!("{bytes} bytes at once"))
            }
            Self::Garbled(answer) => Error::corrupt(attempted).caused_by(answer),
        }
    }
}

fn refusal(error: &RedisError) -> ports::ErrorKind {
    match error.code() {
        Some("OOM" | "MISCONF") => ports::ErrorKind::NoRoom,
        Some("WRONGTYPE") => ports::ErrorKind::Corrupt,
        Some("LANDFASTNOQUEUE" | "NOPERM") => ports::ErrorKind::Invalid,
        _ if error.detail().is_some_and(is_forbidden_within) => ports::ErrorKind::Invalid,
        _ => ports::ErrorKind::Unavailable {
            retry_after_ms: None,
        },
    }
}

/// Whether a script of ours met what its user may not do, which Redis 7.0 gives no code of its own.
fn is_forbidden_within(detail: &str) -> bool {
    detail.contains("user executing the script can't") || detail.contains("ACL failure in script")
}

/// Why [`Redis::open`](crate::Redis::open) refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration contradicts itself or cannot be read.
    #[error("{0}")]
    Configuration(String),
    /// No server answered, or one did not let us in.
    #[error("{attempted}: {reason}")]
    Unreachable {
        /// What was attempted.
        attempted: String,
        /// What came of it.
        reason: String,
    },
    /// The server is too old, or set up so that it cannot keep what was asked for.
    #[error("the server at {server} cannot keep what is asked of it: {reason}")]
    Unfit {
        /// Its address.
        server: String,
        /// What is wrong and what to change.
        reason: String,
    },
    /// A later release wrote the store.
    #[error(
        "the store has format {found} and this release reads up to {supported}; a later Landfast can read it"
    )]
    NewerFormat {
        /// The format found.
        found: u64,
        /// The newest one this release reads.
        supported: u64,
    },
}

impl OpenError {
    pub(crate) fn unreachable(attempted: impl Into<String>) -> impl FnOnce(Failure) -> Self {
        let attempted = attempted.into();
        move |failure| {
            let reason = match failure {
                Failure::NotSent(error) | Failure::Unanswered(error) | Failure::Refused(error) => {
                    error.to_string()
                }
                Failure::TooLarge(bytes) => format!("{bytes} bytes at once"),
                Failure::Garbled(answer) => answer,
            };
            Self::Unreachable { attempted, reason }
        }
    }
}
