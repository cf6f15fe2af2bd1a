//! The headers of calls: the attempt of a transaction, and the commit that must be visible.

use std::str::FromStr;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use transactions::model::{After, Attempt};

use crate::problem::Problem;

/// The begin of a transaction that a call belongs to. Without it the latest.
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("landfast-attempt");
/// The client's last commit, which a transaction must see.
pub(crate) const AFTER: HeaderName = HeaderName::from_static("landfast-after");

/// The index of a call among the effects of its transaction, from zero. A repeat changes nothing.
pub(crate) const EFFECT: HeaderName = HeaderName::from_static("landfast-effect");

pub(crate) fn attempt(headers: &HeaderMap) -> Result<Option<Attempt>, Problem> {
    let advice = "send Landfast-Attempt once, as the begin answered it";
    parsed(headers, &ATTEMPT, advice)
}

pub(crate) fn after(headers: &HeaderMap) -> Result<Option<After>, Problem> {
    let advice = "send Landfast-After once, as the commit answered it";
    parsed(headers, &AFTER, advice)
}

pub(crate) fn effect(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let advice =
        "send Landfast-Effect once: the number of the transaction's effects before this one";
    parsed(headers, &EFFECT, advice)
}

/// Refuses a condition, a range or an encoding. The server ignores these headers, so the request
/// would take effect in a way that the client did not ask for.
///
/// Errors: `InvalidRequest`, which names the header.
pub(crate) fn refuse_conditions(headers: &HeaderMap) -> Result<(), Problem> {
    const NOT_TAKEN: [HeaderName; 9] = [
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
        header::RANGE,
        header::CONTENT_RANGE,
        header::CONTENT_ENCODING,
        header::TRANSFER_ENCODING,
    ];
    // Chunks frame a body and do not encode it.
    let is_as_it_is = |name: &HeaderName, value: &HeaderValue| {
        let plain: &[u8] = match *name {
            header::CONTENT_ENCODING => b"identity",
            header::TRANSFER_ENCODING => b"chunked",
            _ => return false,
        };
        value.as_bytes().eq_ignore_ascii_case(plain)
    };
    let is_said = |name: &&HeaderName| {
        headers
            .get_all(*name)
            .iter()
            .any(|value| !is_as_it_is(name, value))
    };
    match NOT_TAKEN.iter().find(is_said) {
        Some(name) => Err(Problem::invalid(format!(
            "{name} is not taken here as it is sent: leave it out; what depends on a value reads it in a transaction"
        ))),
        None => Ok(()),
    }
}

/// `response` with the commit that the client's next begin should carry.
pub(crate) fn with_after(mut response: Response, after: Option<After>) -> Response {
    if let Some(after) = after {
        let token = HeaderValue::try_from(after.to_string());
        let token = token.expect("tokens are digits and hyphens");
        response.headers_mut().insert(AFTER, token);
    }
    response
}

/// The header's only value; `None` if it is absent, an error if it is there twice or not text.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(());
    }
    first.to_str().map(Some).map_err(|_| ())
}

fn parsed<T: FromStr>(
    headers: &HeaderMap,
    name: &HeaderName,
    advice: &str,
) -> Result<Option<T>, Problem> {
    let refuse = || Problem::invalid(advice);
    let text = single(headers, name).map_err(|()| refuse())?;
    text.map(|text| text.parse().map_err(|_| refuse()))
        .transpose()
}
