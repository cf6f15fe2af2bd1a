//! The routes of transactions: begin, get, put, delete, commit, abort, status.
//!
//! Each is one call of the engine. Its dependencies are durable before the response is sent: see
//! [`Backend`].

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use transactions::model::{
    After, Attempt, Begin, Begun, Call, Committed, Isolation, TransactionId,
};
use workflows::RESERVED_NAMES;

use crate::{
    backend::Backend,
    body, headers,
    problem::{Kind, Problem},
    request::{BODY_BYTES_MAX, key, refuse_any_query, refuse_query},
    response::{Answer, json, value},
    scope::{self, OfRun},
    segment,
};

/// The places of the id and the key in a path.
const ID: usize = 2;
const KEY: usize = 4;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let key = || get(read).put(write).delete(delete);
    Router::new()
        .route("/v1/transactions", post(begin))
        .route("/v1/transactions/{id}", get(status).delete(abort))
        .route("/v1/transactions/{id}/commit", post(commit))
        .route("/v1/transactions/{id}/keys/{key}", key())
        // The empty key.
        .route("/v1/transactions/{id}/keys/", key())
}

/// The body of a begin, all of it optional. Unknown members are refused: a misspelt isolation must
/// not silently become the default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BeginBody {
    id: Option<String>,
    isolation: Option<String>,
}

#[derive(Debug, Serialize)]
struct BegunBody<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatusBody {
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

async fn begin(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let engine = backend.transactions()?;
    headers::refuse_conditions(&headers)?;
    refuse_any_query(
        &uri,
        r#"a begin takes no query: what it asks for is its body, {"id": ..., "isolation": ...}"#,
    )?;
    let whole = body::read(body, BODY_BYTES_MAX, &backend.budget).await?;
    let begin = Begin {
        after: headers::after(&headers)?,
        ..asked_for(&whole.bytes)?
    };
    match backend.durable(engine, engine.begin(begin)).await? {
        Begun::Open { id, attempt } => {
            Ok((StatusCode::CREATED, opened(&id, attempt)).into_response())
        }
        Begun::Committed { id, after } => {
            Ok(headers::with_after(committed_before(&id, after), after))
        }
    }
}

/// Parses the body of a begin. An empty one asks for the defaults.
fn asked_for(body: &[u8]) -> Result<Begin, Problem> {
    let refuse =
        |why: &str| Problem::new(Kind::InvalidRequest, format!("the body of a begin: {why}"));
    let asked: BeginBody = match body.trim_ascii_start().first() {
        None if body.is_empty() => BeginBody::default(),
        Some(b'{') => serde_json::from_slice(body).map_err(|error| refuse(&error.to_string()))?,
        _ => return Err(refuse("it is a JSON object")),
    };
    let isolation = match asked.isolation.as_deref() {
        None | Some("read-atomic") => Isolation::ReadAtomic,
        Some("serializable") => Isolation::Serializable,
        Some(_) => return Err(refuse("`isolation` is `read-atomic` or `serializable`")),
    };
    let id = asked.id.map(self::id).transpose()?;
    Ok(Begin {
        id,
        isolation,
        ..Begin::default()
    })
}

fn opened(id: &TransactionId, attempt: Attempt) -> Response {
    json(written(&BegunBody {
        id: name(id),
        attempt: Some(attempt.to_string()),
        status: None,
        after: None,
    }))
}

fn committed_before(id: &TransactionId, after: Option<After>) -> Response {
    let after = after.as_ref().map(ToString::to_string);
    json(written(&BegunBody {
        id: name(id),
        attempt: None,
        status: Some("committed"),
        after,
    }))
}

async fn status(State(backend): State<Arc<Backend>>, uri: Uri, headers: HeaderMap) -> Answer {
    let engine = backend.transactions()?;
    refuse_query(&uri)?;
    let call = call(&uri, &headers)?;
    let outcome = backend.durable(engine, engine.status_of(&call)).await?;
    Ok(json(written(&StatusBody {
        status: outcome.to_string(),
        after: None,
    })))
}

async fn read(State(backend): State<Arc<Backend>>, uri: Uri, headers: HeaderMap) -> Answer {
    let engine = backend.transactions()?;
    let (call, key) = (call(&uri, &headers)?, key(&uri, KEY)?);
    let found = backend.durable(engine, engine.get(&call, &key)).await?;
    value(found)
}

async fn write(
    State(backend): State<Arc<Backend>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let engine = backend.transactions()?;
    headers::refuse_conditions(&headers)?;
    let (call, key) = (call(&uri, &headers)?, key(&uri, KEY)?);
    let whole = body::read(body, backend.value_bytes_max, &backend.budget).await?;
    let put = engine.put(&call, key, whole.bytes.clone());
    backend
        .in_time_for(whole.bytes.len(), Kind::Unavailable, put)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn delete(State(backend): State<Arc<Backend>>, uri: Uri, headers: HeaderMap) -> Answer {
    let engine = backend.transactions()?;
    headers::refuse_conditions(&headers)?;
    let (call, key) = (call(&uri, &headers)?, key(&uri, KEY)?);
    backend
        .in_time(Kind::Unavailable, engine.delete(&call, key))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn commit(
    State(backend): State<Arc<Backend>>,
    of: OfRun,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let engine = backend.transactions()?;
    headers::refuse_conditions(&headers)?;
    refuse_query(&uri)?;
    let call = call(&uri, &headers)?;
    // The commit takes effect at once, and may contain data that the step read from a far store.
    scope::settle(&backend, of.as_deref(), &headers).await?;
    let Committed { after } = backend
        .in_time(Kind::OutcomeUnknown, engine.commit(&call))
        .await?;
    let body = StatusBody {
        status: "committed".to_owned(),
        after: after.as_ref().map(ToString::to_string),
    };
    Ok(headers::with_after(json(written(&body)), after))
}

async fn abort(State(backend): State<Arc<Backend>>, uri: Uri, headers: HeaderMap) -> Answer {
    let engine = backend.transactions()?;
    headers::refuse_conditions(&headers)?;
    refuse_query(&uri)?;
    let call = call(&uri, &headers)?;
    backend
        .in_time(Kind::OutcomeUnknown, engine.abort(&call))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The id of a client's transaction. The ids of steps are reserved: no client may begin, use or end
/// those.
fn id(bytes: impl Into<Bytes>) -> Result<TransactionId, Problem> {
    let bytes = bytes.into();
    if bytes.starts_with(RESERVED_NAMES.as_bytes()) {
        let why = format!("ids that begin with `{RESERVED_NAMES}` are those of workflows' steps");
        return Err(Problem::new(Kind::ReservedName, why));
    }
    Ok(TransactionId::new(bytes)?)
}

/// The transaction and the attempt that a call is for.
pub(crate) fn call(uri: &Uri, headers: &HeaderMap) -> Result<Call, Problem> {
    let id = id(segment::bytes(uri, ID)?)?;
    Ok(Call {
        id,
        attempt: headers::attempt(headers)?,
    })
}

/// An id that came in JSON, so it is text.
fn name(id: &TransactionId) -> &str {
    id.as_str()
        .expect("ids that begins name or are given are text")
}

fn written(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("strings always serialise")
}
