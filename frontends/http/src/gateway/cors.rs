//! CORS by the settings of an application, as API Gateway's HTTP APIs apply them: the gateway
//! answers preflight requests, and replaces the CORS headers of responses.
//!
//! A page of an origin that is not allowed gets the same responses without CORS headers. Its
//! browser then keeps them from the page.

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use functions::Cors;

/// What a request says of the page that sent it.
#[derive(Debug)]
pub(super) struct Asked {
    origin: Option<String>,
    /// The method that a preflight request asks about.
    method: Option<String>,
}

impl Asked {
    pub(super) fn by(headers: &HeaderMap) -> Self {
        let text = |name| {
            let value: &HeaderValue = headers.get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        Self {
            origin: text(header::ORIGIN),
            method: text(header::ACCESS_CONTROL_REQUEST_METHOD),
        }
    }

    /// The method that it asks about, if it can be a preflight request.
    pub(super) fn method(&self) -> Option<&str> {
        self.origin.as_ref()?;
        self.method.as_deref()
    }
}

/// The response to a preflight request.
pub(super) fn preflight(settings: &Cors, asked: &Asked) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    if permit(settings, asked, headers) {
        let (methods, names) = (&settings.allow_methods, &settings.allow_headers);
        insert_list(headers, header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        insert_list(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, names);
        let max_age = settings.max_age_s.map(HeaderValue::from);
        headers.extend(max_age.map(|seconds| (header::ACCESS_CONTROL_MAX_AGE, seconds)));
    }
    response
}

/// Replaces the CORS headers of a function's response.
pub(super) fn replace(settings: &Cors, asked: &Asked, headers: &mut HeaderMap) {
    for name in [
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        header::ACCESS_CONTROL_MAX_AGE,
    ] {
        headers.remove(name);
    }
    if permit(settings, asked, headers) {
        let exposed = &settings.expose_headers;
        insert_list(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}

/// Permits the page to read the response, if its origin is allowed. Returns whether it is.
fn permit(settings: &Cors, asked: &Asked, headers: &mut HeaderMap) -> bool {
    if settings.allow_origins.iter().all(|entry| entry != "*") {
        // A cache must not give the response for one origin to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    let origin = asked.origin.as_deref();
    let allowed = origin.and_then(|origin| settings.allowed_origin(origin));
    let Some(Ok(allowed)) = allowed.map(HeaderValue::from_str) else {
        return false;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    if settings.allow_credentials {
        let yes = HeaderValue::from_static("true");
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
    }
    true
}

/// A header with this list, unless it is empty.
fn insert_list(headers: &mut HeaderMap, name: HeaderName, entries: &[String]) {
    if !entries.is_empty() {
        let value = HeaderValue::try_from(entries.join(","));
        headers.insert(name, value.expect("the entries of a manifest are checked"));
    }
}
