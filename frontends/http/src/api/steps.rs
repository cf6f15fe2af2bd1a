//! The routes that only the code of a workflow's step may use. Their effects belong to its attempt,
//! which the [scope](crate::scope) of a request names.
//!
//! A step within a step sends its own token in `Landfast-Step`. Network clients reach these routes
//! too: `externalize` answers 204, and the others are refused with `outside-of-run`.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    routing::{post, put},
};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use workflows::{StepResult, StepStart};

use super::effects;
use crate::{
    backend::Backend,
    problem::{Kind, Problem},
    request::{INPUT_BYTES_MAX, Request, json_or},
    response::{Answer, json, no_content},
};

/// The place of the name in a path.
const NAME: usize = 3;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/run/externalize", post(externalize))
        .route("/v1/run/messages/{queue}", post(send))
        .route("/v1/run/invocations/{function}", post(invoke))
        .route("/v1/run/steps/{name}", post(open).put(finish))
        .route("/v1/run/steps/{name}/failure", put(fail))
        .route("/v1/run/calls/{function}", put(call))
}

async fn externalize(request: Request) -> Answer {
    // Without a run nothing is left to make durable.
    if let Some(scope) = &request.scope {
        let durable = scope.make_durable(&request.backend, &request.headers);
        durable.await?;
    }
    Ok(no_content())
}

async fn send(request: Request, body: Body) -> Answer {
    let token = request.token()?;
    let (effect, _whole) = effects::message(&request, NAME, body).await?;
    request.backend.workflows()?.send(&token, effect).await?;
    Ok(no_content())
}

async fn invoke(request: Request, body: Body) -> Answer {
    let token = request.token()?;
    let (effect, _whole) = effects::invocation(&request, NAME, body).await?;
    request.backend.workflows()?.send(&token, effect).await?;
    Ok(no_content())
}

/// The result of an inner step, the failure that its code is told, or the token to run it with.
#[derive(Default, Serialize)]
struct Within<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

/// The result of a step that counts.
fn came_to(result: &StepResult) -> Answer {
    let (Ok(stored) | Err(stored)) = result;
    let raw = serde_json::from_slice(stored)
        .map_err(|_| Problem::new(Kind::Corrupt, "the result of a step is no JSON"))?;
    let (output, error) = match result {
        Ok(_) => (Some(raw), None),
        Err(_) => (None, Some(raw)),
    };
    Ok(json(&Within {
        output,
        error,
        ..Within::default()
    }))
}

async fn open(request: Request) -> Answer {
    let token = request.token()?;
    request.refuse_query()?;
    let (workflows, name) = (request.backend.workflows()?, request.name(NAME)?);
    match workflows.open_step(&token, &name).await? {
        StepStart::Committed(result) => came_to(&result),
        StepStart::Open { step, id } => Ok(json(&Within {
            step: Some(&step),
            id: Some(&id),
            ..Within::default()
        })),
    }
}

async fn finish(request: Request, body: Body) -> Answer {
    let (token, name) = (request.token()?, request.name(NAME)?);
    let output = output(&request, body).await?;
    let workflows = request.backend.workflows()?;
    came_to(&workflows.finish_step(&token, &name, output).await?)
}

async fn output(request: &Request, body: Body) -> Result<Bytes, Problem> {
    let whole = request.read(body, INPUT_BYTES_MAX).await?;
    json_or("", &whole.bytes)
        .map_err(|error| Problem::invalid(format!("this is to be JSON: {error}")))
}

async fn fail(request: Request, body: Body) -> Answer {
    let (token, name) = (request.token()?, request.name(NAME)?);
    let failure = output(&request, body).await?;
    let workflows = request.backend.workflows()?;
    let told = workflows.fail_step(&token, &name, &failure).await?;
    came_to(&Err(told))
}

async fn call(request: Request, body: Body) -> Answer {
    let (token, name) = (request.token()?, request.name(NAME)?);
    let input = output(&request, body).await?;
    let workflows = request.backend.workflows()?;
    came_to(&workflows.call_step(&token, &name, input).await?)
}
