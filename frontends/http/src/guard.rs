//! Checks that every request passes before its route: host, origin, token and body length.
//!
//! A browser sends requests to `127.0.0.1` on behalf of any page. Two headers reveal that. `Host`
//! carries a name that an attacker pointed at this machine (DNS rebinding). `Origin` carries the
//! page. The port in `Host` is not compared, so that a tunnel from another local port works. A page
//! on another local port is still foreign, since its `Origin` differs from the `Host` it calls.
//!
//! A page of another site may send a form, or a request that needs no permission, and change
//! something without reading the response (cross-site request forgery). Browsers send `Origin` with
//! every method but GET and HEAD. Older browsers that omit it send at least `Sec-Fetch-Site`, so
//! requests that change something are checked for that too. No response permits another site
//! anything. So the browser does not even send requests that need permission (PUT, DELETE, a header
//! of ours).

use std::{
    net::IpAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use listener::{
    Peer,
    signature::{self, ALGORITHM, Begun, Keys},
};
use transactions::peers::MESSAGE_BYTES_MAX;

use crate::{
    body, gateway,
    headers::single,
    lambda, peers,
    problem::{Kind, Problem},
    request::{BODY_BYTES_MAX, COMMIT_BYTES_MAX, EFFECT_BYTES_MAX, INPUT_BYTES_MAX},
};

/// The browser's statement about the page that sent a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The requirements of a request.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Whether the listener is on loopback, where only a few names are valid in `Host`.
    pub(crate) loopback: bool,
    /// The token that `Authorization` must carry. `None`: no token is required.
    pub(crate) token: Option<String>,
    /// The keys that sign calls of Lambda's API, in place of the token. `None`: signatures are not
    /// checked.
    pub(crate) keys: Option<Keys>,
    /// The longest value that a PUT may carry.
    pub(crate) value_bytes_max: usize,
}

/// The names that `Host` may have on the listener of routes.
///
/// A loopback name is always valid. Any other must be configured, also if it is the machine's own:
/// an attacker's name can point there too.
#[derive(Debug)]
pub(crate) struct Hosts(Vec<String>);

/// The `Host` for any name.
const ANY_HOST: &str = "*";

impl Hosts {
    /// Those of this machine, and these in lower case; `*` for any.
    pub(crate) fn new(configured: Vec<String>) -> Self {
        Self(configured)
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        if self.0.iter().any(|host| host == ANY_HOST) {
            return Ok(());
        }
        let host = host_of(request)?;
        let target = request.uri().authority();
        let knows = |authority: &Authority| {
            let name = authority.host().to_ascii_lowercase();
            is_loopback_name(&name) || self.0.contains(&name)
        };
        if host.as_ref().is_some_and(knows) && target.is_none_or(knows) {
            return Ok(());
        }
        let why = "use 127.0.0.1, [::1] or localhost, or start the server with this name in --routes-hosts";
        Err(Problem::new(Kind::UnknownHost, why))
    }
}

/// Refuses requests for routes that name another host or are too long, and passes the others on.
pub(crate) async fn guard_routes(
    State(hosts): State<Arc<Hosts>>,
    request: Request,
    next: Next,
) -> Response {
    body::lend_to(request, async |request| {
        let checked = hosts
            .check(&request)
            .and_then(|()| check_length(&request, gateway::BODY_BYTES_MAX));
        match checked {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_gateway_response(),
        }
    })
    .await
}

/// Refuses requests that break the rules, and passes the others on.
pub(crate) async fn guard(
    State(rules): State<Arc<Rules>>,
    request: Request,
    next: Next,
) -> Response {
    body::lend_to(request, async |mut request| {
        match rules.check_signature(&request) {
            Some(Ok(begun)) => drop(request.extensions_mut().insert(begun)),
            Some(Err(error)) => return lambda::refused(error),
            None => {}
        }
        match rules.check(&request) {
            Ok(()) => {
                if rules.token.is_some() {
                    // The token is for this server. A function that received it could use it against
                    // the server.
                    request.headers_mut().remove(header::AUTHORIZATION);
                }
                next.run(request).await
            }
            Err(problem) => problem.into_response(),
        }
    })
    .await
}

impl Rules {
    /// The signature of a call of Lambda's API. None: it is not signed, or signatures are not
    /// checked. A call without a body is checked whole; the route checks one with a body.
    fn check_signature(&self, request: &Request) -> Option<Result<Begun, signature::Error>> {
        let (keys, headers) = (self.keys.as_ref()?, request.headers());
        let authorization = headers.get(header::AUTHORIZATION);
        let is_signed =
            authorization.is_some_and(|value| value.as_bytes().starts_with(ALGORITHM.as_bytes()));
        if !lambda::is_of_the_api(request.uri().path())
            || !(is_signed || self.token.is_some() && authorization.is_none())
        {
            return None;
        }
        let head = (request.method(), request.uri(), headers);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_1970.unwrap_or_default().as_secs();
        let begun = signature::begin(keys, "lambda", head, now);
        Some(begun.and_then(|begun| {
            if *request.method() != Method::POST {
                begun.finish(b"")?;
            }
            Ok(begun)
        }))
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let host = self.check_host(request)?;
        check_origin(request, host.as_ref())?;
        if !request.method().is_safe() {
            check_site(headers)?;
        }
        let is_signed = request.extensions().get::<Begun>().is_some();
        if !is_signed && !request.uri().path().starts_with("/health/") {
            self.check_token(headers)?;
        }
        self.check_length(request)
    }

    fn check_host(&self, request: &Request) -> Result<Option<Authority>, Problem> {
        let host = host_of(request)?;
        let target = request.uri().authority();
        if self.loopback {
            let names_us = |authority: &Authority| is_loopback_name(authority.host());
            if !host.as_ref().is_some_and(names_us) || !target.is_none_or(names_us) {
                let why = "use 127.0.0.1, [::1] or localhost";
                return Err(Problem::new(Kind::UnknownHost, why));
            }
        }
        Ok(host)
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let given = single(headers, &header::AUTHORIZATION).ok().flatten();
        if let Some((scheme, secret)) = given.and_then(|given| given.split_once(' '))
            && scheme.eq_ignore_ascii_case("bearer")
            && is_same_secret(secret.trim(), token)
        {
            return Ok(());
        }
        let why = "send Authorization: Bearer with LANDFAST_TOKEN";
        Err(Problem::new(Kind::Unauthorized, why))
    }

    fn check_length(&self, request: &Request) -> Result<(), Problem> {
        let path = request.uri().path();
        let bytes_max = match *request.method() {
            _ if gateway::is_below(path) => gateway::BODY_BYTES_MAX,
            Method::PUT => self.value_bytes_max,
            // Its route refuses it with Lambda's error.
            Method::POST if path.starts_with(lambda::PREFIX) => return Ok(()),
            Method::POST if path == peers::PATH => MESSAGE_BYTES_MAX,
            Method::POST if path.starts_with("/v1/workflows/") => INPUT_BYTES_MAX,
            Method::POST
                if path.contains("/messages/")
                    || path.contains("/invocations/")
                    || path.starts_with("/v1/queues/") =>
            {
                EFFECT_BYTES_MAX
            }
            Method::POST if path.starts_with("/v1/volumes/") => self.value_bytes_max,
            Method::POST if path.ends_with("/commit") => COMMIT_BYTES_MAX,
            _ => BODY_BYTES_MAX,
        };
        check_length(request, bytes_max)
    }
}

/// The host that the request names. Errors: it is none.
fn host_of(request: &Request) -> Result<Option<Authority>, Problem> {
    let refuse = |detail: &str| Problem::new(Kind::UnknownHost, detail);
    let named = single(request.headers(), &header::HOST)
        .map_err(|()| refuse("send one Host header of visible characters"))?;
    let host = named.map(str::parse).transpose();
    host.map_err(|_| refuse("the Host header is not a host and a port"))
}

/// Refuses a body that is announced as longer than `bytes_max`.
fn check_length(request: &Request, bytes_max: usize) -> Result<(), Problem> {
    let Ok(Some(length)) = single(request.headers(), &header::CONTENT_LENGTH) else {
        return Ok(());
    };
    match length.parse::<usize>() {
        Ok(bytes) if bytes <= bytes_max => Ok(()),
        _ => Err(body::too_large(bytes_max)),
    }
}

fn check_origin(request: &Request, host: Option<&Authority>) -> Result<(), Problem> {
    let why = "the Origin is not the host that was called";
    let refuse = || Problem::new(Kind::ForeignOrigin, why);
    let Some(origin) = single(request.headers(), &header::ORIGIN).map_err(|()| refuse())? else {
        return Ok(());
    };
    let peer = request.extensions().get::<Peer>();
    let is_encrypted = peer.is_some_and(|peer| peer.is_encrypted);
    let scheme = if is_encrypted { "https://" } else { "http://" };
    let authority = origin
        .strip_prefix(scheme)
        .and_then(|rest| rest.parse::<Authority>().ok());
    match (authority, host) {
        (Some(origin), Some(host)) if origin == *host => Ok(()),
        _ => Err(refuse()),
    }
}

/// Refuses a request that changes something and that a page of another site sent.
fn check_site(headers: &HeaderMap) -> Result<(), Problem> {
    let site = single(headers, &SEC_FETCH_SITE);
    if matches!(site, Ok(None | Some("same-origin" | "none"))) {
        return Ok(());
    }
    let why = "the page that sent this is of another site";
    Err(Problem::new(Kind::ForeignOrigin, why))
}

fn is_loopback_name(host: &str) -> bool {
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let bare = in_brackets.unwrap_or(host);
    let address = bare.parse::<IpAddr>();
    bare.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Compares without stopping at the first difference, so that timing reveals only the length.
fn is_same_secret(given: &str, right: &str) -> bool {
    let pairs = given.bytes().zip(right.bytes());
    let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
    given.len() == right.len() && difference == 0
}
