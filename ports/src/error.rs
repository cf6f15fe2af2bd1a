//! One error type for every port; its kind says what the caller does next.
//!
//! Expected answers (a condition that did not hold, an item that is not there) are values, never errors.

use std::{borrow::Cow, error::Error as StdError, fmt};

/// What every port method returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller does next. A kind is added only when some caller would act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing changed. Wait as hinted, then try again.
    #[error("unavailable")]
    Unavailable {
        /// How long the provider asks callers to wait, if it knows.
        retry_after_ms: Option<u32>,
    },
    /// The answer was lost and the change may have happened. Read, or repeat with the same operation id.
    #[error("outcome unknown")]
    OutcomeUnknown,
    /// Nothing changed and trying again cannot help: malformed, too large, not allowed.
    #[error("invalid request")]
    Invalid,
    /// Nothing changed: there is no room left. Reads go on; writes succeed again once room is made.
    #[error("no room left")]
    NoRoom,
    /// The durability point belongs to an earlier start of the store and lies beyond what that start left
    /// behind: what it stood for is gone (rule P3).
    #[error("lost in a restart")]
    Lost,
    /// Stored bytes do not decode. Stop using this item and report it.
    #[error("corrupt data")]
    Corrupt,
}

/// What was attempted, on what, how it ended and why.
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

    /// [`ErrorKind::Invalid`]: trying again cannot help.
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

    /// The same error with what caused it.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller does next.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether trying the same call again may help.
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
