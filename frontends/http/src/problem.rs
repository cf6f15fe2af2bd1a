//! Refusals as problem documents (RFC 9457). The `type` is a bare name, which scripts compare.

mod conversions;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use files::Errno;
use serde::Serialize;
use transactions::model::Outcome;

/// The seconds to wait after a refusal that passes by itself.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why a request was refused. Its name in kebab-case is the `type` of the document, and
/// [`Kind::status_and_title`] explains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    NoSuchPath,
    MethodNotAllowed,
    UnknownHost,
    ForeignOrigin,
    Unauthorized,
    TooLarge,
    NotReady,
    InvalidRequest,
    RequestTimedOut,
    ReservedName,
    NoSuchKey,
    ConditionNotMet,
    NoSuchTransaction,
    NoSuchQueue,
    NoSuchFunction,
    NoSuchApplication,
    NoSuchDeadLetter,
    NoSuchVolume,
    VolumeExists,
    VolumeInUse,
    NoSuchSnapshot,
    NoSuchFile,
    FileConflict,
    RangeNotSatisfiable,
    QuotaExceeded,
    FunctionFailed,
    FunctionTimedOut,
    NoSuchWorkflow,
    NoSuchRun,
    TooManyRuns,
    RunInputDiffers,
    AttemptEnded,
    OutsideOfRun,
    DeploymentConflict,
    TransactionFinished,
    Expired,
    Conflict,
    SnapshotTooOld,
    NoValidVersion,
    TooManyTransactions,
    TooMuchBuffered,
    OutcomeUnknown,
    ServerStopped,
    Unavailable,
    NoRoom,
    Corrupt,
}

impl Kind {
    /// The status of a response, and the `title` of its document.
    fn status_and_title(self) -> (u16, &'static str) {
        match self {
            Self::NoSuchPath => (404, "There is nothing at this path"),
            Self::MethodNotAllowed => (405, "This path does not take this method"),
            Self::UnknownHost => (403, "The Host header does not name this machine"),
            Self::ForeignOrigin => (403, "Requests from other sites are refused"),
            Self::Unauthorized => (401, "A bearer token is required"),
            Self::TooLarge => (413, "The request goes beyond a limit"),
            Self::NotReady => (503, "The server is not ready"),
            Self::InvalidRequest => (400, "The request is malformed"),
            Self::RequestTimedOut => (408, "The body makes no progress"),
            Self::ReservedName => (400, "The name is the server's own"),
            Self::ConditionNotMet => (412, "The condition of the write does not hold"),
            Self::NoSuchKey => (404, "The key has no value"),
            Self::NoSuchTransaction => (404, "The transaction is unknown"),
            Self::NoSuchQueue => (404, "There is no queue of this name"),
            Self::NoSuchFunction => (404, "There is no function of this name"),
            Self::NoSuchApplication => (404, "No application has this name"),
            Self::NoSuchDeadLetter => (404, "There is no such dead letter"),
            Self::NoSuchVolume => (404, "There is no volume of this name"),
            Self::VolumeExists => (409, "There is a volume of this name already"),
            Self::VolumeInUse => (409, "A clone still reads from the volume"),
            Self::NoSuchSnapshot => (404, "The volume has no snapshot of this name"),
            Self::NoSuchFile => (404, "There is no file or directory at this path"),
            Self::FileConflict => (409, "The files at this path do not allow this"),
            Self::RangeNotSatisfiable => (416, "The file does not have these bytes"),
            Self::QuotaExceeded => (507, "The quota of the volume is used up"),
            Self::FunctionFailed => (500, "The function failed"),
            Self::FunctionTimedOut => (504, "The function did not end in time"),
            Self::NoSuchWorkflow => (404, "There is no workflow of this name"),
            Self::NoSuchRun => (404, "The workflow has no run of this id"),
            Self::TooManyRuns => (429, "Too many runs are under way"),
            Self::RunInputDiffers => (409, "The run has begun with another input"),
            Self::AttemptEnded => (409, "The attempt of the step has ended"),
            Self::OutsideOfRun => (400, "This is for the code of a step"),
            Self::DeploymentConflict => (409, "This conflicts with the deployed functions"),
            Self::TransactionFinished => (409, "The transaction has ended"),
            Self::Expired => (409, "The transaction's outcome is no longer known"),
            Self::Conflict => (409, "Another transaction has written what this one read"),
            Self::SnapshotTooOld => (409, "The transaction's snapshot is too old"),
            Self::NoValidVersion => (409, "No version of the key is consistent with the reads"),
            Self::TooManyTransactions => (429, "Too many transactions are open"),
            Self::TooMuchBuffered => (429, "Too much is buffered"),
            Self::OutcomeUnknown => (503, "The outcome is not known yet"),
            Self::ServerStopped => (503, "The server stopped before this had ended"),
            Self::Unavailable => (503, "This is not served at the moment"),
            Self::NoRoom => (507, "The store is full"),
            Self::Corrupt => (500, "Stored data is damaged"),
        }
    }

    fn status(self) -> StatusCode {
        StatusCode::from_u16(self.status_and_title().0).expect("the statuses above are valid")
    }
}

/// A problem document, less the members that follow from its kind.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    pub(crate) detail: String,
    outcome: Option<Outcome>,
    /// The run that it is about.
    id: Option<String>,
    /// The error in POSIX's terms, of a call on files.
    code: Option<Errno>,
    /// The methods that the path takes, if it does not take the request's.
    allow: Option<HeaderValue>,
}

impl Problem {
    /// A refusal of `kind`; `detail` says what was wrong with this request and what would be right.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            outcome: None,
            id: None,
            code: None,
            allow: None,
        }
    }

    /// A refusal of a method where functions are deployed for these `methods`.
    pub(crate) fn other_methods(methods: &str) -> Self {
        let why = format!("functions are deployed here for {methods} only");
        let allow = HeaderValue::try_from(methods).expect("methods are letters");
        Self {
            allow: Some(allow),
            ..Self::new(Kind::MethodNotAllowed, why)
        }
    }

    /// A refusal of a malformed request.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }

    /// The same refusal of another kind.
    pub(crate) fn but(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The response below a route. Its member `message` is the one that API Gateway sends with the
    /// status: clients of APIs there look for it.
    pub(crate) fn into_gateway_response(self) -> Response {
        let message = self.kind.status().canonical_reason();
        self.response(message)
    }

    fn response(self, message: Option<&str>) -> Response {
        let (status, title) = self.kind.status_and_title();
        let document = Json(Document {
            r#type: self.kind,
            title,
            status,
            detail: &self.detail,
            message,
            outcome: self.outcome.map(|outcome| outcome.to_string()),
            id: self.id.as_deref(),
            code: self.code.map(|errno| format!("{errno:?}")),
        });
        let mut response = (self.kind.status(), document).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.extend(self.allow.map(|methods| (header::ALLOW, methods)));
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, 429 | 503) {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: Kind,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response(None)
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
        let kinds = include_str!("problem.rs")
            .split("enum Kind {")
            .nth(1)
            .and_then(|rest| rest.split('}').next())
            .expect("the kinds are there");
        let in_kebab_case = |kind: &str| {
            let mut name = String::new();
            for letter in kind.chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('-');
                }
                name.extend(letter.to_lowercase());
            }
            name
        };
        let kinds = kinds.split(',').map(str::trim);
        let written: BTreeSet<String> = kinds
            .filter(|kind| !kind.is_empty())
            .map(in_kebab_case)
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
            (Error::NoSuchVolume, 404, "no-such-volume"),
            (Error::VolumeExists, 409, "volume-exists"),
            (Error::VolumeInUse, 409, "volume-in-use"),
            (Error::NoRoom, 507, "no-room"),
            (Error::Corrupt("x".into()), 500, "corrupt"),
        ] {
            let problem = Problem::from(error);
            let kind = problem.kind();
            let named = serde_json::to_value(kind).expect("a name");
            assert_eq!((kind.status_and_title().0, &named), (status, &name.into()));
            let response = problem.into_response();
            let passes_by_itself = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(passes_by_itself, matches!(status, 429 | 503), "{name}");
        }
    }
}
