//! The list of open transactions, for an operator. It is not served to functions.

use std::sync::Arc;

use axum::{Router, routing::get};
use serde::{Deserialize, Serialize};
use transactions::{
    model::Isolation,
    open::{OPEN_PAGE_MAX, OpenAttempt},
};

use crate::{
    backend::Backend,
    request::Request,
    response::{Answer, json},
    segment,
};

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new().route("/v1/transactions", get(list))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behind {
    /// The page begins after the transaction at this place.
    #[serde(default)]
    after: u64,
}

#[derive(Serialize)]
struct Page {
    transactions: Vec<Open>,
    /// The `after` of the next page.
    next: Option<u64>,
}

#[derive(Serialize)]
struct Open {
    /// Percent-encoded as in a path.
    id: String,
    attempt: String,
    status: &'static str,
    isolation: &'static str,
    age_ms: u64,
    idle_ms: u64,
    writes: usize,
}

impl From<&OpenAttempt> for Open {
    fn from(open: &OpenAttempt) -> Self {
        Self {
            id: segment::encode(open.id.as_bytes()),
            attempt: open.attempt.to_string(),
            status: if open.is_committing {
                "committing"
            } else {
                "open"
            },
            isolation: match open.isolation {
                Isolation::ReadAtomic => "read-atomic",
                Isolation::Serializable => "serializable",
            },
            age_ms: open.age.as_millis() as u64,
            idle_ms: open.idle.as_millis() as u64,
            writes: open.writes,
        }
    }
}

async fn list(request: Request) -> Answer {
    let Behind { after } = request.query("?after=NUMBER")?;
    let open = request.backend.transactions()?.open_attempts(after);
    let next = open.last().map(|last| last.place);
    Ok(json(&Page {
        next: next.filter(|_| open.len() >= OPEN_PAGE_MAX),
        transactions: open.iter().map(Open::from).collect(),
    }))
}
