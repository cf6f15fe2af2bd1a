//! The routes of plain state: keys outside a transaction, the same ones that transactions read and write. A
//! write is a transaction of its own; a read is the newest committed value.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use transactions::model::{Committed, Key};

use crate::{
    backend::Backend,
    body, headers,
    problem::{Kind, Problem},
    transactions::{key, value},
};

type Answer = Result<Response, Problem>;

/// Where the key stands in a path.
const KEY: usize = 2;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let key = || get(read).put(write).delete(delete);
    // The second is the empty key.
    Router::new().route("/v1/state/{key}", key()).route("/v1/state/", key())
}

async fn read(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    let engine = backend.transactions()?;
    let key = key(&uri, KEY)?;
    let found = backend.durable(engine, engine.get_now(&key)).await?;
    value(found)
}

async fn write(State(backend): State<Arc<Backend>>, uri: Uri, body: Body) -> Answer {
    backend.transactions()?;
    let key = key(&uri, KEY)?;
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    set(&backend, key, Some(whole.bytes.clone())).await
}

async fn delete(State(backend): State<Arc<Backend>>, uri: Uri) -> Answer {
    set(&backend, key(&uri, KEY)?, None).await
}

async fn set(backend: &Backend, key: Key, value: Option<Bytes>) -> Answer {
    let engine = backend.transactions()?;
    let Committed { after } = backend.in_time(Kind::OutcomeUnknown, engine.put_now(key, value)).await?;
    Ok(headers::with_after(StatusCode::NO_CONTENT.into_response(), after))
}
