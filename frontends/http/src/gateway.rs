//! Functions as an HTTP API. A request becomes an event in API Gateway's payload format 2.0 for the
//! function of its route. The function's result becomes the response.
//!
//! Routes are served in two places:
//! - At the root of a listener of their own, which serves nothing else. It is the default stage of
//!   API Gateway. Its origin is that of the functions alone, so their pages and their answers to
//!   CORS are left as they are.
//! - Below `/http` of the main listener, as behind a stage of that name. The prefix separates the
//!   routes of applications from ours permanently: neither can ever hide the other. These paths
//!   share an origin with the routes that deploy functions and read all state. So every response is
//!   [sandboxed](SANDBOX): a browser gives its scripts no origin, and the guard refuses their
//!   requests.
//!
//! The state that a function has read or written was durable before it got its response (rule P4).
//! So the function's result may be sent at once (rule P5).

mod cors;
mod event;
mod result;
mod streamed;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header},
    response::Response,
    routing::any,
};
use functions::{Cors, PAYLOAD_BYTES_MAX, RouteMatch, Routed};
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

/// The longest body, in bytes. The event that carries it has the same limit, so a body in base64
/// has three quarters of it.
pub(crate) const BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;
/// How many functions are tried for one request when deployments remove each before it runs.
const ROUTINGS_MAX: usize = 3;
/// Scripts and forms of a function's page work, but have no origin. Otherwise they had the origin
/// of `/v1`.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");
/// API Gateway's header for the id of a request, which is also that of the function's log.
const REQUEST_ID: HeaderName = HeaderName::from_static("apigw-requestid");

/// A place where routes are served, in the terms of API Gateway.
#[derive(Debug)]
struct Stage {
    /// Its name in the context of a request.
    name: &'static str,
    /// The part of each path before the route.
    prefix: &'static str,
}

impl Stage {
    const ROOT: Self = Self {
        name: "$default",
        prefix: "",
    };
    const BELOW_PREFIX: Self = Self {
        name: "http",
        prefix: "/http",
    };

    /// The decoded segments of a path after the prefix.
    fn path(&self, uri: &Uri) -> Result<Vec<String>, Problem> {
        let refuse = || Problem::invalid("a path is UTF-8, with % before two hexadecimal digits");
        let decoded = self.rest(uri)[1..].split('/').map(|segment| {
            segment::decode(segment)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(refuse)
        });
        decoded.collect()
    }

    /// The path after the prefix, from its slash on.
    fn rest<'a>(&self, uri: &'a Uri) -> &'a str {
        match uri.path().strip_prefix(self.prefix) {
            Some(rest) if rest.starts_with('/') => rest,
            _ => "/",
        }
    }
}

/// The routes below the prefix of the main listener.
pub(crate) fn below_prefix() -> Router<Arc<Backend>> {
    let sandboxed = async |State(backend): State<Arc<Backend>>, request: Request| {
        let mut response = serve(&Stage::BELOW_PREFIX, &backend, request).await;
        let headers = response.headers_mut();
        headers.append(header::CONTENT_SECURITY_POLICY, SANDBOX);
        response
    };
    Router::new()
        .route("/http", any(sandboxed))
        .route("/http/", any(sandboxed))
        .route("/http/{*path}", any(sandboxed))
}

/// The routes of a listener of their own.
pub(crate) fn at_root() -> Router<Arc<Backend>> {
    let plain = async |State(backend): State<Arc<Backend>>, request: Request| {
        serve(&Stage::ROOT, &backend, request).await
    };
    Router::new().fallback(plain)
}

pub(crate) fn is_below(path: &str) -> bool {
    path.strip_prefix(Stage::BELOW_PREFIX.prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn serve(stage: &Stage, backend: &Backend, request: Request) -> Response {
    let asked = cors::Asked::by(request.headers());
    if let Some(response) = preflight(stage, backend, &asked, &request) {
        return response;
    }
    let mut settings = None;
    let answered = answered(stage, backend, request, &mut settings).await;
    let mut response = answered.unwrap_or_else(Problem::into_gateway_response);
    if let Some(settings) = settings {
        cors::replace(&settings, &asked, response.headers_mut());
    }
    response
}

/// The response to a preflight request for an application with CORS settings.
fn preflight(
    stage: &Stage,
    backend: &Backend,
    asked: &cors::Asked,
    request: &Request,
) -> Option<Response> {
    let method = asked
        .method()
        .filter(|_| request.method() == Method::OPTIONS)?;
    let path = stage.path(request.uri()).ok()?;
    let settings = backend.functions().ok()?.cors(method, &path)?;
    Some(cors::preflight(&settings, asked))
}

/// The function's response. `settings` are set to the CORS settings of its application.
async fn answered(
    stage: &Stage,
    backend: &Backend,
    request: Request,
    settings: &mut Option<Arc<Cors>>,
) -> Answer {
    let peer = request.extensions().get::<Peer>().copied();
    let (parts, body) = request.into_parts();
    let functions = backend.functions()?;
    backend.check_takes_work()?;
    let path = stage.path(&parts.uri)?;
    // A client need not send a body for a route that does not exist.
    *settings = route(functions, parts.method.as_str(), &path)?.cors;
    let whole = body::read(body, BODY_BYTES_MAX, &backend.budget).await?;
    let id = functions.new_request_id();
    let run = routed_anew(|| async {
        // Route anew: the deployment may have changed while the body arrived.
        let routed = route(functions, parts.method.as_str(), &path)?;
        let event = event::encode(stage, &parts, &routed, &whole.bytes, &id, peer)?;
        let invocation = Invocation::new(id.clone(), event, false);
        match functions.invoke(&routed.function, invocation).await {
            Err(functions::Error::NoSuchFunction(_)) => Ok(None),
            ran => Ok(Some((routed, ran?))),
        }
    });
    let (Routed { function, cors, .. }, ran) = run.await?;
    *settings = cors;
    let of = |why: &str| format!("{why}: the function {function:?}, in the request {id}");
    let decoded = match ran.result {
        Ok(result) => streamed::decode(result).map_err(|result::Unfit { why, detail }| {
            tracing::debug!(function, request = id, detail, "http: {why}");
            Problem::new(Kind::FunctionFailed, of(why))
        }),
        Err(error) => Err(failed(&error, of)),
    };
    let mut response = decoded.unwrap_or_else(Problem::into_gateway_response);
    add_request_id(response.headers_mut(), &id);
    Ok(response)
}

fn add_request_id(headers: &mut HeaderMap, id: &str) {
    let id = HeaderValue::from_str(id).expect("an id is letters, digits and dashes");
    headers.insert(REQUEST_ID, id);
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
        let (below, root) = (&Stage::BELOW_PREFIX, &Stage::ROOT);
        for (stage, target, rest) in [
            (below, "/http", "/"),
            (below, "/http/", "/"),
            (below, "/http/orders/a%2Fb?x=/y", "/orders/a%2Fb"),
            (below, "http://localhost/http/a//", "/a//"),
            (root, "/", "/"),
            (root, "/http/orders/a%2Fb?x=/y", "/http/orders/a%2Fb"),
            (root, "http://localhost", "/"),
            (root, "*", "/"),
        ] {
            let uri: Uri = target.parse().expect("a target");
            assert_eq!(stage.rest(&uri), rest, "{target}");
        }
        let uri: Uri = "/http/orders/a%2Fb/".parse().expect("a target");
        assert_eq!(below.path(&uri).expect("segments"), ["orders", "a/b", ""]);
        for wrong in ["/http/%ff", "/http/%", "/http/%zz"] {
            let uri: Uri = wrong.parse().expect("a target");
            for stage in [below, root] {
                let refused = stage.path(&uri).expect_err(wrong);
                assert_eq!(refused.kind(), Kind::InvalidRequest);
            }
        }
        assert!(
            is_below("/http")
                && is_below("/http/v1")
                && !is_below("/https")
                && !is_below("/v1/http")
        );
    }
}
