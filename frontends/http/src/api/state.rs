//! The routes of plain state: the keys of transactions, outside a transaction. A write is a
//! transaction of its own. A read returns the newest committed value.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::IntoResponse,
    routing::get,
};
use bytes::Bytes;
use transactions::model::{Committed, Key};

use super::key_page;
use crate::{
    backend::Backend,
    body, headers,
    problem::Kind,
    request::key,
    response::{Answer, value},
    scope::OfRun,
};

/// The place of the key in a path.
const KEY: usize = 2;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let key = || get(read).put(write).delete(delete);
    // The second is the empty key.
    Router::new()
        .route("/v1/state", get(list))
        .route("/v1/state/{key}", key())
        .route("/v1/state/", key())
}

async fn read(
    State(backend): State<Arc<Backend>>,
    of: OfRun,
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
    of: OfRun,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    let engine = backend.transactions()?;
    let listing = key_page::parse(&uri)?;
    if let Some(Extension(scope)) = of {
        return Ok(key_page::response(
            &backend
                .workflows()?
                .list_keys(&scope.of(&backend, &headers)?, &listing)
                .await?,
        ));
    }
    Ok(key_page::response(
        &backend.durable(engine, engine.list_now(&listing)).await?,
    ))
}

async fn write(
    State(backend): State<Arc<Backend>>,
    of: OfRun,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    backend.transactions()?;
    let key = key(&uri, KEY)?;
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    set(&backend, (of, &headers), key, Some(whole.bytes.clone())).await
}

async fn delete(
    State(backend): State<Arc<Backend>>,
    of: OfRun,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    headers::refuse_conditions(&headers)?;
    set(&backend, (of, &headers), key(&uri, KEY)?, None).await
}

async fn set(
    backend: &Backend,
    (of, headers): (OfRun, &HeaderMap),
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
        .in_time_for(bytes, Kind::OutcomeUnknown, put)
        .await?;
    Ok(headers::with_after(
        StatusCode::NO_CONTENT.into_response(),
        after,
    ))
}
