//! The routes of plain state: the keys of transactions, outside a transaction. A write is a
//! transaction of its own. A read returns the newest committed value.

use std::sync::Arc;

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use transactions::model::{Committed, Key};

use super::key_page;
use crate::{
    backend::Backend,
    headers,
    problem::Kind,
    request::Request,
    response::{Answer, no_content, value},
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

async fn read(request: Request) -> Answer {
    let backend = &request.backend;
    let engine = backend.transactions()?;
    let key = request.key(KEY)?;
    if request.scope.is_some() {
        let token = request.token()?;
        return value(backend.workflows()?.get(&token, key.name()).await?);
    }
    value(backend.durable(engine, engine.get_now(&key)).await?)
}

async fn list(request: Request) -> Answer {
    let backend = &request.backend;
    let engine = backend.transactions()?;
    let listing = key_page::parse(&request.uri)?;
    let page = if request.scope.is_some() {
        let token = request.token()?;
        backend.workflows()?.list_keys(&token, &listing).await?
    } else {
        backend.durable(engine, engine.list_now(&listing)).await?
    };
    Ok(key_page::response(&page))
}

async fn write(request: Request, body: Body) -> Answer {
    request.refuse_conditions()?;
    request.backend.transactions()?;
    let key = request.key(KEY)?;
    let whole = request.read(body, request.backend.value_bytes_max).await?;
    set(&request, key, Some(whole.bytes.clone())).await
}

async fn delete(request: Request) -> Answer {
    request.refuse_conditions()?;
    set(&request, request.key(KEY)?, None).await
}

async fn set(request: &Request, key: Key, value: Option<Bytes>) -> Answer {
    let backend = &request.backend;
    if request.scope.is_some() {
        let token = request.token()?;
        let put = backend.workflows()?.put(&token, key.name().clone(), value);
        put.await?;
        return Ok(no_content());
    }
    let engine = backend.transactions()?;
    let bytes = value.as_ref().map_or(0, Bytes::len);
    let put = engine.put_now(key, value);
    let in_time = backend.in_time(bytes, Kind::OutcomeUnknown, put);
    let Committed { after } = in_time.await?;
    Ok(headers::with_after(no_content(), after))
}
