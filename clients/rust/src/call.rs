//! The HTTP interface as data: each request, and its purpose in words.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::Serialize;

use crate::{
    error::{Error, ErrorKind, Result},
    limits::{EFFECT_BYTES_MAX, KEYS_MAX, VALUE_BYTES_MAX},
};

/// The prefix of a generated id. It tells a server to keep the outcome for minutes and not for
/// days.
pub(crate) const GENERATED_ID_PREFIX: &str = "random-";

/// Characters that need no escape in a path segment.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// How concurrent transactions may affect each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// No reader sees half of a transaction, but two that change the same key at a time may
    /// overwrite each other.
    ReadAtomic,
    /// As if one after the other, in an order that fits real time.
    Serializable,
}

impl Isolation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadAtomic => "read-atomic",
            Self::Serializable => "serializable",
        }
    }
}

/// The condition of a plain write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The key has the value whose write or read returned this `ETag`.
    Match(String),
}

/// A request, its purpose in words, and the meaning of a missing response. Without a condition,
/// sending it twice has the same effect as sending it once.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) what: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) attempt: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) transaction: Option<String>,
    /// The position of the effect in its attempt, by which the server recognises a repeat.
    pub(crate) effect: Option<u64>,
    /// Whether it takes effect by itself, so that a lost response leaves its outcome unknown.
    pub(crate) is_change: bool,
    /// Whether `no-such-key` is a result rather than a refusal.
    pub(crate) may_be_absent: bool,
    /// A write under a condition is not repeated once a copy may have taken effect: the repeat would
    /// meet the effect of the first.
    pub(crate) condition: Option<Condition>,
    is_sent: AtomicBool,
}

/// The parts of a response that a client of Landfast uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) after: Option<String>,
    pub(crate) retry_after: Option<String>,
    pub(crate) etag: Option<String>,
    pub(crate) body: Bytes,
}

impl Response {
    /// The value in the response to a get.
    pub(crate) fn value(self) -> Option<Bytes> {
        (self.status != 404).then_some(self.body)
    }
}

/// The attempt and the transaction that a call belongs to.
#[derive(Debug, Clone)]
pub(crate) struct AttemptName {
    pub(crate) id: String,
    /// The token from begin's response; the server tells attempts of one id apart by it.
    pub(crate) token: String,
}

#[derive(Serialize)]
struct BeginBody<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation: Option<&'static str>,
}

impl Call {
    fn new(what: String, method: Method, path: String) -> Self {
        Self {
            what,
            method,
            path,
            ..Self::default()
        }
    }

    pub(crate) fn begin(id: &str, isolation: Option<Isolation>, after: Option<String>) -> Self {
        let body = BeginBody {
            id,
            isolation: isolation.map(Isolation::name),
        };
        let body = serde_json::to_vec(&body).expect("strings always serialise");
        let (what, path) = (format!("begin transaction {id:?}"), "/v1/transactions");
        Self {
            body: body.into(),
            content_type: Some("application/json"),
            after,
            transaction: Some(id.to_owned()),
            ..Self::new(what, Method::POST, path.to_owned())
        }
    }

    pub(crate) fn get(of: &AttemptName, key: &[u8]) -> Self {
        Self {
            may_be_absent: true,
            ..Self::of_key(of, "get", Method::GET, key)
        }
    }

    pub(crate) fn put(of: &AttemptName, key: &[u8], value: Bytes) -> Result<Self> {
        Self::of_key(of, "put", Method::PUT, key).carrying(value, VALUE_BYTES_MAX)
    }

    pub(crate) fn delete(of: &AttemptName, key: &[u8]) -> Self {
        Self::of_key(of, "delete", Method::DELETE, key)
    }

    pub(crate) fn send(
        of: &AttemptName,
        place: u64,
        queue: &str,
        group: &[u8],
        message: Bytes,
    ) -> Result<Self> {
        let path = transaction(&of.id) + "/messages/" + &segment(queue.as_bytes());
        let path = match percent_encode(group, ENCODED) {
            _ if group.is_empty() => path,
            group => format!("{path}?group={group}"),
        };
        let verb = format!("send to queue {queue:?} in");
        Self::of_effect(of, place, &verb, path, message)
    }

    pub(crate) fn invoke(
        of: &AttemptName,
        place: u64,
        function: &str,
        payload: Bytes,
    ) -> Result<Self> {
        let path = transaction(&of.id) + "/invocations/" + &segment(function.as_bytes());
        let verb = format!("invoke function {function:?} in");
        Self::of_effect(of, place, &verb, path, payload)
    }

    /// `result`, in JSON, is kept with the commit.
    pub(crate) fn commit(of: &AttemptName, result: Option<&str>) -> Self {
        let path = transaction(&of.id) + "/commit";
        let body = result.map(|result| format!("{{\"result\":{result}}}").into());
        Self {
            is_change: true,
            content_type: body.is_some().then_some("application/json"),
            body: body.unwrap_or_default(),
            ..Self::of_attempt(of, "commit", Method::POST, path)
        }
    }

    pub(crate) fn abort(of: &AttemptName) -> Self {
        Self::of_attempt(of, "abort", Method::DELETE, transaction(&of.id))
    }

    /// Ends the latest attempt of an id, even if another client has begun it.
    pub(crate) fn abort_latest(id: &str) -> Self {
        let what = format!("abort transaction {id:?}");
        Self {
            transaction: Some(id.to_owned()),
            ..Self::new(what, Method::DELETE, transaction(id))
        }
    }

    /// Asks for the outcome of an id, across its attempts. For a random id the request names this
    /// attempt. Otherwise a server that has forgotten the id would report that it never began.
    pub(crate) fn status(of: &AttemptName) -> Self {
        let AttemptName { id, token } = of;
        let what = format!("ask for the status of transaction {id:?}");
        let attempt = id.starts_with(GENERATED_ID_PREFIX).then(|| token.clone());
        Self {
            attempt,
            transaction: Some(id.clone()),
            ..Self::new(what, Method::GET, transaction(id))
        }
    }

    pub(crate) fn get_state(key: &[u8]) -> Self {
        Self {
            may_be_absent: true,
            ..Self::of_state("get", Method::GET, key)
        }
    }

    pub(crate) fn put_state(key: &[u8], value: Bytes) -> Result<Self> {
        Self {
            is_change: true,
            ..Self::of_state("put", Method::PUT, key)
        }
        .carrying(value, VALUE_BYTES_MAX)
    }

    pub(crate) fn delete_state(key: &[u8]) -> Self {
        Self {
            is_change: true,
            ..Self::of_state("delete", Method::DELETE, key)
        }
    }

    pub(crate) fn under(self, condition: Condition) -> Self {
        Self {
            condition: Some(condition),
            ..self
        }
    }

    pub(crate) fn scan_state(prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Self> {
        let what = format!("scan keys that begin with {}", shown(prefix));
        if !(1..=KEYS_MAX).contains(&limit) {
            let detail = format!("a limit is between 1 and {KEYS_MAX}, not {limit}");
            return Err(Error::new(ErrorKind::InvalidRequest, what, detail));
        }
        let prefix = percent_encode(prefix, ENCODED);
        let after = after
            .map(|key| format!("&after={}", percent_encode(key, ENCODED)))
            .unwrap_or_default();
        let path = format!("/v1/state?prefix={prefix}{after}&limit={limit}");
        Ok(Self::new(what, Method::GET, path))
    }

    fn of_key(of: &AttemptName, verb: &str, method: Method, key: &[u8]) -> Self {
        let path = format!("{}/keys/{}", transaction(&of.id), segment(key));
        Self::of_attempt(of, &format!("{verb} key {} in", shown(key)), method, path)
    }

    fn of_effect(
        of: &AttemptName,
        place: u64,
        verb: &str,
        path: String,
        body: Bytes,
    ) -> Result<Self> {
        Self {
            effect: Some(place),
            ..Self::of_attempt(of, verb, Method::POST, path)
        }
        .carrying(body, EFFECT_BYTES_MAX)
    }

    fn of_attempt(of: &AttemptName, verb: &str, method: Method, path: String) -> Self {
        Self {
            attempt: Some(of.token.clone()),
            transaction: Some(of.id.clone()),
            ..Self::new(format!("{verb} transaction {:?}", of.id), method, path)
        }
    }

    fn of_state(verb: &str, method: Method, key: &[u8]) -> Self {
        let what = format!("{verb} key {}", shown(key));
        Self::new(what, method, format!("/v1/state/{}", segment(key)))
    }

    fn carrying(mut self, value: Bytes, bytes_max: usize) -> Result<Self> {
        if value.len() > bytes_max {
            let detail = format!("{} bytes, at most {bytes_max}", value.len());
            return Err(self.error(ErrorKind::TooLarge, detail));
        }
        self.body = value;
        self.content_type = Some("application/octet-stream");
        Ok(self)
    }

    /// From now on a copy of it may reach a server.
    pub(crate) fn begin_sending(&self) {
        self.is_sent.store(true, Ordering::Relaxed);
    }

    /// Whether a copy of it may have reached a server.
    pub(crate) fn may_have_arrived(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn error(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        let error = Error::new(kind, self.what.clone(), detail);
        error.of_transaction(self.transaction.as_deref())
    }

    /// The error for a response that does not fit this call.
    pub(crate) fn unexpected(&self, detail: &str) -> Error {
        self.error(ErrorKind::UnexpectedAnswer, detail)
    }
}

fn transaction(id: &str) -> String {
    format!("/v1/transactions/{}", segment(id.as_bytes()))
}

/// One segment of a path. A segment of dots alone is escaped too, because proxies would resolve a
/// plain `..`.
fn segment(name: &[u8]) -> String {
    if name.iter().all(|byte| *byte == b'.') {
        return "%2E".repeat(name.len());
    }
    percent_encode(name, ENCODED).to_string()
}

fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_is_one_segment() {
        for (name, encoded) in [
            (&b"plain-._~9"[..], "plain-._~9"),
            (b"a/b?c#d%e f+g", "a%2Fb%3Fc%23d%25e%20f%2Bg"),
            ("ü".as_bytes(), "%C3%BC"),
            (b"\x00\xff", "%00%FF"),
            (b"", ""),
            (b".", "%2E"),
            (b"..", "%2E%2E"),
            (b"..a", "..a"),
        ] {
            assert_eq!(segment(name), encoded);
        }
    }

    /// T13.
    #[test]
    fn an_effect_names_its_place_and_is_bounded() {
        let of = AttemptName {
            id: "order/17".to_owned(),
            token: "1".to_owned(),
        };
        let call = Call::send(&of, 3, "a/b", b"ann&bob", Bytes::from_static(b"x")).expect("small");
        assert_eq!(
            call.path,
            "/v1/transactions/order%2F17/messages/a%2Fb?group=ann%26bob"
        );
        assert_eq!((call.effect, &call.method), (Some(3), &Method::POST));
        let call = Call::send(&of, 0, "q", b"", Bytes::new()).expect("small");
        assert_eq!(call.path, "/v1/transactions/order%2F17/messages/q");
        let call = Call::invoke(&of, 4, "f", Bytes::from(vec![0; EFFECT_BYTES_MAX]))
            .expect("at the bound");
        assert_eq!(
            (call.effect, &*call.path),
            (Some(4), "/v1/transactions/order%2F17/invocations/f")
        );
        let refused = Call::invoke(&of, 4, "f", Bytes::from(vec![0; EFFECT_BYTES_MAX + 1]));
        assert_eq!(refused.expect_err("too large").kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn a_value_beyond_the_bound_is_refused_before_it_is_sent() {
        let value = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
        let refused = Call::put_state(b"a", value.clone()).expect_err("it is too large");
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        assert!(
            refused
                .to_string()
                .starts_with("put key \"a\": 67108865 bytes, at most 67108864. "),
            "{refused}"
        );
        Call::put_state(b"a", value.slice(1..)).expect("it is not");
    }
}
