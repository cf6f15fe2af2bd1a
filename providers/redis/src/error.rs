//! Errors: how a command failed and what is known of its effects, and why a store could not be
//! opened.

use std::fmt;

use ports::Error;
use redis::{RedisError, ServerErrorKind};

/// How a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command was not sent: nothing changed.
    NotSent(RedisError),
    /// The command may have been executed: the connection broke, or the reply did not arrive in
    /// time.
    NoReply(RedisError),
    /// The server refused the command. Scripts check everything before their first write, so
    /// nothing changed.
    Refused(RedisError),
    /// The command exceeds the size limit and was not sent.
    TooLarge(usize),
    /// A reply that none of our scripts gives.
    UnexpectedReply(String),
}

/// Whether a call without a reply may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Changes,
}

impl Failure {
    /// The error code of the server's refusal.
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

    /// Converts the failure of a preparing command: the main command was not sent.
    pub(crate) fn before_sending(self) -> Self {
        match self {
            Self::NoReply(error) => Self::NotSent(error),
            other => other,
        }
    }

    /// Converts the failure to the port's error. `attempted` reads like `update "a/b"`.
    pub(crate) fn into_error(self, effect: Effect, attempted: impl fmt::Display) -> Error {
        let attempted = format!("{attempted} in redis");
        match self {
            Self::NotSent(error) => Error::unavailable(attempted).caused_by(error),
            Self::NoReply(error) if effect == Effect::Reads => {
                Error::unavailable(attempted).caused_by(error)
            }
            Self::NoReply(error) => {
                Error::new(ports::ErrorKind::OutcomeUnknown, attempted).caused_by(error)
            }
            Self::Refused(error) => Error::new(refusal(&error), attempted).caused_by(error),
            Self::TooLarge(bytes) => {
                Error::invalid(attempted).caused_by(format!("{bytes} bytes at once"))
            }
            Self::UnexpectedReply(answer) => Error::corrupt(attempted).caused_by(answer),
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

/// Whether one of our scripts called a command that its user may not run. Redis 7.0 has no error
/// code for this.
fn is_forbidden_within(detail: &str) -> bool {
    detail.contains("user executing the script can't") || detail.contains("ACL failure in script")
}

/// Why [`Redis::open`](crate::Redis::open) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration contradicts itself or cannot be parsed.
    #[error("{0}")]
    Configuration(String),
    /// The server refused the login, or a command that the user may not run. No repeat helps.
    #[error("{attempted}: {reason}")]
    NotAdmitted {
        /// The attempted step.
        attempted: String,
        /// What the server asks for.
        reason: String,
    },
    /// No server answered.
    #[error("{attempted}: {reason}")]
    Unreachable {
        /// The attempted step.
        attempted: String,
        /// The reason of the failure.
        reason: String,
    },
    /// The server is too old, or its settings cannot guarantee what was asked for.
    #[error("the server at {server} is unsuitable: {reason}")]
    Unfit {
        /// Its address.
        server: String,
        /// The reason, and the setting to change.
        reason: String,
    },
    /// A later release wrote the store.
    #[error(
        "the store has format {found} and this release reads up to {supported}; a later Landfast can read it"
    )]
    NewerFormat {
        /// The format found.
        found: u64,
        /// The newest format that this release reads.
        supported: u64,
    },
}

/// Why the server admits no command of this user; none: it failed for another reason.
fn lacks_admission(error: &RedisError) -> Option<String> {
    let refused = "the server refuses the user or the password of the URL";
    let reason = match error.code() {
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => refused,
        Some("WRONGPASS") => refused,
        Some("NOAUTH") => {
            "the server asks for a password: give it as redis://:PASSWORD@HOST:PORT or redis://USER:PASSWORD@HOST:PORT"
        }
        Some("NOPERM") => return Some(format!("the server does not let this user do so: {error}")),
        _ => return None,
    };
    Some(reason.to_owned())
}

impl OpenError {
    pub(crate) fn unreachable(attempted: impl Into<String>) -> impl FnOnce(Failure) -> Self {
        let attempted = attempted.into();
        move |failure| {
            let reason = match failure {
                Failure::NotSent(error) | Failure::NoReply(error) | Failure::Refused(error) => {
                    if let Some(reason) = lacks_admission(&error) {
                        return Self::NotAdmitted { attempted, reason };
                    }
                    error.to_string()
                }
                Failure::TooLarge(bytes) => format!("{bytes} bytes at once"),
                Failure::UnexpectedReply(answer) => answer,
            };
            Self::Unreachable { attempted, reason }
        }
    }
}
