//! Refusals as problem documents (RFC 9457). The `type` is a bare name, which scripts compare.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use transactions::{Error, model::Outcome};

/// When to come back after a refusal that passes by itself, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// There is nothing at this path.
    NoSuchPath,
    /// The path does not take this method.
    MethodNotAllowed,
    /// The request is of another version of HTTP than 1.1.
    HttpVersionNotSupported,
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
    /// The request's body does not get on.
    RequestTimedOut,
    /// The name of the transaction is one of those that the server gives itself.
    ReservedName,
    /// The key has no value.
    NoSuchKey,
    /// The transaction was never begun, or nothing is known of its end.
    NoSuchTransaction,
    /// There is no queue of this name to send to.
    NoSuchQueue,
    /// There is no function of this name to run.
    NoSuchFunction,
    /// There is no application of this name.
    NoSuchApplication,
    /// The function has no such dead letter.
    NoSuchDeadLetter,
    /// The function that a request was for failed, or what it answered cannot be an answer.
    FunctionFailed,
    /// The function that a request was for did not end in time.
    FunctionTimedOut,
    /// There is no workflow of this name.
    NoSuchWorkflow,
    /// The workflow has no run of this id.
    NoSuchRun,
    /// As many runs are under way as may be.
    TooManyRuns,
    /// The attempt of a step that asks has ended.
    AttemptEnded,
    /// What is asked for is for the code of a workflow's step.
    OutsideOfRun,
    /// Another application has the function, or the application was changed meanwhile.
    DeploymentConflict,
    /// The transaction, or this attempt of it, has ended.
    TransactionFinished,
    /// The transaction began so long ago that its outcome is no longer known.
    Expired,
    /// Somebody has written what the serializable transaction has read.
    Conflict,
    /// What the serializable transaction reads is collected.
    SnapshotTooOld,
    /// No version of the key goes with what the transaction has read.
    NoValidVersion,
    /// As many transactions are open as the node bears.
    TooManyTransactions,
    /// The node has no memory left for bodies, or for values not written yet.
    TooMuchBuffered,
    /// The commit is not decided yet, or not known to be durable.
    OutcomeUnknown,
    /// The node or its store cannot serve now.
    Unavailable,
    /// The store is full.
    NoRoom,
    /// What is stored does not decode.
    Corrupt,
}

impl Kind {
    /// The status, the `type` and the title.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::NoSuchPath => (
                S::NOT_FOUND,
                "no-such-path",
                "There is nothing at this path",
            ),
            Self::MethodNotAllowed => (
                S::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "This path does not take this method",
            ),
            Self::HttpVersionNotSupported => (
                S::HTTP_VERSION_NOT_SUPPORTED,
                "http-version-not-supported",
                "This is HTTP/1.1",
            ),
            Self::UnknownHost => (
                S::FORBIDDEN,
                "unknown-host",
                "The Host header does not name this machine",
            ),
            Self::ForeignOrigin => (
                S::FORBIDDEN,
                "foreign-origin",
                "Requests from other sites are refused",
            ),
            Self::Unauthorized => (
                S::UNAUTHORIZED,
                "unauthorized",
                "A bearer token is required",
            ),
            Self::TooLarge => (
                S::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request goes beyond a limit",
            ),
            Self::NotReady => (
                S::SERVICE_UNAVAILABLE,
                "not-ready",
                "The server is not ready",
            ),
            Self::InvalidRequest => (
                S::BAD_REQUEST,
                "invalid-request",
                "The request is malformed",
            ),
            Self::RequestTimedOut => (
                S::REQUEST_TIMEOUT,
                "request-timed-out",
                "The body does not get on",
            ),
            Self::ReservedName => (
                S::BAD_REQUEST,
                "reserved-name",
                "The name is the server's own",
            ),
            Self::NoSuchKey => (S::NOT_FOUND, "no-such-key", "The key has no value"),
            Self::NoSuchTransaction => (
                S::NOT_FOUND,
                "no-such-transaction",
                "It was never begun, or has left nothing",
            ),
            Self::NoSuchQueue => (
                S::NOT_FOUND,
                "no-such-queue",
                "There is no queue of this name",
            ),
            Self::NoSuchFunction => (
                S::NOT_FOUND,
                "no-such-function",
                "There is no function of this name",
            ),
            Self::NoSuchApplication => (
                S::NOT_FOUND,
                "no-such-application",
                "No application has this name",
            ),
            Self::NoSuchDeadLetter => (
                S::NOT_FOUND,
                "no-such-dead-letter",
                "There is no such dead letter",
            ),
            Self::FunctionFailed => (S::BAD_GATEWAY, "function-failed", "The function failed"),
            Self::FunctionTimedOut => (
                S::GATEWAY_TIMEOUT,
                "function-timed-out",
                "The function did not end in time",
            ),
            Self::NoSuchWorkflow => (
                S::NOT_FOUND,
                "no-such-workflow",
                "There is no workflow of this name",
            ),
            Self::NoSuchRun => (
                S::NOT_FOUND,
                "no-such-run",
                "The workflow has no run of this id",
            ),
            Self::TooManyRuns => (
                S::TOO_MANY_REQUESTS,
                "too-many-runs",
                "Too many runs are under way",
            ),
            Self::AttemptEnded => (
                S::CONFLICT,
                "attempt-ended",
                "The attempt of the step has ended",
            ),
            Self::OutsideOfRun => (
                S::BAD_REQUEST,
                "outside-of-run",
                "This is for the code of a step",
            ),
            Self::DeploymentConflict => (
                S::CONFLICT,
                "deployment-conflict",
                "This does not go with what is deployed",
            ),
            Self::TransactionFinished => (
                S::CONFLICT,
                "transaction-finished",
                "The transaction has ended",
            ),
            Self::Expired => (
                S::CONFLICT,
                "expired",
                "The transaction's outcome is no longer known",
            ),
            Self::Conflict => (
                S::CONFLICT,
                "conflict",
                "What was read was written by another",
            ),
            Self::SnapshotTooOld => (
                S::CONFLICT,
                "snapshot-too-old",
                "What the transaction reads is too old",
            ),
            Self::NoValidVersion => (
                S::CONFLICT,
                "no-valid-version",
                "No version of the key goes with what was read",
            ),
            Self::TooManyTransactions => (
                S::TOO_MANY_REQUESTS,
                "too-many-transactions",
                "Too many transactions are open",
            ),
            Self::TooMuchBuffered => (
                S::TOO_MANY_REQUESTS,
                "too-much-buffered",
                "Too much is buffered",
            ),
            Self::OutcomeUnknown => (
                S::SERVICE_UNAVAILABLE,
                "outcome-unknown",
                "The outcome is not known yet",
            ),
            Self::Unavailable => (
                S::SERVICE_UNAVAILABLE,
                "unavailable",
                "This is not served at the moment",
            ),
            Self::NoRoom => (S::INSUFFICIENT_STORAGE, "no-room", "The store is full"),
            Self::Corrupt => (
                S::INTERNAL_SERVER_ERROR,
                "corrupt",
                "What is stored is damaged",
            ),
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

    /// The same about the run of this id.
    pub(crate) fn about(self, id: String) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// What was wrong.
    pub(crate) fn detail(&self) -> String {
        self.detail.clone()
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Invalid(_) => Kind::InvalidRequest,
            Error::TooLarge(_) => Kind::TooLarge,
            Error::TooManyOpen => Kind::TooManyTransactions,
            Error::TooMuchBuffered => Kind::TooMuchBuffered,
            Error::NoSuchTransaction => Kind::NoSuchTransaction,
            Error::NoSuchQueue => Kind::NoSuchQueue,
            Error::NoSuchFunction => Kind::NoSuchFunction,
            Error::TransactionFinished(_) => Kind::TransactionFinished,
            Error::Conflict => Kind::Conflict,
            Error::SnapshotTooOld => Kind::SnapshotTooOld,
            Error::NoValidVersion => Kind::NoValidVersion,
            Error::Expired => Kind::Expired,
            Error::OutcomeUnknown => Kind::OutcomeUnknown,
            Error::NoRoom => Kind::NoRoom,
            Error::Corrupt(why) => {
                tracing::error!(%why, "http: a call found damage in the store");
                Kind::Corrupt
            }
            // An error that this front end does not know yet is one that it cannot serve.
            _ => Kind::Unavailable,
        };
        let outcome = match &error {
            Error::TransactionFinished(outcome) => Some(*outcome),
            _ => None,
        };
        Self {
            outcome,
            ..Self::new(kind, error.to_string())
        }
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
        let (status, name, title) = self.kind.parts();
        let outcome = self.outcome.as_ref().map(ToString::to_string);
        let document = Document {
            r#type: name,
            title,
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

    use super::*;

    /// Programs are made from the document: what it does not name they do not expect.
    #[test]
    fn the_document_names_every_problem_and_every_outcome() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("openapi.json")).expect("it is JSON");
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
        let parts = include_str!("problem.rs")
            .split("fn parts")
            .nth(1)
            .expect("the names are there");
        let parts = parts
            .split("/// A problem document.")
            .next()
            .expect("their end");
        let written: BTreeSet<String> = parts
            .split("(S::")
            .skip(1)
            .filter_map(|part| part.split('"').nth(1))
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

    /// Programs that are made from the document name their calls by these.
    #[test]
    fn each_operation_of_the_document_has_a_name_of_its_own() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("openapi.json")).expect("it is JSON");
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

    /// T15. What a program may repeat it tells by these names, so each error has its own, for good.
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
            let (code, named, _) = problem.kind().parts();
            assert_eq!((code.as_u16(), named), (status, name));
            let response = problem.into_response();
            let passes_by_itself = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(passes_by_itself, matches!(status, 429 | 503), "{name}");
        }
    }
}
