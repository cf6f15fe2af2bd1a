//! The routes of effects: messages and invocations that leave once their transaction has committed.
//!
//! A client may say which of its effects a call is (`Landfast-Effect`, from zero): then it may repeat the call when the
//! answer was lost, and a repeat changes nothing.

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

use crate::{
    backend::Backend,
    body::{self, Whole},
    guard::EFFECT_BYTES_MAX,
    headers, lambda,
    problem::{Kind, Problem},
    segment,
    transactions::{Answer, call, refuse_query},
};

/// Where the name of the queue or function stands in a path.
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
    let (queue, group) = (name(&uri)?, group(&uri)?);
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
    let function = name(&uri)?;
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let payload = payload(&whole)?;
    let effect = Effect::Invocation { function, payload };
    take(&backend, &uri, &headers, effect, &whole).await
}

/// What a function is given, as [`lambda`] takes it: JSON, and `{}` where there is none. Another can never be run, however often.
pub(crate) fn payload(body: &Whole) -> Result<Bytes, Problem> {
    lambda::json_or_empty(&body.bytes).map_err(|error| {
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

fn name(uri: &Uri) -> Result<String, Problem> {
    let refuse = |_| {
        Problem::new(
            Kind::InvalidRequest,
            "the name of a queue or function is UTF-8",
        )
    };
    String::from_utf8(segment::bytes(uri, NAME)?).map_err(refuse)
}

/// The message group; without one the empty group.
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
