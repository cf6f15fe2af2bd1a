//! The forms of responses that several routes share.

use axum::{
    Json,
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Serialize;

use crate::problem::{Kind, Problem};

/// The result of a route.
pub(crate) type Answer = Result<Response, Problem>;

/// A response in JSON.
pub(crate) fn json(value: &impl Serialize) -> Response {
    Json(value).into_response()
}

/// The same for a text that is JSON.
pub(crate) fn json_text(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}

/// The response to a request that took effect and has no result.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// The value as it is. Errors: there is none.
pub(crate) fn value(found: Option<Bytes>) -> Answer {
    let value =
        found.ok_or_else(|| Problem::new(Kind::NoSuchKey, "it was never written, or deleted"))?;
    Ok(bytes(value))
}

pub(crate) fn bytes(bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
}
