//! Why the service refuses a call.

use ports::runtime::Refused;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no function of this name.
    #[error("there is no function {0:?}")]
    NoSuchFunction(String),
    /// There is no application of this name.
    #[error("there is no application {0:?}")]
    NoSuchApplication(String),
    /// There is no queue of this name.
    #[error(
        "there is no queue {0:?}: a queue is created by the deployment of a function that it starts"
    )]
    NoSuchQueue(String),
    /// The function has no dead letter with this id.
    #[error(
        "there is no dead letter {0:?}: it was sent again or removed, or never existed; list the dead letters to see the present ones"
    )]
    NoSuchDeadLetter(String),
    /// The input cannot be deployed or called.
    #[error("{0}")]
    Invalid(String),
    /// The input is longer than this many bytes.
    #[error("{0} bytes at most")]
    TooLarge(usize),
    /// Another application has a function of this name, or the application changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The invocation did not run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A port failed.
    #[error(transparent)]
    Port(#[from] ports::Error),
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
