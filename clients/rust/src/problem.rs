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
pub(crate) const NO_SUCH_KEY: &str = "no-such-key";
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
    const fn certain(kind: ErrorKind, repeat: Repeat) -> Self {
        Self {
            kind,
            repeat,
            is_certain: true,
        }
    }

    const fn uncertain(kind: ErrorKind, repeat: Repeat) -> Self {
        Self {
            kind,
            repeat,
            is_certain: false,
        }
    }

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
        let named = document
            .r#type
            .as_deref()
            .and_then(|name| Self::named(name, document.outcome.as_deref()));
        named.unwrap_or_else(|| Self::of_status(status))
    }

    /// The table of the HTTP interface: the problems of transactions first, then those of the front
    /// end itself.
    fn named(name: &str, outcome: Option<&str>) -> Option<Self> {
        use ErrorKind as K;
        use Repeat::{Elsewhere, Here, Never};
        Some(match name {
            "invalid-request" | "reserved-name" => Self::certain(K::InvalidRequest, Never),
            "request-timed-out" => Self::certain(K::Unavailable, Here),
            "too-large" => Self::certain(K::TooLarge, Never),
            "too-many-transactions" => Self::certain(K::TooManyTransactions, Here),
            "too-much-buffered" => Self::certain(K::TooMuchBuffered, Here),
            "no-such-transaction" => Self::certain(K::NoSuchTransaction, Never),
            "no-such-queue" => Self::certain(K::NoSuchQueue, Never),
            "no-such-function" => Self::certain(K::NoSuchFunction, Never),
            "no-such-workflow" => Self::certain(K::NoSuchWorkflow, Never),
            "no-such-run" => Self::certain(K::NoSuchRun, Never),
            "outside-of-run" => Self::certain(K::OutsideOfRun, Never),
            "attempt-ended" => Self::certain(K::AttemptEnded, Never),
            "too-many-runs" => Self::certain(K::TooManyRuns, Here),
            "expired" => Self::certain(K::Expired, Never),
            "several-sequencers" => Self::certain(K::SeveralSequencers, Never),
            "clock-ahead" => Self::certain(K::ClockAhead, Elsewhere),
            "conflict" => Self::certain(K::Conflict, Never),
            "no-valid-version" => Self::certain(K::NoValidVersion, Never),
            "snapshot-too-old" => Self::certain(K::SnapshotTooOld, Never),
            "transaction-finished" => {
                Self::certain(K::TransactionFinished(Outcome::named(outcome)), Never)
            }
            "outcome-unknown" => Self::uncertain(K::OutcomeUnknown, Elsewhere),
            "unavailable" => Self::uncertain(K::Unavailable, Elsewhere),
            "no-room" => Self::certain(K::NoRoom, Never),
            "corrupt" => Self::uncertain(K::Corrupt, Never),
            "not-ready" => Self::certain(K::Unavailable, Elsewhere),
            "unauthorized" | "unknown-host" | "foreign-origin" | "no-such-path"
            | "method-not-allowed" => Self::certain(K::Refused, Never),
            _ => return None,
        })
    }

    /// A proxy or load balancer between client and server responds without a problem document.
    fn of_status(status: u16) -> Self {
        use ErrorKind as K;
        use Repeat::{Elsewhere, Here, Never};
        match status {
            401 | 403 => Self::certain(K::Refused, Never),
            413 => Self::certain(K::TooLarge, Never),
            429 => Self::certain(K::Unavailable, Here),
            502..=504 => Self::uncertain(K::Unavailable, Elsewhere),
            500.. => Self::uncertain(K::UnexpectedAnswer, Here),
            _ => Self::certain(K::UnexpectedAnswer, Never),
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

/// The error for a refusal, and its meaning.
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

/// Whether the response says that there is no value.
pub(crate) fn is_no_such_key(response: &Response) -> bool {
    let named = || {
        serde_json::from_slice::<Document>(&response.body)
            .ok()?
            .r#type
    };
    response.status == 404 && named().is_some_and(|name| name == NO_SUCH_KEY)
}

/// The pause in a `Retry-After` header. Landfast sends seconds. Some proxies send a date, which is
/// useless to a client whose clock may be wrong, and the pauses grow by themselves.
fn retry_after(header: &str) -> Option<Duration> {
    let seconds = header.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
