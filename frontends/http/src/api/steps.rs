//! The routes that only the code of a workflow's step may use. Their effects belong to its attempt,
//! which the [scope](crate::scope) of a request names.
//!
//! A step within a step sends its own token in `Landfast-Step`. Network clients reach these routes
//! too: `externalize` answers 204, and the others are refused with `outside-of-run`.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::IntoResponse,
    routing::{post, put},
};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use transactions::Effect;
use workflows::{StepResult, StepStart};

use super::effects;
use crate::{
    backend::Backend,
    body, headers,
    problem::{Kind, Problem},
    request::{EFFECT_BYTES_MAX, INPUT_BYTES_MAX, refuse_query, text},
    response::{Answer, json},
    scope::OfRun,
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

fn token(backend: &Backend, scope: OfRun, headers: &HeaderMap) -> Result<Arc<str>, Problem> {
    let outside = || {
        Problem::new(
            Kind::OutsideOfRun,
            "who asks is no function that a workflow runs",
        )
    };
    scope.ok_or_else(outside)?.0.of(backend, headers)
}

async fn externalize(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    headers: HeaderMap,
) -> Answer {
    // Without a run nothing is left to make durable.
    let Some(Extension(scope)) = scope else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    scope.make_durable(&backend, &headers).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn send(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let token = token(&backend, scope, &headers)?;
    headers::refuse_conditions(&headers)?;
    let (queue, group) = (
        text(&uri, NAME, "a step, queue or function")?,
        effects::group(&uri)?,
    );
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let effect = Effect::Message {
        queue,
        group,
        body: whole.bytes.clone(),
    };
    backend.workflows()?.send(&token, effect).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn invoke(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let token = token(&backend, scope, &headers)?;
    headers::refuse_conditions(&headers)?;
    refuse_query(&uri)?;
    let function = text(&uri, NAME, "a step, queue or function")?;
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let effect = Effect::Invocation {
        function,
        payload: effects::payload(&whole)?,
    };
    backend.workflows()?.send(&token, effect).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The result of an inner step, or the token to run it with.
#[derive(Serialize)]
struct Within<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
}

fn within(open: Option<(&str, &str)>, output: Option<&Bytes>) -> Answer {
    let raw = output
        .map(|output| serde_json::from_slice::<&RawValue>(output))
        .transpose();
    let output = raw.map_err(|_| Problem::new(Kind::Corrupt, "the result of a step is no JSON"))?;
    let (step, id) = open.unzip();
    Ok(json(
        serde_json::to_vec(&Within { step, id, output }).expect("JSON serialises"),
    ))
}

/// The result of a step that counts, or the failure that its code is told.
fn came_to(came_to: &StepResult) -> Answer {
    match came_to {
        Ok(output) => within(None, Some(output)),
        Err(failure) => failed(failure),
    }
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a RawValue,
}

fn failed(failure: &Bytes) -> Answer {
    let error = serde_json::from_slice::<&RawValue>(failure);
    let error =
        error.map_err(|_| Problem::new(Kind::Corrupt, "the failure of a step is no JSON"))?;
    Ok(json(
        serde_json::to_vec(&Failed { error }).expect("JSON serialises"),
    ))
}

async fn open(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let token = token(&backend, scope, &headers)?;
    refuse_query(&uri)?;
    let name = text(&uri, NAME, "a step, queue or function")?;
    match backend.workflows()?.open_step(&token, &name).await? {
        StepStart::Committed(result) => came_to(&result),
        StepStart::Open { step, id } => within(Some((&step, &id)), None),
    }
}

async fn finish(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (token, name) = (
        token(&backend, scope, &headers)?,
        text(&uri, NAME, "a step, queue or function")?,
    );
    let output = output(&backend, body).await?;
    came_to(
        &backend
            .workflows()?
            .finish_step(&token, &name, output)
            .await?,
    )
}

async fn output(backend: &Backend, body: Body) -> Result<Bytes, Problem> {
    let whole = body::read(body, INPUT_BYTES_MAX, &backend.budget).await?;
    match serde_json::from_slice::<&RawValue>(&whole.bytes) {
        Ok(_) => Ok(whole.bytes.clone()),
        Err(error) => Err(Problem::new(
            Kind::InvalidRequest,
            format!("this is to be JSON: {error}"),
        )),
    }
}

async fn fail(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (token, name) = (
        token(&backend, scope, &headers)?,
        text(&uri, NAME, "a step, queue or function")?,
    );
    let said = output(&backend, body).await?;
    failed(&backend.workflows()?.fail_step(&token, &name, &said).await?)
}

async fn call(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (token, name) = (
        token(&backend, scope, &headers)?,
        text(&uri, NAME, "a step, queue or function")?,
    );
    let input = output(&backend, body).await?;
    came_to(&backend.workflows()?.call_step(&token, &name, input).await?)
}
