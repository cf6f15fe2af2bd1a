//! The routes that show the server itself, all of them reading, and what every route shares.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    applications,
    backend::Backend,
    effects, gateway,
    guard::{Rules, guard},
    lambda, metrics, peers,
    problem::{Kind, Problem},
    state,
    status::Snapshot,
    steps, transactions, workflows,
};

type Shared = Arc<dyn Snapshot>;

/// Nothing on the page may come from, or be shown within, another site.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub(crate) fn router(snapshot: Shared, backend: Backend, rules: Rules) -> Router {
    let services = transactions::routes()
        .merge(effects::routes())
        .merge(state::routes())
        .merge(peers::routes())
        .merge(applications::routes())
        .merge(gateway::routes())
        .merge(lambda::routes())
        .merge(workflows::routes())
        .merge(steps::routes())
        .with_state(Arc::new(backend));
    Router::new()
        .route("/", get(page))
        .route("/health/live", get(live))
        .route("/health/ready", get(is_ready))
        .route("/metrics", get(scrape))
        .route("/openapi.json", get(openapi))
        .route("/v1/status", get(status))
        .with_state(snapshot)
        .merge(services)
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::new(rules), guard))
        .layer(middleware::map_response(harden))
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
    ];
    (headers, include_str!("page/index.html")).into_response()
}

/// The process runs and its event loop turns; nothing is asked of any store.
async fn live() -> Response {
    json(r#"{"status":"live"}"#)
}

async fn is_ready(State(snapshot): State<Shared>) -> Response {
    match snapshot.status().why_not_ready() {
        None => json(r#"{"status":"ready"}"#),
        Some(reason) => Problem::new(Kind::NotReady, reason).into_response(),
    }
}

async fn scrape(State(snapshot): State<Shared>) -> Response {
    match metrics::render(snapshot.status()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "http: the metrics could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn openapi() -> Response {
    json(include_str!("openapi.json"))
}

async fn status(State(snapshot): State<Shared>) -> Response {
    json(serde_json::to_string(&snapshot.status()).expect("numbers and strings always serialise"))
}

pub(crate) async fn no_such_path(uri: Uri) -> Response {
    if lambda::is_of_the_api(uri.path()) {
        return lambda::not_offered();
    }
    Problem::new(
        Kind::NoSuchPath,
        format!("{} is not described in /openapi.json", uri.path()),
    )
    .into_response()
}

pub(crate) async fn not_for_functions(uri: Uri) -> Response {
    if lambda::is_of_the_api(uri.path()) {
        return lambda::not_offered();
    }
    Problem::new(
        Kind::NoSuchPath,
        format!("{} is not served to functions", uri.path()),
    )
    .into_response()
}

pub(crate) async fn method_not_allowed(uri: Uri) -> Response {
    if lambda::is_of_the_api(uri.path()) {
        return lambda::not_offered();
    }
    Problem::new(
        Kind::MethodNotAllowed,
        "the Allow header names the methods that it takes",
    )
    .into_response()
}

/// What every answer carries: nothing is guessed, kept or told to another site. A function may have its answers kept.
async fn harden(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// An answer in JSON.
pub(crate) fn json(body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}
