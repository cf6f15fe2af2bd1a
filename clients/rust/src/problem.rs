//! The meaning of a refusal: the one table from the `type` of a problem document (RFC 9457) to the
//! kind of error, and to whether the request may be sent again.
//!
//! A *request* may be repeated when the first copy may or may not have arrived: every request of a
//! transaction is safe to send twice. A *body*, the code between begin and commit, may run again
//! when its attempt is known to have ended without effect; that follows from the kind
//! ([`crate::Error::body_may_run_again`]).

use std::time::Duration;

use serde::Deserialize;

use crate::{
    call::{Call, Response},
    error::{Error, ErrorKind, Outcome},
};

/// Not an error: a read reports an absent value with it.
const NO_SUCH_KEY: &str = "no-such-key";
const DETAIL_CHARACTERS_MAX: usize = 500;
/// No server asks for more; one that does has a wrong clock or is malicious.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Whether the same request may be sent again after this refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Never,
    /// After a pause.
    Here,
    /// At another node at once, or here after a pause.
    Elsewhere,
}

/// The meaning of one refusal for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: ErrorKind,
    pub(crate) repeat: Repeat,
    /// Whether it is certain that this copy of the request had no effect.
    pub(crate) is_certain: bool,
}

impl Meaning {
    /// No response came. If not one byte can have reached the server, the request certainly had no
    /// effect.
    pub(crate) const fn of_loss(was_sent: bool) -> Self {
        Self {
            kind: ErrorKind::Unavailable,
            repeat: Repeat::Elsewhere,
            is_certain: !was_sent,
        }
    }

    /// By the refusal's `type`, else by its status.
    fn of(document: &Document, status: u16) -> Self {
        let outcome = document.outcome.as_deref();
        let named = document.r#type.as_deref();
        let (kind, repeat, is_certain) = named
            .and_then(|name| Self::named(name, outcome))
            .unwrap_or_else(|| Self::of_status(status));
        Self {
            kind,
            repeat,
            is_certain,
        }
    }

    /// The table of the HTTP interface: the problems of transactions first, then those of the front
    /// end itself.
    fn named(name: &str, outcome: Option<&str>) -> Option<(ErrorKind, Repeat, bool)> {
        use ErrorKind as K;
        use Repeat::{Elsewhere, Here, Never};
        Some(match name {
            "invalid-request" | "reserved-name" | "run-input-differs" => {
                (K::InvalidRequest, Never, true)
            }
            "condition-not-met" => (K::ConditionNotMet, Never, true),
            "request-timed-out" => (K::Unavailable, Here, true),
            "too-large" => (K::TooLarge, Never, true),
            "too-many-transactions" => (K::TooManyTransactions, Here, true),
            "too-much-buffered" => (K::TooMuchBuffered, Here, true),
            "no-such-transaction" => (K::NoSuchTransaction, Never, true),
            "no-such-queue" => (K::NoSuchQueue, Never, true),
            "no-such-function" => (K::NoSuchFunction, Never, true),
            "no-such-workflow" => (K::NoSuchWorkflow, Never, true),
            "no-such-run" => (K::NoSuchRun, Never, true),
            "outside-of-run" => (K::OutsideOfRun, Never, true),
            "attempt-ended" => (K::AttemptEnded, Never, true),
            "too-many-runs" => (K::TooManyRuns, Here, true),
            "expired" => (K::Expired, Never, true),
            "several-sequencers" => (K::SeveralSequencers, Never, true),
            "clock-ahead" => (K::ClockAhead, Elsewhere, true),
            "conflict" => (K::Conflict, Never, true),
            "no-valid-version" => (K::NoValidVersion, Never, true),
            "snapshot-too-old" => (K::SnapshotTooOld, Never, true),
            "transaction-finished" => {
                (K::TransactionFinished(Outcome::named(outcome)), Never, true)
            }
            "outcome-unknown" => (K::OutcomeUnknown, Elsewhere, false),
            "unavailable" => (K::Unavailable, Elsewhere, false),
            "server-stopped" => (K::Unavailable, Never, false),
            "no-room" => (K::NoRoom, Never, true),
            "corrupt" => (K::Corrupt, Never, false),
            "not-ready" => (K::Unavailable, Elsewhere, true),
            "unauthorized" | "unknown-host" | "foreign-origin" | "no-such-path"
            | "method-not-allowed" => (K::Refused, Never, true),
            _ => return None,
        })
    }

    /// A proxy or load balancer between client and server responds without a problem document.
    fn of_status(status: u16) -> (ErrorKind, Repeat, bool) {
        use ErrorKind as K;
        use Repeat::{Elsewhere, Here, Never};
        match status {
            401 | 403 => (K::Refused, Never, true),
            413 => (K::TooLarge, Never, true),
            429 => (K::Unavailable, Here, true),
            502..=504 => (K::Unavailable, Elsewhere, false),
            500.. => (K::UnexpectedAnswer, Here, false),
            _ => (K::UnexpectedAnswer, Never, true),
        }
    }
}

/// A problem document; fields that are missing or malformed are left out.
#[derive(Debug, Default, Deserialize)]
struct Document {
    r#type: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    outcome: Option<String>,
}

pub(crate) fn refusal(call: &Call, node: &str, response: &Response) -> (Error, Meaning) {
    let document: Document = serde_json::from_slice(&response.body).unwrap_or_default();
    let status = response.status;
    let meaning = Meaning::of(&document, status);
    let said = document.detail.or(document.title);
    let detail = said.unwrap_or_else(|| format!("the server answered {status}"));
    let detail: String = detail.chars().take(DETAIL_CHARACTERS_MAX).collect();
    let error = Error::new(meaning.kind, format!("{} at {node}", call.what), detail)
        .answered(
            status,
            document.r#type,
            response.retry_after.as_deref().and_then(retry_after),
        )
        .of_transaction(call.transaction.as_deref());
    (error, meaning)
}

/// Whether `response` is a result of `call` rather than a refusal.
pub(crate) fn accepts(call: &Call, response: &Response) -> bool {
    let is_absent = || {
        let document: Option<Document> = serde_json::from_slice(&response.body).ok();
        let named = document.and_then(|document| document.r#type);
        response.status == 404 && named.is_some_and(|name| name == NO_SUCH_KEY)
    };
    (200..300).contains(&response.status) || (call.may_be_absent && is_absent())
}

/// The pause in a `Retry-After` header. Landfast sends seconds. Some proxies send a date, which is
/// useless to a client whose clock may be wrong, and the pauses grow by themselves.
fn retry_after(header: &str) -> Option<Duration> {
    let seconds = header.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
