//! Refusals as problem documents (RFC 9457). The `type` is a bare name, which scripts compare.

mod conversions;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use transactions::model::Outcome;

/// The seconds to wait after a refusal that passes by itself.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// There is nothing at this path.
    NoSuchPath,
    /// The path does not take this method.
    MethodNotAllowed,
    /// The `Host` does not name this machine.
    UnknownHost,
    /// The `Origin` is another site.
    ForeignOrigin,
    /// The token is missing or wrong.
    Unauthorized,
    /// The request's body is longer than its route takes, or a limit of one transaction is reached.
    TooLarge,
    /// The server is starting or stopping.
    NotReady,
    /// The request is malformed.
    InvalidRequest,
    /// The request's body makes no progress.
    RequestTimedOut,
    /// The name of the transaction is reserved for the server.
    ReservedName,
    /// The key has no value.
    NoSuchKey,
    /// The transaction was never begun, or no record of its end is left.
    NoSuchTransaction,
    /// There is no queue of this name to send to.
    NoSuchQueue,
    /// There is no function of this name to run.
    NoSuchFunction,
    /// There is no application of this name.
    NoSuchApplication,
    /// The function has no such dead letter.
    NoSuchDeadLetter,
    /// The function of a request failed, or its result cannot be a response.
    FunctionFailed,
    /// The function of a request did not end in time.
    FunctionTimedOut,
    /// There is no workflow of this name.
    NoSuchWorkflow,
    /// The workflow has no run of this id.
    NoSuchRun,
    /// As many runs are in progress as may be.
    TooManyRuns,
    /// The step's attempt has ended.
    AttemptEnded,
    /// Only the code of a workflow's step may call this.
    OutsideOfRun,
    /// Another application has the function, or the application was changed meanwhile.
    DeploymentConflict,
    /// The transaction, or this attempt of it, has ended.
    TransactionFinished,
    /// The transaction began so long ago that its outcome is no longer known.
    Expired,
    /// Another transaction has written what the serializable one has read.
    Conflict,
    /// The versions that the serializable transaction reads are collected.
    SnapshotTooOld,
    /// No version of the key is consistent with what the transaction has read.
    NoValidVersion,
    /// As many transactions are open as may be.
    TooManyTransactions,
    /// The node has no memory left for bodies, or for buffered values.
    TooMuchBuffered,
    /// The commit is not decided yet, or not known to be durable.
    OutcomeUnknown,
    /// The node or its store cannot serve at the moment.
    Unavailable,
    /// The store is full.
    NoRoom,
    /// Stored bytes do not decode.
    Corrupt,
}

impl Kind {
    /// The status of a response.
    fn status(self) -> StatusCode {
        use StatusCode as S;
        match self {
            Self::NoSuchPath
            | Self::NoSuchKey
            | Self::NoSuchTransaction
            | Self::NoSuchQueue
            | Self::NoSuchFunction
            | Self::NoSuchApplication
            | Self::NoSuchDeadLetter
            | Self::NoSuchWorkflow
            | Self::NoSuchRun => S::NOT_FOUND,
            Self::MethodNotAllowed => S::METHOD_NOT_ALLOWED,
            Self::UnknownHost | Self::ForeignOrigin => S::FORBIDDEN,
            Self::Unauthorized => S::UNAUTHORIZED,
            Self::TooLarge => S::PAYLOAD_TOO_LARGE,
            Self::NotReady | Self::OutcomeUnknown | Self::Unavailable => S::SERVICE_UNAVAILABLE,
            Self::InvalidRequest | Self::ReservedName | Self::OutsideOfRun => S::BAD_REQUEST,
            Self::RequestTimedOut => S::REQUEST_TIMEOUT,
            Self::FunctionFailed => S::BAD_GATEWAY,
            Self::FunctionTimedOut => S::GATEWAY_TIMEOUT,
            Self::TooManyRuns | Self::TooManyTransactions | Self::TooMuchBuffered => {
                S::TOO_MANY_REQUESTS
            }
            Self::AttemptEnded
            | Self::DeploymentConflict
            | Self::TransactionFinished
            | Self::Expired
            | Self::Conflict
            | Self::SnapshotTooOld
            | Self::NoValidVersion => S::CONFLICT,
            Self::NoRoom => S::INSUFFICIENT_STORAGE,
            Self::Corrupt => S::INTERNAL_SERVER_ERROR,
        }
    }

    /// The `type` of a document.
    fn name(self) -> &'static str {
        match self {
            Self::NoSuchPath => "no-such-path",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::UnknownHost => "unknown-host",
            Self::ForeignOrigin => "foreign-origin",
            Self::Unauthorized => "unauthorized",
            Self::TooLarge => "too-large",
            Self::NotReady => "not-ready",
            Self::InvalidRequest => "invalid-request",
            Self::RequestTimedOut => "request-timed-out",
            Self::ReservedName => "reserved-name",
            Self::NoSuchKey => "no-such-key",
            Self::NoSuchTransaction => "no-such-transaction",
            Self::NoSuchQueue => "no-such-queue",
            Self::NoSuchFunction => "no-such-function",
            Self::NoSuchApplication => "no-such-application",
            Self::NoSuchDeadLetter => "no-such-dead-letter",
            Self::FunctionFailed => "function-failed",
            Self::FunctionTimedOut => "function-timed-out",
            Self::NoSuchWorkflow => "no-such-workflow",
            Self::NoSuchRun => "no-such-run",
            Self::TooManyRuns => "too-many-runs",
            Self::AttemptEnded => "attempt-ended",
            Self::OutsideOfRun => "outside-of-run",
            Self::DeploymentConflict => "deployment-conflict",
            Self::TransactionFinished => "transaction-finished",
            Self::Expired => "expired",
            Self::Conflict => "conflict",
            Self::SnapshotTooOld => "snapshot-too-old",
            Self::NoValidVersion => "no-valid-version",
            Self::TooManyTransactions => "too-many-transactions",
            Self::TooMuchBuffered => "too-much-buffered",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::Unavailable => "unavailable",
            Self::NoRoom => "no-room",
            Self::Corrupt => "corrupt",
        }
    }

    /// The `title` of a document.
    fn title(self) -> &'static str {
        match self {
            Self::NoSuchPath => "There is nothing at this path",
            Self::MethodNotAllowed => "This path does not take this method",
            Self::UnknownHost => "The Host header does not name this machine",
            Self::ForeignOrigin => "Requests from other sites are refused",
            Self::Unauthorized => "A bearer token is required",
            Self::TooLarge => "The request goes beyond a limit",
            Self::NotReady => "The server is not ready",
            Self::InvalidRequest => "The request is malformed",
            Self::RequestTimedOut => "The body makes no progress",
            Self::ReservedName => "The name is the server's own",
            Self::NoSuchKey => "The key has no value",
            Self::NoSuchTransaction => "The transaction is unknown",
            Self::NoSuchQueue => "There is no queue of this name",
            Self::NoSuchFunction => "There is no function of this name",
            Self::NoSuchApplication => "No application has this name",
            Self::NoSuchDeadLetter => "There is no such dead letter",
            Self::FunctionFailed => "The function failed",
            Self::FunctionTimedOut => "The function did not end in time",
            Self::NoSuchWorkflow => "There is no workflow of this name",
            Self::NoSuchRun => "The workflow has no run of this id",
            Self::TooManyRuns => "Too many runs are under way",
            Self::AttemptEnded => "The attempt of the step has ended",
            Self::OutsideOfRun => "This is for the code of a step",
            Self::DeploymentConflict => "This conflicts with the deployed functions",
            Self::TransactionFinished => "The transaction has ended",
            Self::Expired => "The transaction's outcome is no longer known",
            Self::Conflict => "Another transaction has written what this one read",
            Self::SnapshotTooOld => "The transaction's snapshot is too old",
            Self::NoValidVersion => "No version of the key is consistent with the reads",
            Self::TooManyTransactions => "Too many transactions are open",
            Self::TooMuchBuffered => "Too much is buffered",
            Self::OutcomeUnknown => "The outcome is not known yet",
            Self::Unavailable => "This is not served at the moment",
            Self::NoRoom => "The store is full",
            Self::Corrupt => "Stored data is damaged",
        }
    }
}

/// A problem document.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: Kind,
    detail: String,
    outcome: Option<Outcome>,
    id: Option<String>,
}

impl Problem {
    /// A refusal of `kind`; `detail` says what was wrong with this request and what would be right.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            outcome: None,
            id: None,
        }
    }

    /// The same with the id of the run that it is about.
    pub(crate) fn about(self, id: String) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// The detail.
    pub(crate) fn detail(&self) -> String {
        self.detail.clone()
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

impl Problem {
    /// Status and body.
    pub(crate) fn document(&self) -> (StatusCode, Vec<u8>) {
        let status = self.kind.status();
        let outcome = self.outcome.as_ref().map(ToString::to_string);
        let document = Document {
            r#type: self.kind.name(),
            title: self.kind.title(),
            status: status.as_u16(),
            detail: &self.detail,
            outcome,
            id: self.id.as_deref(),
        };
        (
            status,
            serde_json::to_vec(&document).expect("strings and a number always serialise"),
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, body) = self.document();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use transactions::Error;

    use super::*;

    /// Clients that are generated from the document expect no other names.
    #[test]
    fn the_document_names_every_problem_and_every_outcome() {
        let document: serde_json::Value =
            serde_json::from_str(crate::openapi::document()).expect("it is JSON");
        let properties = &document["components"]["schemas"]["Problem"]["properties"];
        let named = |property: &str| -> BTreeSet<String> {
            let names = properties[property]["enum"]
                .as_array()
                .expect("a list")
                .iter();
            names
                .map(|name| name.as_str().expect("a name").to_owned())
                .collect()
        };
        let names = include_str!("problem.rs")
            .split("fn name(")
            .nth(1)
            .and_then(|rest| rest.split("/// The `title`").next())
            .expect("the names are there");
        let written: BTreeSet<String> = names
            .split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        assert!(written.len() > 20, "{written:?}");
        assert_eq!(named("type"), written);
        let outcomes = [
            Outcome::Committing,
            Outcome::Committed,
            Outcome::Aborted,
            Outcome::Expired,
            Outcome::BegunAnew,
        ];
        assert_eq!(
            named("outcome"),
            outcomes.iter().map(ToString::to_string).collect()
        );
    }

    /// Clients that are generated from the document name their calls by these.
    #[test]
    fn each_operation_of_the_document_has_a_name_of_its_own() {
        let document: serde_json::Value =
            serde_json::from_str(crate::openapi::document()).expect("it is JSON");
        let paths = document["paths"].as_object().expect("paths").values();
        let operations = paths.flat_map(|methods| methods.as_object().expect("methods").values());
        let mut names: Vec<&str> = operations
            .filter_map(|call| call["operationId"].as_str())
            .collect();
        let count = names.len();
        assert!(count > 30, "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    /// T15. Clients decide by these names what to repeat, so each error keeps its own permanently.
    #[test]
    fn every_error_of_the_service_has_its_name_and_status() {
        for (error, status, name) in [
            (Error::Invalid("x"), 400, "invalid-request"),
            (Error::TooLarge("x"), 413, "too-large"),
            (Error::TooManyOpen, 429, "too-many-transactions"),
            (Error::TooMuchBuffered, 429, "too-much-buffered"),
            (Error::NoSuchTransaction, 404, "no-such-transaction"),
            (Error::NoSuchQueue, 404, "no-such-queue"),
            (Error::NoSuchFunction, 404, "no-such-function"),
            (
                Error::TransactionFinished(Outcome::Aborted),
                409,
                "transaction-finished",
            ),
            (Error::Conflict, 409, "conflict"),
            (Error::SnapshotTooOld, 409, "snapshot-too-old"),
            (Error::NoValidVersion, 409, "no-valid-version"),
            (Error::Expired, 409, "expired"),
            (Error::OutcomeUnknown, 503, "outcome-unknown"),
            (Error::Unavailable("x".into()), 503, "unavailable"),
            (Error::NoRoom, 507, "no-room"),
            (Error::Corrupt("x".into()), 500, "corrupt"),
        ] {
            let problem = Problem::from(error);
            let kind = problem.kind();
            assert_eq!((kind.status().as_u16(), kind.name()), (status, name));
            let response = problem.into_response();
            let passes_by_itself = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(passes_by_itself, matches!(status, 429 | 503), "{name}");
        }
    }
}
