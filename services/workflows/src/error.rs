//! Errors by the caller's next step.

use ports::ErrorKind;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No workflow of this name is deployed.
    #[error("there is no workflow {0:?}")]
    NoSuchWorkflow(String),
    /// The workflow has no run of this id, or has it no longer.
    #[error("the workflow has no run {0:?}")]
    NoSuchRun(String),
    /// The call is malformed; the message says what is allowed.
    #[error("{0}")]
    Invalid(String),
    /// The call exceeds a size limit, which the message names.
    #[error("{0}")]
    TooLarge(String),
    /// A run of this id has begun with another input.
    #[error(
        "the run {0:?} has begun with another input: begin with the same input to find that run, or begin another run under an \
         id of its own"
    )]
    InputDiffers(String),
    /// The limit of active runs is reached.
    #[error("as many runs are under way as may be: try again later")]
    TooManyRuns,
    /// The calling attempt of a step has ended; another one may be active.
    #[error("this attempt of a step has ended, and what it asks for is refused")]
    AttemptEnded,
    /// The run has ended.
    #[error("the run has ended")]
    RunEnded,
    /// The far store permanently refuses writes that the response depends on. The caller is not at
    /// fault.
    #[error(
        "the far store refuses what was written to it, so nothing that rests on that is shown: {0}. \
         Put the far store right, then start the server again, which sends what was refused once more"
    )]
    Refused(ports::Error),
    /// The far store at this place is the near store, so no run begins there.
    #[error(
        "the far store {0} is the server's own `--store`, so no run begins there: leave `far` out, or give \
         `--store` a `?namespace=` of its own, or `far` another database (`/3`), and deploy again"
    )]
    FarIsNear(String),
    /// The call has taken effect, or may have, and the outcome of the run is unknown.
    #[error("{state}: {why}")]
    OutcomeUnknown {
        /// The id of the run.
        run: String,
        /// The state of the run, and the next step of the caller.
        state: String,
        /// Why the outcome is unknown.
        why: String,
    },
    /// The server stopped while the caller waited for this run.
    #[error(
        "the server stopped before the run {0:?} had ended: the run continues after the next start, or on another server of the \
         same store; ask for it by this id"
    )]
    Stopped(String),
    /// A store failed.
    #[error(transparent)]
    Port(#[from] ports::Error),
    /// Transactions failed.
    #[error(transparent)]
    State(#[from] transactions::Error),
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A key or value that a far store would refuse.
    pub(crate) fn too_long(what: &str, bytes: usize, most: usize) -> Self {
        let most = format!("{most} bytes at most, as the far store takes them");
        Self::TooLarge(format!("a {what} has {most}, and this one {bytes}"))
    }

    /// Whether this process must stop executing the run. The run is resumed from its rows, here or
    /// elsewhere.
    pub(crate) fn ends_execution(&self) -> bool {
        match self {
            Self::AttemptEnded => true,
            Self::Port(error) => error.kind() == ErrorKind::Lost,
            Self::State(error) => matches!(error, transactions::Error::TransactionFinished(_)),
            _ => false,
        }
    }

    /// The same error as a caller sees it. A call is checked before it reaches a store. So a store
    /// that finds it invalid refuses this server, and not the caller.
    pub(crate) fn for_caller(self) -> Self {
        match self {
            Self::Port(error) if error.kind() == ErrorKind::Invalid => Self::Refused(error),
            error => error,
        }
    }

    /// Whether a change that failed with this error may have happened.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Port(error) => error.kind() == ErrorKind::OutcomeUnknown,
            _ => false,
        }
    }

    /// The error of a call that has changed `run`, or may have. `state` names the state of the run,
    /// and the next step of the caller.
    pub(crate) fn with_unknown_outcome(self, run: &str, state: String) -> Self {
        let is_unknown = match &self {
            Self::Refused(_) => true,
            Self::Port(error) => error.is_retryable() || error.kind() == ErrorKind::Lost,
            _ => false,
        };
        if !is_unknown {
            return self;
        }
        let why = self.to_string();
        let run = run.to_owned();
        Self::OutcomeUnknown { run, state, why }
    }

    /// The same error for another caller that waited for the same call.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Port(error) => ports::Error::new(error.kind(), error.to_string()).into(),
            Self::FarIsNear(place) => Self::FarIsNear(place.clone()),
            error => ports::Error::unavailable(error.to_string()).into(),
        }
    }

    /// Whether every retry would be refused, too.
    pub(crate) fn is_permanent(&self) -> bool {
        use transactions::Error as E;
        match self {
            Self::Port(error) => !self.is_transient() && error.kind() != ErrorKind::Lost,
            Self::State(error) => match error {
                E::Invalid(_) | E::TooLarge(_) | E::Corrupt(_) => true,
                error => matches!(error, E::NoSuchQueue | E::NoSuchFunction),
            },
            _ => matches!(self, Self::Invalid(_) | Self::TooLarge(_)),
        }
    }

    /// Whether a retry may succeed without any intervention.
    pub(crate) fn is_transient(&self) -> bool {
        use transactions::Error as E;
        match self {
            Self::Port(error) => error.is_retryable() || error.kind() == ErrorKind::NoRoom,
            Self::State(error) => match error {
                E::Unavailable(_) | E::OutcomeUnknown | E::NoRoom => true,
                error => matches!(error, E::TooManyOpen | E::TooMuchBuffered),
            },
            _ => false,
        }
    }
}
