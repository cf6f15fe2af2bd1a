//! The routes of deployed functions: applications, the list of functions, their logs, timers and
//! dead letters.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri},
    response::IntoResponse,
    routing::{get, put},
};
use ports::logs::{Line, Page};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    backend::Backend,
    body,
    problem::{Kind, Problem},
    request::{query, refuse_query, text},
    response::{self, Answer},
};

/// The place of the name in a path.
const NAME: usize = 2;
/// Lines in one response.
const LINES_MAX: usize = 1000;
/// The bytes of their texts, unless one line alone is longer. In JSON a byte may become six, and
/// clients read responses of up to 8 MiB.
const LINES_BYTES_MAX: usize = 1 << 20;
/// The longest wait of a request for lines.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// The longest body that sets a timer.
const TIMER_BYTES_MAX: usize = 1024;
/// If the server ignored a body that names one letter, it would redrive or purge all of them.
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

async fn deploy(State(backend): State<Arc<Backend>>, uri: Uri, body: Body) -> Answer {
    refuse_query(&uri)?;
    let functions = backend.functions()?;
    let name = text(&uri, NAME, "an application or function")?;
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    let deployed = functions.deploy(&name, whole.bytes.clone()).await?;
    Ok(response::json(
        serde_json::to_vec(&deployed).expect("strings and numbers always serialise"),
    ))
}

async fn remove(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    // A name whose `?` was not encoded would be another application's.
    refuse_query(&uri)?;
    backend
        .functions()?
        .remove(&text(&uri, NAME, "an application or function")?)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list(State(backend): State<Arc<Backend>>) -> Answer {
    let all = backend.functions()?.functions();
    Ok(response::json(
        serde_json::to_vec(&all).expect("strings and numbers always serialise"),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The number of the first line.
    #[serde(default)]
    from: u64,
    /// The seconds to wait for a line if there is none.
    #[serde(default)]
    wait: u64,
}

#[derive(Serialize)]
struct Lines {
    lines: Vec<Line>,
    /// The number to continue from.
    next: u64,
}

async fn lines(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let functions = backend.functions()?;
    let name = text(&uri, NAME, "an application or function")?;
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
    /// The page begins after this letter.
    after: Option<String>,
}

async fn letters(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let Behind { after } = query(&uri, "?after=ID")?;
    let letters = backend
        .functions()?
        .dead_letters(
            &text(&uri, NAME, "an application or function")?,
            after.as_deref(),
        )
        .await?;
    Ok(Json(letters).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// The letter; none: all of them.
    id: Option<String>,
}

async fn redrive(State(backend): State<Arc<Backend>>, uri: Uri, body: Body) -> Answer {
    let Which { id } = query(&uri, "?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    let redriven = backend
        .functions()?
        .redrive(
            &text(&uri, NAME, "an application or function")?,
            id.as_deref(),
        )
        .await?;
    Ok(Json(json!({ "redriven": redriven })).into_response())
}

async fn purge(State(backend): State<Arc<Backend>>, uri: Uri, body: Body) -> Answer {
    let Which { id } = query(&uri, "?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    let purged = backend
        .functions()?
        .purge(
            &text(&uri, NAME, "an application or function")?,
            id.as_deref(),
        )
        .await?;
    Ok(Json(json!({ "purged": purged })).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timer {
    every_s: u64,
}

async fn arm(State(backend): State<Arc<Backend>>, uri: Uri, body: Body) -> Answer {
    refuse_query(&uri)?;
    let functions = backend.functions()?;
    let whole = body::read(body, TIMER_BYTES_MAX, &backend.budget).await?;
    let refuse = |why: String| Problem::new(Kind::InvalidRequest, why);
    let said = |why: String| refuse(format!("{{\"every_s\": SECONDS}}: {why}"));
    // serde would accept a list of the members in their order.
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
    functions
        .arm(
            &text(&uri, NAME, "an application or function")?,
            Some(Duration::from_secs(every_s)),
        )
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn disarm(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    refuse_query(&uri)?;
    backend
        .functions()?
        .arm(&text(&uri, NAME, "an application or function")?, None)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
