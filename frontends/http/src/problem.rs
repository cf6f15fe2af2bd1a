//! Refusals as problem documents (RFC 9457). The `type` is a bare name, which scripts compare.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

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
    /// The request's body is longer than any route takes.
    TooLarge,
    /// The server is starting or stopping.
    NotReady,
}

impl Kind {
    /// The `type`, the status and the title.
    fn parts(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::NoSuchPath => ("no-such-path", StatusCode::NOT_FOUND, "There is nothing at this path"),
            Self::MethodNotAllowed => {
                ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "This path does not take this method")
            }
            Self::UnknownHost => {
                ("unknown-host", StatusCode::FORBIDDEN, "The Host header does not name this machine")
            }
            Self::ForeignOrigin => {
                ("foreign-origin", StatusCode::FORBIDDEN, "Requests from other sites are refused")
            }
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED, "A bearer token is required"),
            Self::TooLarge => ("too-large", StatusCode::PAYLOAD_TOO_LARGE, "The request's body is too large"),
            Self::NotReady => ("not-ready", StatusCode::SERVICE_UNAVAILABLE, "The server is not ready"),
        }
    }
}

/// A problem document.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: Kind,
    detail: String,
}

impl Problem {
    /// A refusal of `kind`; `detail` says what was wrong with this request and what would be right.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, status, title) = self.kind.parts();
        let document = Document { r#type: name, title, status: status.as_u16(), detail: &self.detail };
        let body = serde_json::to_vec(&document).expect("strings and a number always serialise");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.kind == Kind::TooLarge {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
