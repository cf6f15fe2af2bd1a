//! One error type for every port. Its kind tells the caller what to do next.
//!
//! Expected answers (a condition that did not hold, a missing item) are values, never errors.

use std::{borrow::Cow, error::Error as StdError, fmt};

/// The result of every port method.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The caller's next step. Add a kind only when some caller would act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing changed. Wait as hinted, then try again.
    #[error("unavailable")]
    Unavailable {
        /// How long the provider asks callers to wait, if it knows.
        retry_after_ms: Option<u32>,
    },
    /// The response was lost and the change may have happened. Read, or repeat with the same
    /// operation id.
    #[error("outcome unknown")]
    OutcomeUnknown,
    /// Nothing changed, and a retry cannot help: malformed, too large, not allowed.
    #[error("invalid request")]
    Invalid,
    /// Nothing changed: the store is full. Reads continue, and writes succeed again once there is
    /// room.
    #[error("no room left")]
    NoRoom,
    /// The durability point belongs to an earlier start of the store, and that start's durable data
    /// does not include it (rule P3).
    #[error("lost in a restart")]
    Lost,
    /// Stored bytes do not decode. Stop using this item and report it.
    #[error("corrupt data")]
    Corrupt,
}

/// The operation, its object, the error's kind and its cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    attempted: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `attempted` reads like `update "sessions/0x2a" in redis`.
    pub fn new(kind: ErrorKind, attempted: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            attempted: attempted.into(),
            source: None,
        }
    }

    /// [`ErrorKind::Invalid`]: a retry cannot help.
    pub fn invalid(attempted: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, attempted)
    }

    /// [`ErrorKind::Corrupt`]: stored bytes do not decode.
    pub fn corrupt(attempted: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, attempted)
    }

    /// [`ErrorKind::Unavailable`] without a hint of how long to wait.
    pub fn unavailable(attempted: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            ErrorKind::Unavailable {
                retry_after_ms: None,
            },
            attempted,
        )
    }

    /// Adds the cause.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The caller's next step.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether a retry of the same call may help.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unavailable { .. } | ErrorKind::OutcomeUnknown | ErrorKind::NoRoom
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempted, self.kind)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn StdError + 'static))
    }
}
