//! The forms of responses that several routes share.

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;

use crate::problem::{Kind, Problem};

/// The result of a route.
pub(crate) type Answer = Result<Response, Problem>;

/// A response in JSON.
pub(crate) fn json(body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}

/// The value as it is. Errors: there is none.
pub(crate) fn value(found: Option<Bytes>) -> Answer {
    let value =
        found.ok_or_else(|| Problem::new(Kind::NoSuchKey, "it was never written, or deleted"))?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], value).into_response())
}
