//! The errors of Landfast, and the caller's next step for each.

use std::{fmt, time::Duration};

use serde_json::Value;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, by the caller's next step. Most are the `type` of the server's problem
/// document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction committed a write of a key that this one had read. Nothing was written.
    Conflict,
    /// No version of the key is compatible with the transaction's earlier reads. This differs from
    /// an absent key.
    NoValidVersion,
    /// The server no longer keeps the versions of the transaction's snapshot.
    SnapshotTooOld,
    /// The server knows no transaction of this id: it never began, or was aborted and forgotten.
    NoSuchTransaction,
    /// The key has another value than the condition of the write says, or none. Nothing changed.
    ConditionNotMet,
    /// There is no queue of this name, so nothing can be sent to it.
    NoSuchQueue,
    /// There is no function of this name, so it cannot be invoked.
    NoSuchFunction,
    /// The attempt has ended.
    TransactionFinished(Outcome),
    /// The id has committed before: its effects are there, and the body need not run.
    AlreadyCommitted,
    /// The id is older than the server's record: it may have committed, or not.
    Expired,
    /// The client did not learn in time whether the change took effect. For a transaction, ask
    /// again by its id.
    OutcomeUnknown,
    /// No node responded in time, or none could serve.
    Unavailable,
    /// The node's clock is too far ahead to assign timestamps.
    ClockAhead,
    /// The node has reached its bound on open transactions.
    TooManyTransactions,
    /// The node has no capacity for more bytes in flight.
    TooMuchBuffered,
    /// The store is full.
    NoRoom,
    /// Stored data does not decode.
    Corrupt,
    /// The value is too large, or the transaction writes too many keys or bytes. Nothing changed.
    TooLarge,
    /// The key, the id, the address or another argument is not acceptable. Nothing changed.
    InvalidRequest,
    /// A serializable transaction stays within the keyspaces of one sequencer.
    SeveralSequencers,
    /// No workflow of this name is deployed.
    NoSuchWorkflow,
    /// The workflow has no such run, or none any more.
    NoSuchRun,
    /// Only the code of a workflow's step may send this request, but other code sent it.
    OutsideOfRun,
    /// The attempt of the workflow step that sent the request has ended.
    AttemptEnded,
    /// The server has reached its bound on runs in progress.
    TooManyRuns,
    /// The server does not accept this request from here: token, host, origin or path.
    Refused,
    /// The response is not one of Landfast's. Is another program listening there?
    UnexpectedAnswer,
}

/// The end of an attempt that takes no more calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Without effect.
    Aborted,
    /// After 60 s without a call, or 15 min in all; without effect.
    Expired,
    /// Another begin of the same id replaced this attempt, which is without effect.
    BegunAnew,
    /// It took effect.
    Committed,
    /// An outcome that this client does not know.
    Other,
}

impl Outcome {
    const NAMES: [(&str, Self); 4] = [
        ("aborted", Self::Aborted),
        ("expired", Self::Expired),
        ("begun-anew", Self::BegunAnew),
        ("committed", Self::Committed),
    ];

    pub(crate) fn named(name: Option<&str>) -> Self {
        let named = Self::NAMES.iter().find(|(of, _)| Some(*of) == name);
        named.map_or(Self::Other, |(_, outcome)| *outcome)
    }

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, outcome)| *outcome == self);
        named.map_or("not known to this client", |(name, _)| name)
    }
}

impl ErrorKind {
    /// Whether the attempt is over once one of its calls received this error.
    pub(crate) fn ends_attempt(self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::NoSuchTransaction
                | Self::TransactionFinished(_)
                | Self::AlreadyCommitted
                | Self::Expired
        )
    }

    /// Whether the attempt ended without effect, so that its body may be run again under the same id.
    fn lets_the_body_run_again(self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::NoValidVersion
                | Self::SnapshotTooOld
                | Self::NoSuchTransaction
                | Self::TransactionFinished(Outcome::Aborted)
                | Self::Unavailable
                | Self::ClockAhead
        )
    }

    /// The caller's next step, in a sentence.
    fn advice(self) -> &'static str {
        match self {
            Self::Conflict | Self::TransactionFinished(Outcome::Aborted) => {
                "Nothing was written; run the body again, as transact does."
            }
            Self::NoValidVersion => {
                "This does not mean that the key is absent; run the body again, as transact does."
            }
            Self::SnapshotTooOld => {
                "Run the body again, as transact does; read what you need sooner after the begin."
            }
            Self::NoSuchTransaction => "Nothing of it was written; begin again.",
            Self::ConditionNotMet => "Nothing was written; read the key, and decide anew.",
            Self::NoSuchQueue | Self::NoSuchFunction => "Make it first, or correct its name.",
            Self::TransactionFinished(Outcome::Expired) => {
                "A transaction ends after 60 s without a call and after 15 min in all; do less in one."
            }
            Self::TransactionFinished(Outcome::BegunAnew) => {
                "Another caller began the same id again, and this attempt was dropped; leave it to them."
            }
            Self::TransactionFinished(Outcome::Committed) => {
                "What it wrote is there; begin another transaction."
            }
            Self::TransactionFinished(Outcome::Other) => "Read the keys to find out.",
            Self::AlreadyCommitted => {
                "Its effects are there once; skip the body, as transact does."
            }
            Self::Expired => {
                "It can no longer be said whether it committed; read the keys to find out."
            }
            Self::OutcomeUnknown => {
                "It may have taken effect; repeat it with the same id, which does no harm (within ten minutes, unless you chose the id), or read."
            }
            Self::Unavailable => {
                "Try again later; is `landfast serve` running where the client looks for it?"
            }
            Self::ClockAhead => "Set the clock of that node; others can serve meanwhile.",
            Self::TooManyTransactions => {
                "Try again later; commit or abort transactions that are not needed."
            }
            Self::TooMuchBuffered => "Try again later, or write less at once.",
            Self::NoRoom => "Free or add storage.",
            Self::Corrupt => "Stop using this key, look into the server's log, and report it.",
            Self::TooLarge => "Split it over several keys or transactions.",
            Self::InvalidRequest => "Keys have at most 1,024 bytes, ids 1 to 128.",
            Self::NoSuchWorkflow => "`landfast workflows list` shows what is deployed.",
            Self::NoSuchRun => {
                "Runs are kept for a week after their end; `landfast workflows list` shows them."
            }
            Self::OutsideOfRun => "Ask for it in the code of a workflow's step.",
            Self::AttemptEnded => "Nothing that it asks for counts any more.",
            Self::TooManyRuns => "Try again later.",
            Self::SeveralSequencers => "Use one transaction per group of keyspaces.",
            Self::Refused => {
                "Check the address and the token, and that server and client are of the same version."
            }
            Self::UnexpectedAnswer => "Check that the address is that of a Landfast server.",
        }
    }
}

/// Any error of Landfast: the operation, its object, the cause, and the next step.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    details: Box<Details>,
}

/// Boxed apart from the kind, so that a result stays small.
#[derive(Debug, Clone, Default)]
struct Details {
    what: String,
    detail: String,
    problem: Option<String>,
    status: Option<u16>,
    retry_after: Option<Duration>,
    transaction: Option<String>,
    may_have_happened: bool,
    body_may_run_again: bool,
    /// The result that was kept with an earlier commit of the id.
    kept: Option<Value>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>, detail: impl Into<String>) -> Self {
        let details = Details {
            what: what.into(),
            detail: detail.into(),
            body_may_run_again: kind.lets_the_body_run_again(),
            ..Details::default()
        };
        Self {
            kind,
            details: Box::new(details),
        }
    }

    pub(crate) fn of_transaction(mut self, id: Option<&str>) -> Self {
        self.details.transaction = id.map(str::to_owned);
        self
    }

    pub(crate) fn answered(
        mut self,
        status: u16,
        problem: Option<String>,
        retry_after: Option<Duration>,
    ) -> Self {
        self.details.status = Some(status);
        self.details.problem = problem;
        self.details.retry_after = retry_after;
        self
    }

    pub(crate) fn with_kept(mut self, result: Option<Value>) -> Self {
        self.details.kept = result;
        self
    }

    pub(crate) fn take_kept(&mut self) -> Option<Value> {
        self.details.kept.take()
    }

    pub(crate) fn that_may_have_happened(mut self, may_have_happened: bool) -> Self {
        self.details.may_have_happened = may_have_happened;
        self
    }

    pub(crate) fn with_body_again(mut self, may_run_again: bool) -> Self {
        self.details.body_may_run_again = may_run_again;
        self
    }

    /// The same error, except that it leaves open whether the call took effect.
    pub(crate) fn into_unknown(mut self) -> Self {
        self.kind = ErrorKind::OutcomeUnknown;
        self.details.body_may_run_again = false;
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The `type` of the server's problem document, if the server refused the call.
    pub fn problem(&self) -> Option<&str> {
        self.details.problem.as_deref()
    }

    /// The status of the server's response, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.details.status
    }

    /// How long the server asked the client to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.details.retry_after
    }

    /// The id of the transaction that failed.
    pub fn transaction(&self) -> Option<&str> {
        self.details.transaction.as_deref()
    }

    /// Whether the call may have taken effect despite the error, now or a moment later.
    pub fn may_have_happened(&self) -> bool {
        self.details.may_have_happened
    }

    /// Whether the attempt ended without effect, so that its body may be run again under the same id.
    pub fn body_may_run_again(&self) -> bool {
        self.details.body_may_run_again
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.details.what)?;
        let detail = self.details.detail.trim_end_matches('.');
        for said in [self.problem().unwrap_or_default(), detail] {
            if !said.is_empty() {
                write!(formatter, ": {said}")?;
            }
        }
        if let ErrorKind::TransactionFinished(outcome) = self.kind {
            write!(formatter, " (outcome: {})", outcome.name())?;
        }
        write!(formatter, ". {}", self.kind.advice())
    }
}

impl std::error::Error for Error {}
