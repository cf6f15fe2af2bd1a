//! The headers that calls carry: which attempt of a transaction is meant, which commit must be seen.

use std::{fmt::Display, str::FromStr};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use transactions::model::{After, Attempt};

use crate::problem::{Kind, Problem};

/// Which begin of a transaction a call belongs to; without it the latest is meant.
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("landfast-attempt");
/// The client's last commit, which a transaction must see.
pub(crate) const AFTER: HeaderName = HeaderName::from_static("landfast-after");

/// Which of the transaction's effects a call is, from zero: a repeat of it changes nothing.
pub(crate) const EFFECT: HeaderName = HeaderName::from_static("landfast-effect");

/// The attempt that a call carries.
pub(crate) fn attempt(headers: &HeaderMap) -> Result<Option<Attempt>, Problem> {
    parsed(
        headers,
        &ATTEMPT,
        "send Landfast-Attempt once, as the begin answered it",
    )
}

/// The commit that a begin carries.
pub(crate) fn after(headers: &HeaderMap) -> Result<Option<After>, Problem> {
    parsed(
        headers,
        &AFTER,
        "send Landfast-After once, as the commit answered it",
    )
}

/// The place of the effect that a call carries.
pub(crate) fn effect(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    parsed(
        headers,
        &EFFECT,
        "send Landfast-Effect once: the number of the transaction's effects before this one",
    )
}

/// What was to happen on a condition, in part, or with a body in another form than it was sent in, would happen all the same.
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
    // How a body is cut into pieces is not its form.
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
        Some(name) => Err(Problem::new(
            Kind::InvalidRequest,
            format!(
                "{name} is not taken here as it is sent: leave it out; what depends on a value reads it in a transaction"
            ),
        )),
        None => Ok(()),
    }
}

/// `response` with the commit that the client may carry on.
pub(crate) fn with_after(mut response: Response, after: Option<After>) -> Response {
    if let Some(after) = after {
        response.headers_mut().insert(AFTER, visible(after));
    }
    response
}

/// The header's only value, none if it is absent, an error if it is there twice or not text.
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
    let refuse = || Problem::new(Kind::InvalidRequest, advice);
    let text = single(headers, name).map_err(|()| refuse())?;
    text.map(|text| text.parse().map_err(|_| refuse()))
        .transpose()
}

fn visible(token: impl Display) -> HeaderValue {
    HeaderValue::try_from(token.to_string()).expect("tokens are digits and hyphens")
}
