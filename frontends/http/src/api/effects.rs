//! The routes of effects: messages and invocations that are sent once their transaction has
//! committed.
//!
//! A client may number its effects (`Landfast-Effect`, from zero). It may then repeat a call whose
//! response was lost, and the repeat changes nothing.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::IntoResponse,
    routing::post,
};
use bytes::Bytes;
use transactions::Effect;

use super::transactions::call;
use crate::{
    backend::Backend,
    body::{self, Whole},
    headers,
    problem::{Kind, Problem},
    request::{EFFECT_BYTES_MAX, json_or_empty, refuse_query, text},
    response::Answer,
    segment,
};

/// The place of the queue's or function's name in a path.
const NAME: usize = 4;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/transactions/{id}/messages/{queue}", post(send))
        .route("/v1/transactions/{id}/invocations/{function}", post(invoke))
}

async fn send(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    let (queue, group) = (text(&uri, NAME, "a queue")?, group(&uri)?);
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let effect = Effect::Message {
        queue,
        group,
        body: whole.bytes.clone(),
    };
    take(&backend, &uri, &headers, effect, &whole).await
}

async fn invoke(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    refuse_query(&uri)?;
    let function = text(&uri, NAME, "a function")?;
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let payload = payload(&whole)?;
    let effect = Effect::Invocation { function, payload };
    take(&backend, &uri, &headers, effect, &whole).await
}

/// The payload of an invocation, as Lambda takes it: JSON, and `{}` if it is empty. A function
/// could never run with anything else.
pub(crate) fn payload(body: &Whole) -> Result<Bytes, Problem> {
    json_or_empty(&body.bytes).map_err(|error| {
        Problem::new(
            Kind::InvalidRequest,
            format!("the payload of an invocation is JSON: {error}"),
        )
    })
}

/// The body counts against the budget until the engine has it.
async fn take(
    backend: &Backend,
    uri: &Uri,
    headers: &HeaderMap,
    effect: Effect,
    _: &Whole,
) -> Answer {
    let engine = backend.transactions()?;
    let (call, place) = (call(uri, headers)?, headers::effect(headers)?);
    backend
        .in_time(Kind::Unavailable, engine.send(&call, effect, place))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The message group; without a parameter the empty group.
pub(crate) fn group(uri: &Uri) -> Result<Bytes, Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else {
        return Ok(Bytes::new());
    };
    let refuse = || {
        Problem::new(
            Kind::InvalidRequest,
            "a message takes one parameter: ?group=, percent-encoded",
        )
    };
    let group = query
        .strip_prefix("group=")
        .filter(|group| !group.contains('&'))
        .ok_or_else(refuse)?;
    Ok(segment::decode(group).ok_or_else(refuse)?.into())
}
