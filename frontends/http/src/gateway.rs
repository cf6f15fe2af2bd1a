//! Functions as an HTTP API: a request below `/http` goes to the function whose route it is of, as API Gateway gives it
//! (payload format 2.0), and what the function answers becomes the answer.
//!
//! The prefix keeps two worlds apart for good. No route of an application can hide one of ours, today's or a later one, and no
//! route of ours an application's: a function sees its path without the prefix, as behind a stage of API Gateway.
//!
//! It is also one origin with the routes that deploy functions and read all state. So every answer is [sandboxed](SANDBOX): a
//! browser that shows it gives its scripts no origin, and the guard refuses what those send.
//!
//! What a function has read or written of our state was durable before it was answered (rule P4), so its answer may leave as soon
//! as it is there (rule P5).

mod answer;
mod event;

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Uri, header},
    response::{IntoResponse, Response},
    routing::any,
};
use functions::{PAYLOAD_BYTES_MAX, RouteMatch, Routed};
use ports::runtime::{FunctionError, Invocation, TIMED_OUT};
use serde::Deserialize;

use crate::{
    backend::Backend,
    body,
    connection::Patience,
    problem::{Kind, Problem},
    segment,
};

/// What the paths of all routes begin with.
pub(crate) const PREFIX: &str = "/http";
/// The longest body that is read. The event that carries it is not longer either, so in base64 it is three quarters of that.
pub(crate) const BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;
/// How many functions a request is given to one after the other, each of which a deployment removes before it runs.
const ROUTINGS_MAX: usize = 3;
/// Scripts and forms of a page that a function answers work, and are of no origin: theirs would be that of `/v1`.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/http", any(serve))
        .route("/http/", any(serve))
        .route("/http/{*path}", any(serve))
}

/// Whether a path is one of these.
pub(crate) fn is_below(path: &str) -> bool {
    path.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn serve(State(backend): State<Arc<Backend>>, request: Request) -> Response {
    let mut response = answered(&backend, request)
        .await
        .unwrap_or_else(|response| *response);
    response
        .headers_mut()
        .append(header::CONTENT_SECURITY_POLICY, SANDBOX);
    response
}

/// What a function answers. Errors: an answer of our own, in its place.
async fn answered(backend: &Backend, request: Request) -> Result<Response, Box<Response>> {
    let patience = Patience::of(&request);
    let (parts, body) = request.into_parts();
    let refuse = |problem: Problem| Box::new(problem.into_response());
    let functions = backend.functions().map_err(refuse)?;
    let path = path(&parts.uri).map_err(refuse)?;
    // Who asks for what is not there need not send a body.
    route(functions, parts.method.as_str(), &path)?;
    let whole = body::read(body, BODY_BYTES_MAX, &backend.budget)
        .await
        .map_err(refuse)?;
    // It may take longer than a connection may be quiet.
    let _waits = patience.as_ref().map(Patience::wait);
    let id = functions.new_request_id();
    let caller = patience.as_ref().and_then(Patience::peer);
    let run = routed_anew(|| async {
        // What is deployed now: the body may have taken its time.
        let routed = route(functions, parts.method.as_str(), &path)?;
        let event = event::encode(&parts, &routed, &whole.bytes, &id, caller).map_err(refuse)?;
        match functions
            .invoke(&routed.function, Invocation::new(id.clone(), event, false))
            .await
        {
            Err(functions::Error::NoSuchFunction(_)) => Ok(None),
            ran => Ok(Some((routed, ran.map_err(|error| refuse(error.into()))?))),
        }
    });
    let (routed, ran) = run.await?;
    let of = |why: &str| {
        format!(
            "{why}: the function {:?}, in the request {id}",
            routed.function
        )
    };
    match ran.result {
        Ok(result) => answer::decode(result).map_err(|answer::Unfit { why, detail }| {
            tracing::debug!(
                function = routed.function,
                request = id,
                detail,
                "http: {why}"
            );
            refuse(Problem::new(Kind::FunctionFailed, of(why)))
        }),
        Err(error) => Err(refuse(failed(&error, of))),
    }
}

/// What `attempt` comes to, made anew while that is none: the function was removed just now, before it ran, and the route may be
/// another's.
///
/// Errors: those of `attempt`; a refusal once it came to none [`ROUTINGS_MAX`] times.
async fn routed_anew<T, F>(attempt: impl Fn() -> F) -> Result<T, Box<Response>>
where
    F: Future<Output = Result<Option<T>, Box<Response>>>,
{
    for _ in 0..ROUTINGS_MAX {
        if let Some(ran) = attempt().await? {
            return Ok(ran);
        }
    }
    let why = "deployments remove the functions of this route before they can run: it was not run; try again";
    Err(Box::new(
        Problem::new(Kind::Unavailable, why).into_response(),
    ))
}

/// The function that a request is for. Errors: there is none, or it takes other methods.
fn route(
    functions: &functions::Service,
    method: &str,
    path: &[String],
) -> Result<Routed, Box<Response>> {
    match functions.route(method, path) {
        RouteMatch::Route(routed) => Ok(routed),
        RouteMatch::NotYet => {
            let why = "a function that is deployed for this is not yet in place";
            Err(Box::new(
                Problem::new(Kind::Unavailable, why).into_response(),
            ))
        }
        RouteMatch::Nothing => {
            let detail = format!("no function is deployed for {method} /{}", path.join("/"));
            Err(Box::new(
                Problem::new(Kind::NoSuchPath, detail).into_response(),
            ))
        }
        RouteMatch::ForOthers(methods) => {
            let methods = methods.join(", ");
            let detail = format!("functions are deployed here for {methods} only");
            let mut response = Problem::new(Kind::MethodNotAllowed, detail).into_response();
            let allowed = HeaderValue::try_from(methods).expect("methods are letters");
            response.headers_mut().insert(header::ALLOW, allowed);
            Err(Box::new(response))
        }
    }
}

/// The segments of the path behind the prefix, decoded.
fn path(uri: &Uri) -> Result<Vec<String>, Problem> {
    let refuse = || {
        Problem::new(
            Kind::InvalidRequest,
            "a path is UTF-8, with % before two hexadecimal digits",
        )
    };
    let decoded = raw_path(uri)[1..].split('/').map(|segment| {
        segment::decode(segment)
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(refuse)
    });
    decoded.collect()
}

/// The path behind the prefix, as it came.
fn raw_path(uri: &Uri) -> &str {
    match uri.path().strip_prefix(PREFIX) {
        Some(rest) if rest.starts_with('/') => rest,
        _ => "/",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    error_type: String,
}

/// What a function's failure is to who called it over HTTP: what it said may be nobody's business, its log has it.
fn failed(error: &FunctionError, of: impl Fn(&str) -> String) -> Problem {
    match serde_json::from_slice(&error.payload) {
        Ok(Failure { error_type }) if error_type == TIMED_OUT => {
            Problem::new(Kind::FunctionTimedOut, of("it took longer than it may"))
        }
        _ => Problem::new(Kind::FunctionFailed, of("its log says why")),
    }
}

/// Whether a header is about one connection and not about what is sent over it.
fn is_of_the_connection(name: &HeaderName) -> bool {
    const NAMES: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    ];
    NAMES.contains(&name.as_str())
}

/// Where a request came from, where that is known.
type Peer = Option<SocketAddr>;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A6. However often a deployment takes a function away between its being found and its being run.
    #[tokio::test]
    async fn a_request_is_given_to_so_many_functions_that_are_removed_and_then_refused() {
        for (removed, expected) in [
            (0, Ok("ran")),
            (2, Ok("ran")),
            (3, Err(503)),
            (usize::MAX, Err(503)),
        ] {
            let asked = Cell::new(0);
            let came_to = routed_anew(|| {
                let is_removed = asked.replace(asked.get() + 1) < removed;
                std::future::ready(Ok((!is_removed).then_some("ran")))
            });
            let came_to = came_to.await.map_err(|refused| refused.status().as_u16());
            assert_eq!(
                (came_to, asked.get()),
                (expected, ROUTINGS_MAX.min(removed.saturating_add(1)))
            );
        }
    }

    #[test]
    fn the_prefix_is_ours_and_the_rest_the_functions() {
        for (target, raw) in [
            ("/http", "/"),
            ("/http/", "/"),
            ("/http/orders/a%2Fb?x=/y", "/orders/a%2Fb"),
            ("http://localhost/http/a//", "/a//"),
        ] {
            let uri: Uri = target.parse().expect("a target");
            assert_eq!(raw_path(&uri), raw, "{target}");
        }
        let uri: Uri = "/http/orders/a%2Fb/".parse().expect("a target");
        assert_eq!(path(&uri).expect("segments"), ["orders", "a/b", ""]);
        for wrong in ["/http/%ff", "/http/%", "/http/%zz"] {
            assert_eq!(
                path(&wrong.parse().expect("a target"))
                    .expect_err(wrong)
                    .kind(),
                Kind::InvalidRequest
            );
        }
        assert!(
            is_below("/http")
                && is_below("/http/v1")
                && !is_below("/https")
                && !is_below("/v1/http")
        );
    }
}
