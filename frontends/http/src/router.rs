//! All routes, and those that report on the server itself.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderName, HeaderValue, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    api,
    backend::Backend,
    gateway,
    guard::{Hosts, Rules, guard, guard_routes},
    lambda, metrics, openapi, peers,
    problem::{Kind, Problem},
    response::{json, json_text},
    segment,
    status::Snapshot,
};

type Shared = Arc<dyn Snapshot>;

/// The page may load nothing from another site, and no other site may frame it.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub(crate) fn router(snapshot: Shared, backend: Arc<Backend>, rules: Rules) -> Router {
    let services = for_all()
        .merge(peers::routes())
        .merge(api::applications::routes())
        .merge(api::queues::routes())
        .merge(api::backup::routes())
        .merge(api::open_transactions::routes())
        .merge(api::volumes::routes())
        .merge(gateway::below_prefix())
        .with_state(backend);
    Router::new()
        .route("/", get(page))
        .route("/health/live", get(live))
        .route("/health/ready", get(is_ready))
        .route("/metrics", get(scrape))
        .route("/openapi.json", get(description))
        .route("/v1/status", get(status))
        .with_state(snapshot)
        .merge(services)
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::new(rules), guard))
        .layer(middleware::map_response(harden))
}

/// The routes for clients and for functions.
pub(crate) fn for_all() -> Router<Arc<Backend>> {
    api::transactions::routes()
        .merge(api::effects::routes())
        .merge(api::state::routes())
        .merge(api::workflows::routes())
        .merge(api::steps::routes())
        .merge(api::volume_files::routes())
        .merge(lambda::routes())
}

/// The routes of the listener for them, with their responses as functions give them.
pub(crate) fn for_routes(backend: Arc<Backend>, hosts: Hosts) -> Router {
    gateway::at_root()
        .with_state(backend)
        .layer(middleware::from_fn_with_state(
            Arc::new(hosts),
            guard_routes,
        ))
}

/// The routes for a connection past the limit.
pub(crate) fn refusal(connections_max: usize) -> Router {
    Router::new()
        .fallback(async move || {
            let why = format!("the server has the {connections_max} connections that it takes");
            Problem::new(Kind::Unavailable, why)
        })
        .layer(middleware::map_response(harden))
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
    ];
    (headers, include_str!("page/index.html")).into_response()
}

/// Reports that the process runs and its event loop turns. It calls no store.
async fn live() -> Response {
    json_text(r#"{"status":"live"}"#)
}

async fn is_ready(State(snapshot): State<Shared>) -> Response {
    match snapshot.status().why_not_ready() {
        None => json_text(r#"{"status":"ready"}"#),
        Some(reason) => Problem::new(Kind::NotReady, reason).into_response(),
    }
}

async fn scrape(State(snapshot): State<Shared>) -> Response {
    let text = metrics::render(&snapshot.status());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn description() -> Response {
    json_text(openapi::document())
}

async fn status(State(snapshot): State<Shared>) -> Response {
    json(&snapshot.status())
}

pub(crate) async fn no_such_path(uri: Uri) -> Response {
    let why = format!("{} is not described in /openapi.json", uri.path());
    not_routed(&uri, Kind::NoSuchPath, with_hint(&uri, why))
}

/// The same with what the path may be meant to be.
fn with_hint(uri: &Uri, why: String) -> String {
    match segment::with_slashes_encoded(uri.path()) {
        Some(meant) => format!(
            "{why}: a key or a name is one segment of a path, so a slash within it is sent as %2F: {meant}"
        ),
        None => why,
    }
}

pub(crate) async fn not_for_functions(uri: Uri) -> Response {
    let why = format!("{} is not served to functions", uri.path());
    not_routed(&uri, Kind::NoSuchPath, with_hint(&uri, why))
}

pub(crate) async fn method_not_allowed(uri: Uri) -> Response {
    let why = "the Allow header names the methods that it takes";
    not_routed(&uri, Kind::MethodNotAllowed, why.to_owned())
}

fn not_routed(uri: &Uri, kind: Kind, why: String) -> Response {
    if lambda::is_of_the_api(uri.path()) {
        return lambda::not_offered();
    }
    Problem::new(kind, why).into_response()
}

/// Sets the headers of every response: no sniffing, no caching, no sharing with other sites. A
/// function may allow caching.
async fn harden(mut response: Response) -> Response {
    const NO_SHARING: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    let value = HeaderValue::from_static;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, value("nosniff"));
    headers.insert(header::REFERRER_POLICY, value("no-referrer"));
    headers.insert(NO_SHARING, value("same-origin"));
    let caching = headers.entry(header::CACHE_CONTROL);
    caching.or_insert(value("no-store"));
    response
}
