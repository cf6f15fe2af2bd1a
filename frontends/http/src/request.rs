//! A request as the routes below `/v1` read it: names in the path, parameters, JSON, its run.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::{FromRequestParts, Query},
    http::{HeaderMap, Uri, request::Parts},
};
use bytes::Bytes;
use listener::signature::Begun;
use serde::de::{DeserializeOwned, IgnoredAny};
use transactions::model::{Key, RESULT_BYTES_MAX};

use crate::{
    backend::Backend,
    body::{self, Whole},
    headers,
    of_invocation::Invocation,
    problem::{Kind, Problem},
    scope::Scope,
    segment,
};

/// The longest body of a request that carries no value, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;
/// The longest body of a commit, in bytes: a result with the object around it.
pub(crate) const COMMIT_BYTES_MAX: usize = RESULT_BYTES_MAX + 1024;
/// The longest body of a message or an invocation, in bytes: the limit of the service.
pub(crate) const EFFECT_BYTES_MAX: usize = 256 << 10;
/// The longest input of a run, in bytes: the limit of a function's event.
pub(crate) const INPUT_BYTES_MAX: usize = 6 * 1024 * 1024;

/// A request less its body, and the services that answer it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) backend: Arc<Backend>,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// The run that it comes from, if any.
    pub(crate) scope: Option<Scope>,
    /// The invocation that it comes from, if its function has a volume, and it is no step.
    pub(crate) invocation: Option<Invocation>,
    /// Its signature, which the route of Lambda's API compares with the body.
    pub(crate) signature: Option<Begun>,
}

impl FromRequestParts<Arc<Backend>> for Request {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        backend: &Arc<Backend>,
    ) -> Result<Self, Infallible> {
        Ok(Self {
            backend: Arc::clone(backend),
            uri: parts.uri.clone(),
            headers: std::mem::take(&mut parts.headers),
            scope: parts.extensions.remove(),
            invocation: parts.extensions.remove(),
            signature: parts.extensions.remove(),
        })
    }
}

impl Request {
    /// The key at a place of the path. A key whose `?` was not encoded would be another key, so a
    /// query is refused.
    pub(crate) fn key(&self, place: usize) -> Result<Key, Problem> {
        self.refuse_query()?;
        Ok(Key::new(segment::bytes(&self.uri, place)?)?)
    }

    /// The name at a place of the path. Errors: it is not UTF-8.
    pub(crate) fn name(&self, place: usize) -> Result<String, Problem> {
        String::from_utf8(segment::bytes(&self.uri, place)?)
            .map_err(|_| Problem::invalid("a name in a path is UTF-8"))
    }

    /// The parameters of the query. Errors: they do not have this `form`.
    pub(crate) fn query<T: DeserializeOwned>(&self, form: &str) -> Result<T, Problem> {
        let parsed = Query::try_from_uri(&self.uri)
            .map_err(|error| Problem::invalid(format!("{form}: {}", error.body_text())))?;
        Ok(parsed.0)
    }

    /// Refuses a query where none is taken.
    pub(crate) fn refuse_query(&self) -> Result<(), Problem> {
        self.refuse_any_query(
            "no query is taken here: a `?` that is part of a key or an id is sent as %3F",
        )
    }

    /// The same with the reason in the caller's words.
    pub(crate) fn refuse_any_query(&self, why: &str) -> Result<(), Problem> {
        match self.uri.query() {
            Some(_) => Err(Problem::invalid(why)),
            None => Ok(()),
        }
    }

    /// Refuses conditions, ranges and encodings, which the server would ignore.
    pub(crate) fn refuse_conditions(&self) -> Result<(), Problem> {
        headers::refuse_conditions(&self.headers)
    }

    /// The whole body. Errors: those of [`body::read`].
    pub(crate) async fn read(&self, body: Body, bytes_max: usize) -> Result<Whole, Problem> {
        body::read(body, bytes_max, &self.backend.budget).await
    }

    /// The token of the run's attempt, or of the inner step that the request names. Errors: it
    /// comes from no run, or the step belongs to another attempt, or is over.
    pub(crate) fn token(&self) -> Result<Arc<str>, Problem> {
        let why = "who asks is no function that a workflow runs";
        let scope = self.scope.as_ref();
        scope
            .ok_or_else(|| Problem::new(Kind::OutsideOfRun, why))?
            .of(&self.backend, &self.headers)
    }

    /// Waits until the run's dependencies are durable, before a request of its step takes effect
    /// outside of the run (rule P5).
    pub(crate) async fn settle(&self) -> Result<(), Problem> {
        match &self.scope {
            Some(scope) => scope.settle(&self.backend, &self.headers).await,
            None => Ok(()),
        }
    }
}

/// `bytes`, which are JSON; `if_empty` where there are none. Errors: why they are none.
pub(crate) fn json_or(if_empty: &'static str, bytes: &Bytes) -> Result<Bytes, String> {
    if bytes.is_empty() && !if_empty.is_empty() {
        return Ok(Bytes::from_static(if_empty.as_bytes()));
    }
    // JSON is UTF-8, which a parser that skips strings does not check.
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
    Ok(bytes.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_in_utf8() {
        for payload in ["null", r#"{"a": [1e999, "\ud800"]}"#, "\"\u{e4}\""] {
            assert_eq!(
                json_or("{}", &payload.into()).as_deref(),
                Ok(payload.as_bytes())
            );
        }
        assert_eq!(json_or("{}", &Bytes::new()).as_deref(), Ok(&b"{}"[..]));
        for payload in [
            &b"\"\xff\""[..],
            b"{\"\xe4\":1}",
            b"{no json",
            b"1 2",
            b"[",
            b"NaN",
        ] {
            json_or("{}", &Bytes::from_static(payload)).expect_err("it is none");
        }
        json_or("", &Bytes::new()).expect_err("nothing is no JSON");
    }
}
