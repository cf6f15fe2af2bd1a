//! What routes read from a request: bounds of bodies, names in the path, parameters, JSON.

use axum::{extract::Query, http::Uri};
use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use transactions::model::Key;

use crate::{
    problem::{Kind, Problem},
    segment,
};

/// The longest body of a request that carries no value, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;
/// The longest body of a message or an invocation, in bytes: the limit of the service.
pub(crate) const EFFECT_BYTES_MAX: usize = 256 << 10;
/// The longest input of a run, in bytes: the limit of a function's event.
pub(crate) const INPUT_BYTES_MAX: usize = 6 * 1024 * 1024;

/// The key at a place of the path. A key whose `?` was not encoded would be another key, so a query
/// is refused.
pub(crate) fn key(uri: &Uri, place: usize) -> Result<Key, Problem> {
    refuse_query(uri)?;
    Ok(Key::new(segment::bytes(uri, place)?)?)
}

/// The name of `what` at a place of the path. Errors: it is not UTF-8.
pub(crate) fn text(uri: &Uri, place: usize, what: &str) -> Result<String, Problem> {
    let refuse = |_| {
        let why = format!("the name of {what} is UTF-8");
        Problem::new(Kind::InvalidRequest, why)
    };
    String::from_utf8(segment::bytes(uri, place)?).map_err(refuse)
}

/// The parameters of the query. Errors: they do not have this `form`.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri, form: &str) -> Result<T, Problem> {
    let parsed = Query::try_from_uri(uri).map_err(|error| {
        let why = format!("{form}: {}", error.body_text());
        Problem::new(Kind::InvalidRequest, why)
    })?;
    Ok(parsed.0)
}

/// Refuses a query where none is taken.
pub(crate) fn refuse_query(uri: &Uri) -> Result<(), Problem> {
    refuse_any_query(
        uri,
        "no query is taken here: a `?` that is part of a key or an id is sent as %3F",
    )
}

/// The same with the reason in the caller's words.
pub(crate) fn refuse_any_query(uri: &Uri, why: &str) -> Result<(), Problem> {
    if uri.query().is_some() {
        Err(Problem::new(Kind::InvalidRequest, why))
    } else {
        Ok(())
    }
}

/// `bytes`, which are JSON; `{}` where there are none. Errors: why they are none.
pub(crate) fn json_or_empty(bytes: &Bytes) -> Result<Bytes, String> {
    if bytes.is_empty() {
        return Ok(Bytes::from_static(b"{}"));
    }
    // A text of JSON is UTF-8, which who skips its strings does not look at.
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
                json_or_empty(&payload.into()).as_deref(),
                Ok(payload.as_bytes())
            );
        }
        for payload in [
            &b"\"\xff\""[..],
            b"{\"\xe4\":1}",
            b"{no json",
            b"1 2",
            b"[",
            b"NaN",
        ] {
            json_or_empty(&Bytes::from_static(payload)).expect_err("it is none");
        }
    }
}
