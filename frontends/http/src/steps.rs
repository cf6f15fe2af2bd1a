//! The routes that the code of a workflow's step has beside those of all functions: what it asks for is that of its attempt, which
//! the [`Scope`] of its requests names.
//!
//! A step within a step shows a token of its own in `Landfast-Step`.
//!
//! Strangers find the routes too, and are told that they are in no run.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use transactions::Effect;
use workflows::{StepResult, StepStart};

use crate::{
    backend::Backend,
    body, effects,
    guard::EFFECT_BYTES_MAX,
    headers,
    problem::{Kind, Problem},
    routes::json,
    segment,
    transactions::refuse_query,
    workflows::INPUT_BYTES_MAX,
};

type Answer = Result<Response, Problem>;

/// What a step within a step shows.
const STEP: HeaderName = HeaderName::from_static("landfast-step");
/// Where names stand in a path.
const NAME: usize = 3;

/// As what a request of a function is answered.
#[derive(Debug, Clone)]
pub(crate) struct Scope(pub(crate) Arc<str>);

impl Scope {
    /// The same, or that of the step within that the request is of. Errors: it is within another, or over.
    pub(crate) fn of(&self, backend: &Backend, headers: &HeaderMap) -> Result<Arc<str>, Problem> {
        let step = headers.get(STEP).and_then(|step| step.to_str().ok());
        Ok(backend.workflows()?.token_of(&self.0, step)?)
    }

    /// What the step's code lets out rests on all that its run has done: that is durable before (rule P5).
    pub(crate) async fn leave(
        &self,
        backend: &Backend,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        Ok(backend
            .workflows()?
            .externalize(&self.of(backend, headers)?)
            .await?)
    }
}

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/run/externalize", post(externalize))
        .route("/v1/run/messages/{queue}", post(send))
        .route("/v1/run/invocations/{function}", post(invoke))
        .route("/v1/run/steps/{name}", post(open).put(finish))
        .route("/v1/run/steps/{name}/failure", put(fail))
        .route("/v1/run/calls/{function}", put(call))
}

/// The run that a request is of, if it is of one.
pub(crate) type OfRun = Option<Extension<Scope>>;

/// Before what a step's code asks for counts outside of its run: what the run rests on is durable (rule P5).
pub(crate) async fn settle(
    backend: &Backend,
    scope: Option<&Scope>,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let Some(scope) = scope else { return Ok(()) };
    let token = scope.of(backend, headers)?;
    match timeout(backend.answer_timeout, backend.workflows()?.settle(&token)).await {
        Ok(settled) => Ok(settled?),
        Err(_elapsed) => Err(Problem::new(
            Kind::Unavailable,
            "the far store does not answer in time",
        )),
    }
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

fn name(uri: &Uri) -> Result<String, Problem> {
    let refuse = |_| Problem::new(Kind::InvalidRequest, "a name is UTF-8");
    String::from_utf8(segment::bytes(uri, NAME)?).map_err(refuse)
}

async fn externalize(
    State(backend): State<Arc<Backend>>,
    scope: OfRun,
    headers: HeaderMap,
) -> Answer {
    // What has no run has nothing that is not durable.
    let Some(Extension(scope)) = scope else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    scope.leave(&backend, &headers).await?;
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
    let (queue, group) = (name(&uri)?, effects::group(&uri)?);
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
    let function = name(&uri)?;
    let whole = body::read(body, EFFECT_BYTES_MAX, &backend.budget).await?;
    let effect = Effect::Invocation {
        function,
        payload: effects::payload(&whole)?,
    };
    backend.workflows()?.send(&token, effect).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What a step within has come to, or the token to do it with.
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

/// What a step came to that counts, or that its code is told has failed.
fn came_to(result: &StepResult) -> Answer {
    match result {
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
    let name = name(&uri)?;
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
    let (token, name) = (token(&backend, scope, &headers)?, name(&uri)?);
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
    let (token, name) = (token(&backend, scope, &headers)?, name(&uri)?);
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
    let (token, name) = (token(&backend, scope, &headers)?, name(&uri)?);
    let input = output(&backend, body).await?;
    came_to(&backend.workflows()?.call_step(&token, &name, input).await?)
}
