//! The routes of effects: messages and invocations that are sent once their transaction has
//! committed.
//!
//! A client may number its effects (`Landfast-Effect`, from zero). It may then repeat a call whose
//! response was lost, and the repeat changes nothing.

use std::sync::Arc;

use axum::{Router, body::Body, http::Uri, routing::post};
use bytes::Bytes;
use transactions::Effect;

use super::{transactions::call, volume_transactions::refuse_effects};
use crate::{
    backend::Backend,
    body::Whole,
    headers,
    problem::{Kind, Problem},
    request::{EFFECT_BYTES_MAX, Request, json_or},
    response::{Answer, no_content},
    segment,
};

/// The place of the queue's or function's name in a path.
const NAME: usize = 4;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/transactions/{id}/messages/{queue}", post(send))
        .route("/v1/transactions/{id}/invocations/{function}", post(invoke))
}

async fn send(request: Request, body: Body) -> Answer {
    let (effect, _whole) = message(&request, NAME, body).await?;
    take(&request, effect).await
}

async fn invoke(request: Request, body: Body) -> Answer {
    let (effect, _whole) = invocation(&request, NAME, body).await?;
    take(&request, effect).await
}

/// The message that a request asks for, to the queue at a place of the path; and its body.
pub(super) async fn message(
    request: &Request,
    place: usize,
    body: Body,
) -> Result<(Effect, Whole), Problem> {
    request.refuse_conditions()?;
    let (queue, group) = (request.name(place)?, group(&request.uri)?);
    let whole = request.read(body, EFFECT_BYTES_MAX).await?;
    let body = whole.bytes.clone();
    Ok((Effect::Message { queue, group, body }, whole))
}

/// The invocation that a request asks for, of the function at a place of the path; and its body.
/// As with Lambda, the payload is JSON, and `{}` if it is empty.
pub(super) async fn invocation(
    request: &Request,
    place: usize,
    body: Body,
) -> Result<(Effect, Whole), Problem> {
    request.refuse_conditions()?;
    request.refuse_query()?;
    let function = request.name(place)?;
    let whole = request.read(body, EFFECT_BYTES_MAX).await?;
    let payload = json_or("{}", &whole.bytes).map_err(|error| {
        Problem::invalid(format!("the payload of an invocation is JSON: {error}"))
    })?;
    Ok((Effect::Invocation { function, payload }, whole))
}

/// The callers hold the body meanwhile: it counts against the budget until the engine has it.
async fn take(request: &Request, effect: Effect) -> Answer {
    let engine = request.backend.transactions()?;
    let (call, place) = (call(request)?, headers::effect(&request.headers)?);
    refuse_effects(request, &call)?;
    let (backend, sent) = (&request.backend, engine.send(&call, effect, place));
    backend.in_time(0, Kind::Unavailable, sent).await?;
    Ok(no_content())
}

/// The message group; without a parameter the empty group.
fn group(uri: &Uri) -> Result<Bytes, Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else {
        return Ok(Bytes::new());
    };
    let group = query
        .strip_prefix("group=")
        .filter(|group| !group.contains('&'))
        .and_then(segment::decode);
    let refuse = || Problem::invalid("a message takes one parameter: ?group=, percent-encoded");
    Ok(group.ok_or_else(refuse)?.into())
}
