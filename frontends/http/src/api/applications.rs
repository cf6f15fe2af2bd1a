//! The routes of deployed functions: applications, the list of functions, their logs, timers and
//! dead letters.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    routing::{get, put},
};
use ports::logs::{Line, Page};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::{
    backend::Backend,
    body,
    problem::Problem,
    request::Request,
    response::{self, Answer, no_content},
};

/// The place of the name in a path.
const NAME: usize = 2;
/// Lines in one response.
const LINES_MAX: usize = 1000;
/// The bytes of their texts, unless one line alone is longer. In JSON a byte may become six, and
/// clients read responses of up to 8 MiB.
const LINES_BYTES_MAX: usize = 1 << 20;
/// The most pages of the log that one request reads. A request thus ends even if a function prints
/// without end and none of its lines are wanted.
const PASSED_MAX: usize = 64;
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

async fn deploy(request: Request, body: Body) -> Answer {
    request.refuse_query()?;
    let functions = request.backend.functions()?;
    let name = request.name(NAME)?;
    let whole = request.read(body, request.backend.value_bytes_max).await?;
    let deployed = functions.deploy(&name, whole.bytes.clone()).await?;
    Ok(response::json(&deployed))
}

async fn remove(request: Request) -> Answer {
    // A name whose `?` was not encoded would be another application's.
    request.refuse_query()?;
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    functions.remove(&name).await?;
    Ok(no_content())
}

async fn list(request: Request) -> Answer {
    let functions = request.backend.functions()?.functions();
    Ok(response::json(&functions))
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
    /// Only lines that were printed at this time or later, in milliseconds since the epoch.
    #[serde(default)]
    since_ms: u64,
    /// Only lines of the invocation with this request id.
    request: Option<String>,
}

impl Wanted {
    fn is(&self, line: &Line) -> bool {
        line.at_ms >= self.since_ms && self.request.as_ref().is_none_or(|id| *id == line.id)
    }
}

#[derive(Serialize)]
struct Lines {
    lines: Vec<Line>,
    /// The number to continue from.
    next: u64,
}

/// Answers with the wanted lines of one page of the log. Pages without any are passed, up to
/// [`PASSED_MAX`].
async fn lines(request: Request) -> Answer {
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    let wanted: Wanted =
        request.query("?from=NUMBER&wait=SECONDS&since_ms=MILLISECONDS&request=ID")?;
    let until = Instant::now() + Duration::from_secs(wanted.wait).min(WAIT_MAX);
    let (mut next, mut passed) = (wanted.from, 0);
    loop {
        let page = Page {
            from: next,
            lines_max: LINES_MAX,
            bytes_max: LINES_BYTES_MAX,
        };
        let mut lines = functions.lines(&name, page).await?;
        let is_the_end = lines.is_empty();
        next = lines.last().map_or(next, |line| line.number + 1);
        lines.retain(|line| wanted.is(line));
        passed += 1;
        let is_over = !lines.is_empty() || passed >= PASSED_MAX;
        if is_over || is_the_end && Instant::now() >= until {
            return Ok(response::json(&Lines { lines, next }));
        }
        if is_the_end {
            let more = functions.more_lines(&name, next);
            // At the end of the time one more look tells that there is nothing.
            let _ = timeout_at(until, more).await;
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behind {
    /// The page begins after this letter.
    after: Option<String>,
}

async fn letters(request: Request) -> Answer {
    let Behind { after } = request.query("?after=ID")?;
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    let letters = functions.dead_letters(&name, after.as_deref()).await?;
    Ok(response::json(&letters))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// The letter; none: all of them.
    id: Option<String>,
}

async fn redrive(request: Request, body: Body) -> Answer {
    let Which { id } = request.query("?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    let redriven = functions.redrive(&name, id.as_deref()).await?;
    Ok(response::json(&json!({ "redriven": redriven })))
}

async fn purge(request: Request, body: Body) -> Answer {
    let Which { id } = request.query("?id=ID")?;
    body::refuse(body, LETTER_IN_A_BODY).await?;
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    let purged = functions.purge(&name, id.as_deref()).await?;
    Ok(response::json(&json!({ "purged": purged })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timer {
    every_s: u64,
}

async fn arm(request: Request, body: Body) -> Answer {
    request.refuse_query()?;
    let functions = request.backend.functions()?;
    let whole = request.read(body, TIMER_BYTES_MAX).await?;
    let said = |why: String| Problem::invalid(format!("{{\"every_s\": SECONDS}}: {why}"));
    // serde would accept a list of the members in their order.
    let first = whole.bytes.trim_ascii_start().first();
    if first.is_some_and(|first| *first != b'{') {
        return Err(said("it is a JSON object".to_owned()));
    }
    let Timer { every_s } =
        serde_json::from_slice(&whole.bytes).map_err(|error| said(error.to_string()))?;
    if every_s == 0 {
        let why = "every_s is to be 1 or more; DELETE disarms";
        return Err(Problem::invalid(why));
    }
    let every = Some(Duration::from_secs(every_s));
    functions.arm(&request.name(NAME)?, every).await?;
    Ok(no_content())
}

async fn disarm(request: Request) -> Answer {
    request.refuse_query()?;
    let (functions, name) = (request.backend.functions()?, request.name(NAME)?);
    functions.arm(&name, None).await?;
    Ok(no_content())
}
