//! The routes of plain state: the keys of transactions, outside a transaction. A write is a
//! transaction of its own. A read returns the newest committed value.

use std::sync::Arc;

use axum::{Router, body::Body, http::header, response::Response, routing::get};
use bytes::Bytes;
use transactions::model::{After, Committed, Key};

use super::key_page;
use crate::{
    backend::Backend,
    headers::{self, IfMatch},
    problem::{Kind, Problem},
    request::Request,
    response::{Answer, bytes, no_content, value},
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
    let found = backend.durable(engine, engine.get_version_now(&key));
    let Some((found, version)) = found.await? else {
        return value(None);
    };
    Ok(headers::with_etag(bytes(found), version))
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
    let condition = condition(&request)?;
    request.backend.transactions()?;
    let key = request.key(KEY)?;
    let whole = request.read(body, request.backend.value_bytes_max).await?;
    let value = Some(whole.bytes.clone());
    match condition {
        None => set(&request, key, value).await,
        Some(condition) => set_if(&request, key, value, condition).await,
    }
}

async fn delete(request: Request) -> Answer {
    let condition = condition(&request)?;
    let key = request.key(KEY)?;
    match condition {
        None => set(&request, key, None).await,
        Some(condition) => set_if(&request, key, None, condition).await,
    }
}

/// The condition of a write. The overlay of a step, where its writes are until it ends, knows no
/// versions.
fn condition(request: &Request) -> Result<Option<IfMatch>, Problem> {
    if request.scope.is_some() {
        request.refuse_conditions()?;
        return Ok(None);
    }
    headers::refuse_conditions_but(&request.headers, &[header::IF_MATCH, header::IF_NONE_MATCH])?;
    headers::expected(&request.headers)
}

/// Writes under a condition: a serializable transaction of one read and one write.
async fn set_if(request: &Request, key: Key, value: Option<Bytes>, condition: IfMatch) -> Answer {
    let backend = &request.backend;
    let engine = backend.transactions()?;
    let not_met = || {
        let why = "the key has another value, or none, or has one already; nothing was written";
        Problem::new(Kind::ConditionNotMet, why)
    };
    let IfMatch::Expected(expected) = condition else {
        return Err(not_met());
    };
    let (bytes, is_put) = (value.as_ref().map_or(0, Bytes::len), value.is_some());
    let put = async {
        let put = engine.put_now_if(key, value, expected).await?;
        if put.value.is_none() {
            engine.externalize(put.point).await?;
        }
        Ok(put.value)
    };
    let in_time = backend.in_time(bytes, Kind::OutcomeUnknown, put);
    let Committed { after } = in_time.await?.ok_or_else(not_met)?;
    Ok(written(after, is_put))
}

/// The response to a write that committed. A value that was put has an ETag.
fn written(after: Option<After>, is_put: bool) -> Response {
    let response = headers::with_after(no_content(), after);
    match after.filter(|_| is_put) {
        Some(after) => headers::with_etag(response, after.version),
        None => response,
    }
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
    let (bytes, is_put) = (value.as_ref().map_or(0, Bytes::len), value.is_some());
    let put = engine.put_now(key, value);
    let in_time = backend.in_time(bytes, Kind::OutcomeUnknown, put);
    let Committed { after } = in_time.await?;
    Ok(written(after, is_put))
}
