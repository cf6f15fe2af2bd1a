//! The routes of workflows: begin, await, list and cancel runs; their steps; their state.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use functions::manifest::workflow::place_of;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use workflows::{RunView, Status, StepView};

use super::key_page;
use crate::{
    backend::Backend,
    body,
    problem::{Kind, Problem},
    request::{INPUT_BYTES_MAX, key, query, text},
    response::{Answer, json, value},
    scope::{self, OfRun},
};

/// The places of the workflow's name, and of the run or key, in a path.
const NAME: usize = 2;
const RUN: usize = 4;
/// The longest wait for a run.
const WAIT_MAX: Duration = Duration::from_mins(15);

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/workflows", get(workflows))
        .route("/v1/workflows/{name}/runs", get(list).post(begin))
        .route("/v1/workflows/{name}/runs/{run}", get(show).delete(cancel))
        .route("/v1/workflows/{name}/runs/{run}/steps", get(steps))
        .route("/v1/workflows/{name}/state", get(list_state))
        .route("/v1/workflows/{name}/state/{key}", get(read))
}

#[derive(Serialize)]
struct Workflows {
    workflows: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    functions: Vec<String>,
    far: Option<String>,
}

async fn workflows(State(backend): State<Arc<Backend>>) -> Answer {
    let deployed = backend.workflows()?.deployed().into_iter();
    let workflows = deployed.map(|(name, workflow)| {
        let functions = workflow
            .functions()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let far = workflow.far.as_deref().map(place_of);
        Listed {
            name,
            functions,
            far,
        }
    });
    let workflows = Workflows {
        workflows: workflows.collect(),
    };
    Ok(json(
        serde_json::to_vec(&workflows).expect("strings always serialise"),
    ))
}

/// The time to wait.
fn seconds(wait: f64) -> Result<Duration, Problem> {
    if wait.is_nan() {
        return Err(Problem::new(
            Kind::InvalidRequest,
            "?wait=SECONDS: NaN is no number of seconds",
        ));
    }
    Ok(Duration::try_from_secs_f64(wait.max(0.0))
        .unwrap_or(WAIT_MAX)
        .min(WAIT_MAX))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    /// The seconds to wait for its end.
    #[serde(default)]
    wait: f64,
    id: Option<String>,
}

async fn begin(State(backend): State<Arc<Backend>>, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    let workflows = backend.workflows()?;
    let name = text(&parts.uri, NAME, "a workflow or run")?;
    let Begin { wait, id } = query(&parts.uri, "?wait=SECONDS&id=ID")?;
    let input = input(&backend, body).await?;
    // A run that a step begins is outside of the step's own run.
    scope::settle(&backend, parts.extensions.get(), &parts.headers).await?;
    let wait = seconds(wait)?;
    let run = workflows.begin(&name, id.as_deref(), input).await?;
    let view = workflows.wait_for_begun(&name, &run, wait).await?;
    let status = if view.status == Status::Running {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok((status, shown(&view)).into_response())
}

/// The input of a run: JSON, and `null` if it is empty.
async fn input(backend: &Backend, body: Body) -> Result<Bytes, Problem> {
    let whole = body::read(body, INPUT_BYTES_MAX, &backend.budget).await?;
    if whole.bytes.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    match serde_json::from_slice::<&RawValue>(&whole.bytes) {
        Ok(_) => Ok(whole.bytes.clone()),
        Err(error) => Err(Problem::new(
            Kind::InvalidRequest,
            format!("the input is to be JSON: {error}"),
        )),
    }
}

fn shown(view: &RunView) -> Response {
    json(serde_json::to_vec(view).expect("strings and numbers always serialise"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    #[serde(default)]
    wait: f64,
}

async fn show(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let Wait { wait } = query(&uri, "?wait=SECONDS")?;
    let wait = seconds(wait)?;
    Ok(shown(
        &backend
            .workflows()?
            .wait(
                &text(&uri, NAME, "a workflow or run")?,
                &text(&uri, RUN, "a workflow or run")?,
                wait,
            )
            .await?,
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    status: Option<String>,
    after: Option<String>,
}

#[derive(Serialize)]
struct Runs {
    runs: Vec<RunView>,
    /// The run to continue after.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

async fn list(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let Wanted { status, after } = query(&uri, "?status=STATUS&after=RUN")?;
    let unknown = || {
        Problem::new(
            Kind::InvalidRequest,
            "a status is running, succeeded, failed or cancelled",
        )
    };
    let status = status
        .map(|name| Status::named(&name).ok_or_else(unknown))
        .transpose()?;
    let (runs, next) = backend
        .workflows()?
        .runs(
            &text(&uri, NAME, "a workflow or run")?,
            status,
            after.as_deref(),
        )
        .await?;
    Ok(json(
        serde_json::to_vec(&Runs { runs, next }).expect("strings and numbers always serialise"),
    ))
}

async fn cancel(
    State(backend): State<Arc<Backend>>,
    of: OfRun,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    scope::settle(&backend, of.as_deref(), &headers).await?;
    Ok(shown(
        &backend
            .workflows()?
            .cancel(
                &text(&uri, NAME, "a workflow or run")?,
                &text(&uri, RUN, "a workflow or run")?,
            )
            .await?,
    ))
}

#[derive(Serialize)]
struct Steps {
    steps: Vec<StepView>,
}

async fn steps(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let workflows = backend.workflows()?;
    let (name, run) = (
        text(&uri, NAME, "a workflow or run")?,
        text(&uri, RUN, "a workflow or run")?,
    );
    workflows.run(&name, &run).await?;
    let steps = workflows.steps(&name, &run).await?;
    Ok(json(
        serde_json::to_vec(&Steps { steps }).expect("strings and numbers always serialise"),
    ))
}

async fn read(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let key = key(&uri, RUN)?;
    value(
        backend
            .workflows()?
            .state(&text(&uri, NAME, "a workflow or run")?, key.name())
            .await?,
    )
}

async fn list_state(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let listing = key_page::parse(&uri)?;
    Ok(key_page::response(
        &backend
            .workflows()?
            .list_state(&text(&uri, NAME, "a workflow or run")?, &listing)
            .await?,
    ))
}
