//! The routes of workflows: begin, await, list and cancel runs; their steps; their state.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, http::StatusCode, response::IntoResponse, routing::get};
use functions::manifest::workflow::place_of;
use serde::{Deserialize, Serialize};
use workflows::{RunView, Status, StepView};

use super::key_page;
use crate::{
    backend::Backend,
    problem::Problem,
    request::{INPUT_BYTES_MAX, Request, json_or},
    response::{Answer, json, value},
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

async fn workflows(request: Request) -> Answer {
    let deployed = request.backend.workflows()?.deployed().into_iter();
    let listed = deployed.map(|(name, workflow)| Listed {
        name,
        functions: workflow
            .functions()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        far: workflow.far.as_deref().map(place_of),
    });
    let workflows = listed.collect();
    Ok(json(&Workflows { workflows }))
}

/// The time to wait.
fn seconds(wait: f64) -> Result<Duration, Problem> {
    if wait.is_nan() {
        let why = "?wait=SECONDS: NaN is no number of seconds";
        return Err(Problem::invalid(why));
    }
    let wait = Duration::try_from_secs_f64(wait.max(0.0));
    Ok(wait.unwrap_or(WAIT_MAX).min(WAIT_MAX))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    /// The seconds to wait for its end.
    #[serde(default)]
    wait: f64,
    id: Option<String>,
}

async fn begin(request: Request, body: Body) -> Answer {
    let workflows = request.backend.workflows()?;
    request.backend.check_takes_work()?;
    let name = request.name(NAME)?;
    let Begin { wait, id } = request.query("?wait=SECONDS&id=ID")?;
    let whole = request.read(body, INPUT_BYTES_MAX).await?;
    let input = json_or("null", &whole.bytes)
        .map_err(|error| Problem::invalid(format!("the input is to be JSON: {error}")))?;
    drop(whole);
    // A run that a step begins is outside of the step's own run.
    request.settle().await?;
    let wait = seconds(wait)?;
    let run = workflows.begin(&name, id.as_deref(), input).await?;
    let view = workflows.wait_for_begun(&name, &run, wait).await?;
    let status = match view.status {
        Status::Running => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok((status, json(&view)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    #[serde(default)]
    wait: f64,
}

async fn show(request: Request) -> Answer {
    let Wait { wait } = request.query("?wait=SECONDS")?;
    let wait = seconds(wait)?;
    let (name, run) = (request.name(NAME)?, request.name(RUN)?);
    let view = request.backend.workflows()?.wait(&name, &run, wait).await?;
    Ok(json(&view))
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

async fn list(request: Request) -> Answer {
    let Wanted { status, after } = request.query("?status=STATUS&after=RUN")?;
    let unknown = || Problem::invalid("a status is running, succeeded, failed or cancelled");
    let status = status
        .map(|name| Status::named(&name).ok_or_else(unknown))
        .transpose()?;
    let (workflows, name) = (request.backend.workflows()?, request.name(NAME)?);
    let (runs, next) = workflows.runs(&name, status, after.as_deref()).await?;
    Ok(json(&Runs { runs, next }))
}

async fn cancel(request: Request) -> Answer {
    request.settle().await?;
    let (name, run) = (request.name(NAME)?, request.name(RUN)?);
    let view = request.backend.workflows()?.cancel(&name, &run).await?;
    Ok(json(&view))
}

async fn steps(request: Request) -> Answer {
    let workflows = request.backend.workflows()?;
    let (name, run) = (request.name(NAME)?, request.name(RUN)?);
    workflows.run(&name, &run).await?;
    let steps = workflows.steps(&name, &run).await?;
    Ok(json(&Steps { steps }))
}

#[derive(Serialize)]
struct Steps {
    steps: Vec<StepView>,
}

async fn read(request: Request) -> Answer {
    let (key, name) = (request.key(RUN)?, request.name(NAME)?);
    let workflows = request.backend.workflows()?;
    value(workflows.state(&name, key.name()).await?)
}

async fn list_state(request: Request) -> Answer {
    let (listing, name) = (key_page::parse(&request.uri)?, request.name(NAME)?);
    let workflows = request.backend.workflows()?;
    let page = workflows.list_state(&name, &listing).await?;
    Ok(key_page::response(&page))
}
