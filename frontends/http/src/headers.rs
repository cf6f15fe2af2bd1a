//! The headers of calls: the attempt of a transaction, and the commit that must be visible.

use std::str::FromStr;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use transactions::{
    Expected,
    model::{After, Attempt, Call, NodeId, Timestamp, TransactionId, Version},
};

use crate::{problem::Problem, segment};

/// The begin of a transaction that a call belongs to. Without it the latest.
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("landfast-attempt");
/// The client's last commit, which a transaction must see.
pub(crate) const AFTER: HeaderName = HeaderName::from_static("landfast-after");

/// The transaction on a volume that a request for files belongs to, percent-encoded.
pub(crate) const TRANSACTION: HeaderName = HeaderName::from_static("landfast-transaction");

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

/// The transaction that a request for files belongs to, if any.
pub(crate) fn transaction(headers: &HeaderMap) -> Result<Option<Call>, Problem> {
    let refuse = || Problem::invalid("send Landfast-Transaction once, percent-encoded");
    let Some(id) = single(headers, &TRANSACTION).map_err(|()| refuse())? else {
        return Ok(None);
    };
    let id = segment::decode(id).ok_or_else(refuse)?;
    Ok(Some(Call {
        id: TransactionId::new(id)?,
        attempt: attempt(headers)?,
    }))
}

pub(crate) fn effect(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let advice =
        "send Landfast-Effect once: the number of the transaction's effects before this one";
    parsed(headers, &EFFECT, advice)
}

/// The condition of a plain write, if it has one: `If-None-Match: *`, or `If-Match` with `*` or one
/// ETag.
///
/// Errors: `InvalidRequest` for any other condition.
pub(crate) fn expected(headers: &HeaderMap) -> Result<Option<IfMatch>, Problem> {
    let text = |name| {
        single(headers, &name).map_err(|()| Problem::invalid(format!("send {name} once, as text")))
    };
    let any = "*";
    Ok(Some(
        match (text(header::IF_MATCH)?, text(header::IF_NONE_MATCH)?) {
            (None, None) => return Ok(None),
            (None, Some(absent)) if absent == any => IfMatch::Expected(Expected::Absent),
            (Some(present), None) if present == any => IfMatch::Expected(Expected::Present),
            (Some(tag), None) if !tag.contains(',') => version(tag)
                .map_or(IfMatch::Never, |version| {
                    IfMatch::Expected(Expected::Version(version))
                }),
            _ => {
                let why = "a write takes one condition: If-None-Match with *, or If-Match with * or one ETag";
                return Err(Problem::invalid(why));
            }
        },
    ))
}

/// A condition as a client sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMatch {
    Expected(Expected),
    /// It names an ETag that no value ever has.
    Never,
}

/// The ETag of a version.
fn etag(version: Version) -> String {
    format!("\"{:x}-{:x}\"", version.timestamp.0, version.node.0)
}

/// The version of an ETag, if this server may have given it.
fn version(etag: &str) -> Option<Version> {
    let bare = etag.strip_prefix('"')?.strip_suffix('"')?;
    let (timestamp, node) = bare.split_once('-')?;
    let version = Version {
        timestamp: Timestamp(u64::from_str_radix(timestamp, 16).ok()?),
        node: NodeId(u32::from_str_radix(node, 16).ok()?),
    };
    (self::etag(version) == etag).then_some(version)
}

/// `response` with the ETag of a version.
pub(crate) fn with_etag(mut response: Response, version: Version) -> Response {
    let tag = HeaderValue::try_from(etag(version));
    let tag = tag.expect("ETags are digits and a hyphen in quotes");
    response.headers_mut().insert(header::ETAG, tag);
    response
}

/// Refuses a condition, a range or an encoding. The server ignores these headers, so the request
/// would take effect in a way that the client did not ask for.
///
/// Errors: `InvalidRequest`, which names the header.
pub(crate) fn refuse_conditions(headers: &HeaderMap) -> Result<(), Problem> {
    refuse_conditions_but(headers, &[])
}

/// The same for a route that takes some of these headers.
pub(crate) fn refuse_conditions_but(
    headers: &HeaderMap,
    taken: &[HeaderName],
) -> Result<(), Problem> {
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
    let mut refused = NOT_TAKEN.iter().filter(|name| !taken.contains(name));
    match refused.find(is_said) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version {
        timestamp: Timestamp(u64::MAX),
        node: NodeId(3),
    };

    fn conditions(sent: &[(HeaderName, &str)]) -> Result<Option<IfMatch>, Problem> {
        let pairs = sent.iter().map(|(name, value)| {
            let value = HeaderValue::try_from(*value).expect("text");
            (name.clone(), value)
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        expected(&headers)
    }

    #[test]
    fn a_write_takes_one_condition() {
        use header::{IF_MATCH, IF_NONE_MATCH};
        let tag = etag(VERSION);
        for (sent, condition) in [
            (vec![], None),
            (
                vec![(IF_NONE_MATCH, "*")],
                Some(IfMatch::Expected(Expected::Absent)),
            ),
            (
                vec![(IF_MATCH, "*")],
                Some(IfMatch::Expected(Expected::Present)),
            ),
            (
                vec![(IF_MATCH, &*tag)],
                Some(IfMatch::Expected(Expected::Version(VERSION))),
            ),
            (vec![(IF_MATCH, "W/\"1-2\"")], Some(IfMatch::Never)),
            (vec![(IF_MATCH, "\"01-2\"")], Some(IfMatch::Never)),
            (vec![(IF_MATCH, "\"\"")], Some(IfMatch::Never)),
            (vec![(IF_MATCH, "x")], Some(IfMatch::Never)),
        ] {
            assert_eq!(conditions(&sent).expect("one condition"), condition);
        }
        for sent in [
            vec![(IF_NONE_MATCH, &*tag)],
            vec![(IF_MATCH, "\"1-1\", \"2-2\"")],
            vec![(IF_MATCH, "*"), (IF_MATCH, "*")],
            vec![(IF_MATCH, "*"), (IF_NONE_MATCH, "*")],
        ] {
            assert!(conditions(&sent).is_err(), "{sent:?}");
        }
    }
}
