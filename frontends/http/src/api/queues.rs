//! The routes of queues that start functions: their list, their first messages, sending a message,
//! removing those that wait.
//!
//! A message that is sent here belongs to no transaction. A caller that repeats the request after a
//! lost response sends another message.

use std::sync::Arc;

use axum::{Router, body::Body, routing::get};
use serde::Deserialize;
use serde_json::json;

use super::effects::message;
use crate::{
    backend::Backend,
    body,
    problem::Kind,
    request::Request,
    response::{self, Answer, no_content},
};

/// The place of the queue's name in a path.
const QUEUE: usize = 2;
const NO_BODY: &str = "this takes no body: it removes all messages that wait";

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new().route("/v1/queues", get(list)).route(
        "/v1/queues/{queue}/messages",
        get(peek).post(send).delete(purge),
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behind {
    /// The page begins after this queue.
    after: Option<String>,
}

async fn list(request: Request) -> Answer {
    let Behind { after } = request.query("?after=QUEUE")?;
    let page = request
        .backend
        .functions()?
        .queues(after.as_deref())
        .await?;
    Ok(response::json(&page))
}

async fn peek(request: Request) -> Answer {
    request.refuse_query()?;
    let (functions, queue) = (request.backend.functions()?, request.name(QUEUE)?);
    let messages = functions.waiting_messages(&queue).await?;
    Ok(response::json(&json!({ "messages": messages })))
}

async fn send(request: Request, body: Body) -> Answer {
    let (engine, functions) = (
        request.backend.transactions()?,
        request.backend.functions()?,
    );
    let (effect, whole) = message(&request, QUEUE, body).await?;
    engine.check_effect(&effect).await?;
    let id = functions.new_request_id();
    let sent = engine.send_now(effect, id.into());
    let bytes = whole.bytes.len();
    request
        .backend
        .in_time(bytes, Kind::OutcomeUnknown, sent)
        .await?;
    Ok(no_content())
}

async fn purge(request: Request, body: Body) -> Answer {
    request.refuse_query()?;
    body::refuse(body, NO_BODY).await?;
    let (functions, queue) = (request.backend.functions()?, request.name(QUEUE)?);
    let purged = functions.purge_queue(&queue).await?;
    Ok(response::json(&json!({ "purged": purged })))
}
