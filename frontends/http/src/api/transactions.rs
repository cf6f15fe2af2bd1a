//! The routes of transactions: begin, get, put, delete, commit, abort, status.
//!
//! Each is one call of the engine. Its dependencies are durable before the response is sent: see
//! [`Backend`].

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use transactions::{
    Engine,
    model::{After, Begin, Begun, Call, Committed, Isolation, TransactionId},
};
use workflows::RESERVED_NAMES;

use super::volume_transactions;
use crate::{
    backend::Backend,
    headers,
    problem::{Kind, Problem},
    request::{BODY_BYTES_MAX, COMMIT_BYTES_MAX, Request},
    response::{Answer, json, no_content, value},
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
    /// The volume that it is on; none: it is on the default keyspace.
    volume: Option<String>,
}

/// The response to a begin, a commit, or a query for the status: the members that apply.
#[derive(Debug, Default, Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<String>,
    /// Whether it is a block of the transaction of the function's invocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// The result that was kept with the commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
}

/// The body of a commit, all of it optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitBody {
    /// Kept with the commit. A later begin of the same id returns it.
    result: Option<Box<RawValue>>,
}

async fn begin(request: Request, body: Body) -> Answer {
    let engine = request.backend.transactions()?;
    request.refuse_conditions()?;
    request.refuse_any_query(
        r#"a begin takes no query: what it asks for is its body, {"id": ..., "isolation": ...}"#,
    )?;
    let whole = request.read(body, BODY_BYTES_MAX).await?;
    let (asked, volume) = asked_for(&whole.bytes)?;
    if let Some(volume) = volume {
        let begun = volume_transactions::begin(&request, volume, asked.id).await?;
        let (id, attempt, is_block) = begun;
        return Ok(volume_transactions::begun(&Shown {
            id: std::str::from_utf8(&id).ok(),
            attempt: Some(attempt.to_string()),
            block: is_block.then_some(true),
            ..Shown::default()
        }));
    }
    let begin = Begin {
        after: headers::after(&request.headers)?,
        ..asked
    };
    match request.backend.durable(engine, engine.begin(begin)).await? {
        Begun::Open { id, attempt } => {
            let opened = Shown {
                id: id.as_str(),
                attempt: Some(attempt.to_string()),
                ..Shown::default()
            };
            Ok((StatusCode::CREATED, json(&opened)).into_response())
        }
        Begun::Committed { id, after, result } => {
            Ok(committed(id.as_str(), after, result.as_deref()))
        }
    }
}

/// Parses the body of a begin, with its volume. An empty one asks for the defaults.
fn asked_for(body: &[u8]) -> Result<(Begin, Option<String>), Problem> {
    let refuse = |why: &str| Problem::invalid(format!("the body of a begin: {why}"));
    let asked: BeginBody = object(body).map_err(|why| refuse(&why))?;
    let isolation = match asked.isolation.as_deref() {
        Some("read-atomic") if asked.volume.is_some() => {
            return Err(refuse("transactions on a volume are `serializable`"));
        }
        None | Some("read-atomic") => Isolation::ReadAtomic,
        Some("serializable") => Isolation::Serializable,
        Some(_) => return Err(refuse("`isolation` is `read-atomic` or `serializable`")),
    };
    let id = asked.id.map(self::id).transpose()?;
    let begin = Begin {
        id,
        isolation,
        ..Begin::default()
    };
    Ok((begin, asked.volume))
}

/// The response to a begin of a committed id, or to a commit.
fn committed(id: Option<&str>, after: Option<After>, result: Option<&[u8]>) -> Response {
    let body = Shown {
        id,
        status: Some("committed".to_owned()),
        after: after.as_ref().map(ToString::to_string),
        // It was JSON when it was kept.
        result: result.and_then(|result| serde_json::from_slice(result).ok()),
        ..Shown::default()
    };
    headers::with_after(json(&body), after)
}

async fn status(request: Request) -> Answer {
    let engine = request.backend.transactions()?;
    request.refuse_query()?;
    let call = call(&request)?;
    let outcome = if let Some(open) = request.backend.on_volume(&call)? {
        open.outcome().await
    } else {
        let outcome = engine.status_of(&call);
        request.backend.durable(engine, outcome).await?
    };
    Ok(json(&Shown {
        status: Some(outcome.to_string()),
        ..Shown::default()
    }))
}

async fn read(request: Request) -> Answer {
    let engine = request.backend.transactions()?;
    let (call, key) = (call(&request)?, request.key(KEY)?);
    if let Some(open) = request.backend.on_volume(&call)? {
        return volume_transactions::read(&request, &open, &key).await;
    }
    let found = engine.get(&call, &key);
    value(request.backend.durable(engine, found).await?)
}

async fn write(request: Request, body: Body) -> Answer {
    let backend = &request.backend;
    let engine = backend.transactions()?;
    request.refuse_conditions()?;
    let (call, key) = (call(&request)?, request.key(KEY)?);
    let whole = request.read(body, backend.value_bytes_max).await?;
    if let Some(open) = backend.on_volume(&call)? {
        return volume_transactions::write(&request, &open, &key, Some(whole)).await;
    }
    let put = engine.put(&call, key, whole.bytes.clone());
    let bytes = whole.bytes.len();
    backend.in_time(bytes, Kind::Unavailable, put).await?;
    Ok(no_content())
}

async fn delete(request: Request) -> Answer {
    let engine = request.backend.transactions()?;
    request.refuse_conditions()?;
    let (call, key) = (call(&request)?, request.key(KEY)?);
    if let Some(open) = request.backend.on_volume(&call)? {
        return volume_transactions::write(&request, &open, &key, None).await;
    }
    let (backend, deleted) = (&request.backend, engine.delete(&call, key));
    backend.in_time(0, Kind::Unavailable, deleted).await?;
    Ok(no_content())
}

async fn commit(request: Request, body: Body) -> Answer {
    let engine = request.backend.transactions()?;
    request.refuse_conditions()?;
    request.refuse_query()?;
    let call = call(&request)?;
    let whole = request.read(body, COMMIT_BYTES_MAX).await?;
    let CommitBody { result } = object(&whole.bytes)
        .map_err(|why| Problem::invalid(format!("the body of a commit: {why}")))?;
    drop(whole);
    // The commit takes effect at once, and may contain data that the step read from a far store.
    request.settle().await?;
    if let Some(open) = request.backend.on_volume(&call)? {
        let committed = open.commit();
        request
            .backend
            .within(0, Kind::OutcomeUnknown, committed)
            .await?;
        return Ok(self::committed(None, None, None));
    }
    let is_repeat = match &result {
        Some(result) => !keep(&request, engine, &call, result).await?,
        None => false,
    };
    let commit = engine.commit(&call);
    let in_time = request.backend.in_time(0, Kind::OutcomeUnknown, commit);
    let Committed { after } = in_time.await?;
    let first = if is_repeat {
        let kept = engine.kept_result(&call.id);
        request.backend.durable(engine, kept).await?
    } else {
        None
    };
    Ok(committed(None, after, first.as_deref()))
}

/// Keeps a result with the commit that follows. Returns false if the transaction has ended: the
/// commit says how.
async fn keep(
    request: &Request,
    engine: &Engine,
    call: &Call,
    result: &RawValue,
) -> Result<bool, Problem> {
    use transactions::Error as E;

    let result = Bytes::copy_from_slice(result.get().as_bytes());
    let kept = async {
        match engine.keep_result(call, result).await {
            Ok(()) => Ok(true),
            Err(E::TransactionFinished(_) | E::NoSuchTransaction | E::Expired) => Ok(false),
            Err(error) => Err(error),
        }
    };
    request.backend.in_time(0, Kind::Unavailable, kept).await
}

/// A body that is a JSON object, or empty. serde would accept a list of the members in their order.
fn object<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, String> {
    match body.trim_ascii_start().first() {
        None if body.is_empty() => Ok(T::default()),
        Some(b'{') => serde_json::from_slice(body).map_err(|error| error.to_string()),
        _ => Err("it is a JSON object".to_owned()),
    }
}

async fn abort(request: Request) -> Answer {
    let engine = request.backend.transactions()?;
    request.refuse_conditions()?;
    request.refuse_query()?;
    let call = call(&request)?;
    if let Some(open) = request.backend.on_volume(&call)? {
        request
            .backend
            .within(0, Kind::OutcomeUnknown, open.abort())
            .await?;
        return Ok(no_content());
    }
    let (backend, abort) = (&request.backend, engine.abort(&call));
    backend.in_time(0, Kind::OutcomeUnknown, abort).await?;
    Ok(no_content())
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
pub(crate) fn call(request: &Request) -> Result<Call, Problem> {
    Ok(Call {
        id: id(segment::bytes(&request.uri, ID)?)?,
        attempt: headers::attempt(&request.headers)?,
    })
}
