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
    /// The far store refuses for good what the answer rests on, which is no fault of whoever asks.
    #[error(
        "the far store refuses what was written to it, so nothing that rests on that is shown: {0}. \
         Put the far store right, then start the server again, which sends what was refused once more"
    )]
    Refused(ports::Error),
    /// The far store at this place is the near one, and so nothing begins there.
    #[error(
        "the far store {0} is the server's own `--store`, so no run begins there: leave `far` out, or give \
         `--store` a `?namespace=` of its own, or `far` another database, such as {example}, and deploy again",
        example = another_database(.0)
    )]
    FarIsNear(String),
    /// What was asked for took effect, or may have, and what became of the run cannot be said.
    #[error("{said}: {why}")]
    Unseen {
        /// The run that it is about.
        run: String,
        /// What has happened to it, and what to do next.
        said: String,
        /// Why no more is known.
        why: String,
    },
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
    /// What a far store would refuse.
    pub(crate) fn too_long(what: &str, bytes: usize, most: usize) -> Self {
        let taken = "as the far store takes them";
        Self::TooLarge(format!(
            "a {what} has {most} bytes at most, {taken}, and this one {bytes}"
        ))
    }

    /// Whether the run is to be taken up again from what is at rest.
    pub(crate) fn means_anew(&self) -> bool {
        match self {
            Self::AttemptEnded => true,
            Self::Port(error) => error.kind() == ErrorKind::Lost,
            Self::State(error) => matches!(error, transactions::Error::TransactionFinished(_)),
            _ => false,
        }
    }

    /// The same as a caller is told it. A call is looked through before any store is asked: what a store refuses then, it refuses
    /// to this server.
    pub(crate) fn told(self) -> Self {
        match self {
            Self::Port(error) if error.kind() == ErrorKind::Invalid => Self::Refused(error),
            error => error,
        }
    }

    /// Whether a change that ended with this may have been made.
    pub(crate) fn leaves_in_doubt(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Port(error) => error.kind() == ErrorKind::OutcomeUnknown,
            _ => false,
        }
    }

    /// The same of a call that took effect on `run`, or may have: `said` is what has happened, and what to do next.
    pub(crate) fn unseen(self, run: &str, said: String) -> Self {
        let is_unseen = match &self {
            Self::Refused(_) => true,
            Self::Port(error) => error.is_retryable() || error.kind() == ErrorKind::Lost,
            _ => false,
        };
        if is_unseen {
            Self::Unseen {
                run: run.to_owned(),
                said,
                why: self.to_string(),
            }
        } else {
            self
        }
    }

    /// The same, for somebody else who waited for what has failed with it.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Port(error) => ports::Error::new(error.kind(), error.to_string()).into(),
            Self::FarIsNear(place) => Self::FarIsNear(place.clone()),
            error => ports::Error::unavailable(error.to_string()).into(),
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
                    E::Invalid(_)
                        | E::TooLarge(_)
                        | E::NoSuchQueue
                        | E::NoSuchFunction
                        | E::Corrupt(_)
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

/// A database of the same server that is another one than that of `place`.
fn another_database(place: &str) -> String {
    let (scheme, rest) = place.split_once("://").unwrap_or(("redis", place));
    let host = rest.split_once('/').map_or(rest, |(host, _)| host);
    let database = if rest.ends_with("/3") { 4 } else { 3 };
    format!("{scheme}://{host}/{database}")
}
