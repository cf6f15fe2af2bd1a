//! Functions as an HTTP API. A request below `/http` becomes an event in API Gateway's payload
//! format 2.0 for the function of its route. The function's result becomes the response.
//!
//! The prefix separates the routes of applications from ours permanently: neither can ever hide the
//! other. A function sees its path without the prefix, as behind a stage of API Gateway.
//!
//! These paths share an origin with the routes that deploy functions and read all state. So every
//! response is [sandboxed](SANDBOX): a browser gives its scripts no origin, and the guard refuses
//! their requests.
//!
//! The state that a function has read or written was durable before it got its response (rule P4).
//! So the function's result may be sent at once (rule P5).

mod event;
mod result;
mod streamed;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Uri, header},
    response::{IntoResponse, Response},
    routing::any,
};
use functions::{PAYLOAD_BYTES_MAX, RouteMatch, Routed};
use listener::Peer;
use ports::runtime::{FunctionError, Invocation, TIMED_OUT};
use serde::Deserialize;

use crate::{
    backend::Backend,
    body,
    problem::{Kind, Problem},
    response::Answer,
    segment,
};

/// The prefix of all these paths.
pub(crate) const PREFIX: &str = "/http";
/// The longest body, in bytes. The event that carries it has the same limit, so a body in base64
/// has three quarters of it.
pub(crate) const BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;
/// How many functions are tried for one request when deployments remove each before it runs.
const ROUTINGS_MAX: usize = 3;
/// Scripts and forms of a function's page work, but have no origin. Otherwise they had the origin
/// of `/v1`.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/http", any(serve))
        .route("/http/", any(serve))
        .route("/http/{*path}", any(serve))
}

pub(crate) fn is_below(path: &str) -> bool {
    path.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn serve(State(backend): State<Arc<Backend>>, request: Request) -> Response {
    let mut response = answered(&backend, request).await.into_response();
    response
        .headers_mut()
        .append(header::CONTENT_SECURITY_POLICY, SANDBOX);
    response
}

async fn answered(backend: &Backend, request: Request) -> Answer {
    let peer = request.extensions().get().map(|Peer(address)| *address);
    let (parts, body) = request.into_parts();
    let functions = backend.functions()?;
    let path = path(&parts.uri)?;
    // A client need not send a body for a route that does not exist.
    route(functions, parts.method.as_str(), &path)?;
    let whole = body::read(body, BODY_BYTES_MAX, &backend.budget).await?;
    let id = functions.new_request_id();
    let run = routed_anew(|| async {
        // Route anew: the deployment may have changed while the body arrived.
        let routed = route(functions, parts.method.as_str(), &path)?;
        let event = event::encode(&parts, &routed, &whole.bytes, &id, peer)?;
        let invocation = Invocation::new(id.clone(), event, false);
        match functions.invoke(&routed.function, invocation).await {
            Err(functions::Error::NoSuchFunction(_)) => Ok(None),
            ran => Ok(Some((routed, ran?))),
        }
    });
    let (Routed { function, .. }, ran) = run.await?;
    let of = |why: &str| format!("{why}: the function {function:?}, in the request {id}");
    match ran.result {
        Ok(result) => streamed::decode(result).map_err(|result::Unfit { why, detail }| {
            tracing::debug!(function, request = id, detail, "http: {why}");
            Problem::new(Kind::FunctionFailed, of(why))
        }),
        Err(error) => Err(failed(&error, of)),
    }
}

/// The result of `attempt`, which is repeated while it is `None`: the function was removed before
/// it ran, and the route may now belong to another.
///
/// Errors: those of `attempt`; a refusal after [`ROUTINGS_MAX`] attempts without a result.
async fn routed_anew<T, F>(attempt: impl Fn() -> F) -> Result<T, Problem>
where
    F: Future<Output = Result<Option<T>, Problem>>,
{
    for _ in 0..ROUTINGS_MAX {
        if let Some(ran) = attempt().await? {
            return Ok(ran);
        }
    }
    let why = "deployments remove the functions of this route before they can run: it was not run; try again";
    Err(Problem::new(Kind::Unavailable, why))
}

/// The function for a request. Errors: there is none, or it takes other methods.
fn route(functions: &functions::Service, method: &str, path: &[String]) -> Result<Routed, Problem> {
    match functions.route(method, path) {
        RouteMatch::Route(routed) => Ok(routed),
        RouteMatch::NotYet => {
            let why = "a function that is deployed for this is not yet in place";
            Err(Problem::new(Kind::Unavailable, why))
        }
        RouteMatch::Nothing => {
            let why = format!("no function is deployed for {method} /{}", path.join("/"));
            Err(Problem::new(Kind::NoSuchPath, why))
        }
        RouteMatch::ForOthers(methods) => Err(Problem::other_methods(&methods.join(", "))),
    }
}

/// The decoded segments of the path after the prefix.
fn path(uri: &Uri) -> Result<Vec<String>, Problem> {
    let refuse = || Problem::invalid("a path is UTF-8, with % before two hexadecimal digits");
    let decoded = raw_path(uri)[1..].split('/').map(|segment| {
        segment::decode(segment)
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(refuse)
    });
    decoded.collect()
}

/// The raw path after the prefix.
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

/// The problem for a function's failure. Its error may be confidential, so only the log has it.
fn failed(error: &FunctionError, of: impl Fn(&str) -> String) -> Problem {
    match serde_json::from_slice(&error.payload) {
        Ok(Failure { error_type }) if error_type == TIMED_OUT => {
            Problem::new(Kind::FunctionTimedOut, of("it took longer than it may"))
        }
        _ => Problem::new(Kind::FunctionFailed, of("its log says why")),
    }
}

/// Whether a header concerns only one connection.
fn is_of_the_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "upgrade"
            | "expect"
            | "te"
            | "trailer"
            | "transfer-encoding"
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A6. Deployments may remove a function between its routing and its run, any number of times.
    #[tokio::test]
    async fn a_request_is_given_to_so_many_functions_that_are_removed_and_then_refused() {
        for (removed, expected) in [
            (0, Ok("ran")),
            (2, Ok("ran")),
            (3, Err(Kind::Unavailable)),
            (usize::MAX, Err(Kind::Unavailable)),
        ] {
            let asked = Cell::new(0);
            let came_to = routed_anew(|| {
                let is_removed = asked.replace(asked.get() + 1) < removed;
                std::future::ready(Ok((!is_removed).then_some("ran")))
            });
            let came_to = came_to.await.map_err(|refused| refused.kind());
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
