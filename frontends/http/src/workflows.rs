//! The routes of workflows: runs begun, awaited, listed, cancelled; their steps; their state.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use functions::manifest::workflow::place_of;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use workflows::{Error, RunView, Status, StepView};

use crate::{
    backend::Backend,
    body,
    connection::Patience,
    listing,
    problem::{Kind, Problem},
    routes::json,
    segment,
    steps::{self, OfRun},
    transactions::{key, value},
};

type Answer = Result<Response, Problem>;

/// Where the name of the workflow, and the run or key, stand in a path.
const NAME: usize = 2;
const RUN: usize = 4;
/// The longest input: as what a function is given.
pub(crate) const INPUT_BYTES_MAX: usize = 6 * 1024 * 1024;
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

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::State(error) => return error.into(),
            Error::OutcomeUnknown { ref run, .. } => {
                return Self::new(Kind::OutcomeUnknown, error.to_string()).about(run.clone());
            }
            Error::NoSuchWorkflow(_) => Kind::NoSuchWorkflow,
            Error::NoSuchRun(_) => Kind::NoSuchRun,
            Error::Invalid(_) => Kind::InvalidRequest,
            Error::TooLarge(_) => Kind::TooLarge,
            Error::TooManyRuns => Kind::TooManyRuns,
            Error::AttemptEnded | Error::RunEnded => Kind::AttemptEnded,
            Error::Port(ref port) => match port.kind() {
                ports::ErrorKind::Invalid => Kind::InvalidRequest,
                ports::ErrorKind::NoRoom => Kind::NoRoom,
                ports::ErrorKind::OutcomeUnknown => Kind::OutcomeUnknown,
                ports::ErrorKind::Corrupt => Kind::Corrupt,
                _ => Kind::Unavailable,
            },
            // An error that this front end does not know yet is one that it cannot serve.
            _ => Kind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

fn text(uri: &Uri, place: usize) -> Result<String, Problem> {
    let refuse = |_| {
        Problem::new(
            Kind::InvalidRequest,
            "the name of a workflow or run is UTF-8",
        )
    };
    String::from_utf8(segment::bytes(uri, place)?).map_err(refuse)
}

fn query<T: DeserializeOwned>(uri: &Uri, shape: &str) -> Result<T, Problem> {
    let asked = Query::<T>::try_from_uri(uri).map_err(|error| {
        Problem::new(
            Kind::InvalidRequest,
            format!("{shape}: {}", error.body_text()),
        )
    })?;
    Ok(asked.0)
}

/// How long to wait.
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
    /// How many seconds to wait for its end.
    #[serde(default)]
    wait: f64,
    id: Option<String>,
}

async fn begin(State(backend): State<Arc<Backend>>, request: Request) -> Answer {
    let patience = Patience::of(&request);
    let (parts, body) = request.into_parts();
    let workflows = backend.workflows()?;
    let name = text(&parts.uri, NAME)?;
    let Begin { wait, id } = query(&parts.uri, "?wait=SECONDS&id=ID")?;
    let input = input(&backend, body).await?;
    // A run that a step begins is outside of its own.
    steps::settle(&backend, parts.extensions.get(), &parts.headers).await?;
    let wait = seconds(wait)?;
    let view = {
        // It may take longer than a connection may be quiet.
        let _waits = patience.as_ref().map(Patience::wait);
        let run = workflows.begin(&name, id.as_deref(), input).await?;
        workflows.wait_for_begun(&name, &run, wait).await?
    };
    let status = if view.status == Status::Running {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok((status, shown(&view)).into_response())
}

/// What a run is given: JSON, and `null` where there is none.
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

async fn show(State(backend): State<Arc<Backend>>, request: Request) -> Answer {
    let patience = Patience::of(&request);
    let uri = request.uri();
    let Wait { wait } = query(uri, "?wait=SECONDS")?;
    let wait = seconds(wait)?;
    let _waits = patience.as_ref().map(Patience::wait);
    Ok(shown(
        &backend
            .workflows()?
            .wait(&text(uri, NAME)?, &text(uri, RUN)?, wait)
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
    /// Where to go on.
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
        .runs(&text(&uri, NAME)?, status, after.as_deref())
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
    steps::settle(&backend, of.as_deref(), &headers).await?;
    Ok(shown(
        &backend
            .workflows()?
            .cancel(&text(&uri, NAME)?, &text(&uri, RUN)?)
            .await?,
    ))
}

#[derive(Serialize)]
struct Steps {
    steps: Vec<StepView>,
}

async fn steps(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let workflows = backend.workflows()?;
    let (name, run) = (text(&uri, NAME)?, text(&uri, RUN)?);
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
            .state(&text(&uri, NAME)?, key.name())
            .await?,
    )
}

async fn list_state(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let listing = listing::asked(&uri)?;
    Ok(listing::shown(
        &backend
            .workflows()?
            .list_state(&text(&uri, NAME)?, &listing)
            .await?,
    ))
}
