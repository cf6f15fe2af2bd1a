//! Why a call was refused, by what its caller does next.

use ports::ErrorKind;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no workflow of this name.
    #[error("there is no workflow {0:?}")]
    NoSuchWorkflow(String),
    /// The workflow has no run of this id, or none any more.
    #[error("the workflow has no run {0:?}")]
    NoSuchRun(String),
    /// What was given makes no sense; it says what would.
    #[error("{0}")]
    Invalid(String),
    /// It is longer than it may be.
    #[error("{0}")]
    TooLarge(String),
    /// As many runs are under way as may be.
    #[error("as many runs are under way as may be: try again later")]
    TooManyRuns,
    /// The attempt of a step that asks has ended: another may be under way.
    #[error("this attempt of a step has ended, and what it asks for is refused")]
    AttemptEnded,
    /// The run has ended already.
    #[error("the run has ended")]
    RunEnded,
    /// A store cannot serve this.
    #[error(transparent)]
    Port(#[from] ports::Error),
    /// Transactions cannot serve this.
    #[error(transparent)]
    State(#[from] transactions::Error),
}

/// What a call came to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the run is to be taken up again from what is at rest.
    pub(crate) fn means_anew(&self) -> bool {
        match self {
            Self::AttemptEnded => true,
            Self::Port(error) => error.kind() == ErrorKind::Lost,
            Self::State(error) => matches!(error, transactions::Error::TransactionFinished(_)),
            _ => false,
        }
    }

    /// The same, for somebody else who waited for what has failed with it.
    pub(crate) fn again(&self) -> ports::Error {
        match self {
            Self::Port(error) => ports::Error::new(error.kind(), error.to_string()),
            error => ports::Error::unavailable(error.to_string()),
        }
    }

    /// Whether this will not be taken, however often it is asked.
    pub(crate) fn is_refusal(&self) -> bool {
        use transactions::Error as E;
        match self {
            Self::Port(error) => !self.passes() && error.kind() != ErrorKind::Lost,
            Self::State(error) => {
                matches!(
                    error,
                    E::Invalid(_) | E::TooLarge(_) | E::NoSuchQueue | E::NoSuchFunction | E::Corrupt(_)
                )
            }
            Self::Invalid(_) | Self::TooLarge(_) => true,
            _ => false,
        }
    }

    /// Whether the same may succeed a moment later, without anybody's doing.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Port(error) => error.is_retryable() || matches!(error.kind(), ErrorKind::NoRoom),
            Self::State(error) => matches!(
                error,
                transactions::Error::Unavailable(_)
                    | transactions::Error::OutcomeUnknown
                    | transactions::Error::TooManyOpen
                    | transactions::Error::TooMuchBuffered
                    | transactions::Error::NoRoom
            ),
            _ => false,
        }
    }
}
