//! The routes of deployed functions: deploying and removing applications, listing functions, reading what they printed,
//! arming and disarming their timers; what they have failed for good.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, State},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use functions::Error;
use ports::logs::{Line, Page};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    backend::Backend,
    body,
    connection::{OfConnection, wait},
    problem::{Kind, Problem},
    routes, segment,
    transactions::refuse_query,
};

type Answer = Result<Response, Problem>;

/// Where the name stands in a path.
const NAME: usize = 2;
/// Lines in one answer.
const LINES_MAX: usize = 1000;
/// What their texts take, but for a line that is longer by itself. In JSON a byte may become six: clients read answers of 8 MiB.
const LINES_BYTES_MAX: usize = 1 << 20;
/// How long a request may wait for lines: shorter than a connection may be quiet.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// The longest body that says how a timer fires.
const TIMER_BYTES_MAX: usize = 1024;
/// Dropped, a body that names one letter would have all of them sent again, or removed.
const LETTER_IN_A_BODY: &str =
    "this takes no body: say ?id=ID for one dead letter, and nothing for all of them";

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/applications/{name}", put(deploy).delete(remove))
        .route("/v1/functions", get(list))
        .route("/v1/functions/{name}/logs", get(lines))
        .route(
            "/v1/functions/{name}/dead-letters",
            get(letters).post(redrive).delete(purge),
        )
        .route("/v1/functions/{name}/timer", put(arm).delete(disarm))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NoSuchFunction(_) => Kind::NoSuchFunction,
            Error::NoSuchApplication(_) => Kind::NoSuchApplication,
            Error::NoSuchDeadLetter(_) => Kind::NoSuchDeadLetter,
            Error::Invalid(_) => Kind::InvalidRequest,
            Error::TooLarge(_) => Kind::TooLarge,
            Error::Conflict(_) => Kind::DeploymentConflict,
            Error::Port(port) => match port.kind() {
                ports::ErrorKind::Invalid => Kind::InvalidRequest,
                ports::ErrorKind::NoRoom => Kind::NoRoom,
                ports::ErrorKind::OutcomeUnknown => Kind::OutcomeUnknown,
                ports::ErrorKind::Corrupt => Kind::Corrupt,
                _ => Kind::Unavailable,
            },
            // An error that this front end does not know yet is one that it cannot serve.
            _ => Kind::Unavailable,
        };
        Self::new(kind, with_causes(&error))
    }
}

/// The application or function that a path names.
fn name(uri: &Uri) -> Result<String, Problem> {
    let refuse = |_| {
        Problem::new(
            Kind::InvalidRequest,
            "the name of an application or function is UTF-8",
        )
    };
    String::from_utf8(segment::bytes(uri, NAME)?).map_err(refuse)
}

/// Errors that say their causes themselves say each once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut said: Vec<_> = causes.map(ToString::to_string).collect();
    said.dedup_by(|cause, before| before.ends_with(cause.as_str()));
    said.join(": ")
}

async fn deploy(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    connection: OfConnection,
    body: Body,
) -> Answer {
    refuse_query(&uri)?;
    let functions = backend.functions()?;
    let name = name(&uri)?;
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    // Of many files it may take longer than a connection may be quiet, and others wait for it.
    let _waits = wait(&connection);
    let deployed = functions.deploy(&name, whole.bytes.clone()).await?;
    Ok(routes::json(
        serde_json::to_vec(&deployed).expect("strings and numbers always serialise"),
    ))
}

async fn remove(State(backend): State<Arc<Backend>>, uri: Uri, connection: OfConnection) -> Answer {
    // One whose `?` was not encoded would be another application.
    refuse_query(&uri)?;
    let _waits = wait(&connection);
    backend.functions()?.remove(&name(&uri)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list(State(backend): State<Arc<Backend>>) -> Answer {
    let all = backend.functions()?.functions();
    Ok(routes::json(
        serde_json::to_vec(&all).expect("strings and numbers always serialise"),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The first line that is wanted.
    #[serde(default)]
    from: u64,
    /// How many seconds to wait for a line if there is none.
    #[serde(default)]
    wait: u64,
}

#[derive(Serialize)]
struct Lines {
    lines: Vec<Line>,
    /// Where to go on.
    next: u64,
}

async fn lines(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let functions = backend.functions()?;
    let name = name(&uri)?;
    let Wanted { from, wait } = query(&uri, "?from=NUMBER&wait=SECONDS")?;
    let page = Page {
        from,
        lines_max: LINES_MAX,
        bytes_max: LINES_BYTES_MAX,
    };
    let until = tokio::time::Instant::now() + Duration::from_secs(wait).min(WAIT_MAX);
    loop {
        let lines = functions.lines(&name, page).await?;
        let is_over = tokio::time::Instant::now() >= until;
        if !lines.is_empty()
            || is_over
            || tokio::time::timeout_at(until, functions.more_lines(&name, from))
                .await
                .is_err()
        {
            let next = lines.last().map_or(from, |line| line.number + 1);
            return Ok(Json(Lines { lines, next }).into_response());
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behind {
    /// The letter behind which the page begins.
    after: Option<String>,
}

async fn letters(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let Behind { after } = query(&uri, "?after=ID")?;
    let letters = backend
        .functions()?
        .dead_letters(&name(&uri)?, after.as_deref())
        .await?;
    Ok(Json(letters).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// The letter; none: all of them.
    id: Option<String>,
}

async fn redrive(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    connection: OfConnection,
    body: Body,
) -> Answer {
    let Which { id } = query(&uri, "?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    // Of 10,000 letters it may take longer than a connection may be quiet.
    let _waits = wait(&connection);
    let redriven = backend
        .functions()?
        .redrive(&name(&uri)?, id.as_deref())
        .await?;
    Ok(Json(json!({ "redriven": redriven })).into_response())
}

async fn purge(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    connection: OfConnection,
    body: Body,
) -> Answer {
    let Which { id } = query(&uri, "?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    let _waits = wait(&connection);
    let purged = backend
        .functions()?
        .purge(&name(&uri)?, id.as_deref())
        .await?;
    Ok(Json(json!({ "purged": purged })).into_response())
}

/// The parameters of a path, which are to be in this form.
fn query<T: DeserializeOwned>(uri: &Uri, form: &str) -> Result<T, Problem> {
    let parsed = Query::try_from_uri(uri);
    let parsed = parsed.map_err(|error| {
        Problem::new(
            Kind::InvalidRequest,
            format!("{form}: {}", error.body_text()),
        )
    })?;
    Ok(parsed.0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timer {
    every_s: u64,
}

async fn arm(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    connection: OfConnection,
    body: Body,
) -> Answer {
    refuse_query(&uri)?;
    let functions = backend.functions()?;
    let whole = body::read(body, TIMER_BYTES_MAX, &backend.budget).await?;
    let refuse = |why: String| Problem::new(Kind::InvalidRequest, why);
    let said = |why: String| refuse(format!("{{\"every_s\": SECONDS}}: {why}"));
    // A list would do for the members in their order.
    if whole
        .bytes
        .trim_ascii_start()
        .first()
        .is_some_and(|first| *first != b'{')
    {
        return Err(said("it is a JSON object".to_owned()));
    }
    let Timer { every_s } =
        serde_json::from_slice(&whole.bytes).map_err(|error| said(error.to_string()))?;
    if every_s == 0 {
        return Err(refuse(
            "every_s is to be 1 or more; DELETE disarms".to_owned(),
        ));
    }
    let _waits = wait(&connection);
    functions
        .arm(&name(&uri)?, Some(Duration::from_secs(every_s)))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn disarm(State(backend): State<Arc<Backend>>, uri: Uri, connection: OfConnection) -> Answer {
    refuse_query(&uri)?;
    let _waits = wait(&connection);
    backend.functions()?.arm(&name(&uri)?, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = std::io::Error::other("\"py/evil\" points outside of it");
        let error =
            ports::Error::new(ports::ErrorKind::Invalid, "unpack the archive").caused_by(cause);
        let said = with_causes(&error);
        assert_eq!(said.matches("points outside of it").count(), 1, "{said}");
    }
}
