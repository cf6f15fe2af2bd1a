//! The routes of plain state: keys outside a transaction, the same ones that transactions read and write. A
//! write is a transaction of its own; a read is the newest committed value.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use transactions::model::{Committed, Key};

use crate::{
    backend::Backend,
    body,
    connection::OfConnection,
    headers, listing,
    problem::{Kind, Problem},
    steps::Scope,
    transactions::{key, value},
};

type Answer = Result<Response, Problem>;

/// Where the key stands in a path.
const KEY: usize = 2;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let key = || get(read).put(write).delete(delete);
    // The second is the empty key.
    Router::new()
        .route("/v1/state", get(list))
        .route("/v1/state/{key}", key())
        .route("/v1/state/", key())
}

/// The attempt of a workflow's step that a request is of.
type OfStep = Option<Extension<Scope>>;

async fn read(
    State(backend): State<Arc<Backend>>,
    of: OfStep,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    let engine = backend.transactions()?;
    let key = key(&uri, KEY)?;
    if let Some(Extension(scope)) = of {
        return value(
            backend
                .workflows()?
                .get(&scope.of(&backend, &headers)?, key.name())
                .await?,
        );
    }
    let found = backend.durable(engine, engine.get_now(&key)).await?;
    value(found)
}

async fn list(
    State(backend): State<Arc<Backend>>,
    of: OfStep,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    let engine = backend.transactions()?;
    let listing = listing::asked(&uri)?;
    if let Some(Extension(scope)) = of {
        return Ok(listing::shown(
            &backend
                .workflows()?
                .list_keys(&scope.of(&backend, &headers)?, &listing)
                .await?,
        ));
    }
    Ok(listing::shown(
        &backend.durable(engine, engine.list_now(&listing)).await?,
    ))
}

async fn write(
    State(backend): State<Arc<Backend>>,
    of: OfStep,
    waits: OfConnection,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    backend.transactions()?;
    let key = key(&uri, KEY)?;
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    set(
        &backend,
        (of, waits, &headers),
        key,
        Some(whole.bytes.clone()),
    )
    .await
}

async fn delete(
    State(backend): State<Arc<Backend>>,
    of: OfStep,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    set(&backend, (of, None, &headers), key(&uri, KEY)?, None).await
}

async fn set(
    backend: &Backend,
    (of, waits, headers): (OfStep, OfConnection, &HeaderMap),
    key: Key,
    value: Option<Bytes>,
) -> Answer {
    if let Some(Extension(scope)) = of {
        backend
            .workflows()?
            .put(&scope.of(backend, headers)?, key.name().clone(), value)
            .await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let engine = backend.transactions()?;
    let bytes = value.as_ref().map_or(0, Bytes::len);
    let put = engine.put_now(key, value);
    let Committed { after } = backend
        .in_time_for(bytes, &waits, Kind::OutcomeUnknown, put)
        .await?;
    Ok(headers::with_after(
        StatusCode::NO_CONTENT.into_response(),
        after,
    ))
}
