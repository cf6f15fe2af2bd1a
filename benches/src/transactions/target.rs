//! The systems under test: an engine in this process, a server over HTTP, or plain Redis, one
//! connection for each client.

use anyhow::{Context, Result};
use bytes::Bytes;
use simulation::transactions::history::{ReadResult, Writer};
use transactions::{
    Engine, Error,
    model::{Begin, Begun, Call, Key, Version},
};

use super::{http::Http, plain::Plain};

/// One client's access path to a store.
#[derive(Debug)]
pub enum Target {
    /// The engine, called as a function.
    Engine(Engine, Option<Call>),
    /// A server.
    Http(Box<Http>),
    /// Redis, each write at once, as functions without transactions write.
    Plain(Plain),
}

impl Target {
    /// An engine in this process.
    pub fn engine(engine: &Engine) -> Self {
        Self::Engine(engine.clone(), None)
    }

    /// Begins a transaction and says who writes in it.
    pub async fn begin(&mut self) -> Result<Writer> {
        match self {
            Self::Engine(engine, call) => {
                let begun = engine.begin(Begin::default()).await.context("begin")?.value;
                let Begun::Open { id, attempt } = begun else {
                    anyhow::bail!("a new transaction is open")
                };
                *call = Some(Call {
                    id: id.clone(),
                    attempt: Some(attempt),
                });
                Ok(Writer { id, attempt })
            }
            Self::Http(http) => http.begin().await,
            Self::Plain(plain) => plain.begin(),
        }
    }

    /// Reads `key`.
    pub async fn get(&mut self, key: &Key) -> Result<ReadResult> {
        match self {
            Self::Engine(engine, call) => match engine.get(open(call.as_ref())?, key).await {
                Ok(shown) => Ok(shown.value.map_or(ReadResult::Absent, ReadResult::Value)),
                Err(Error::NoValidVersion) => Ok(ReadResult::NoValidVersion),
                Err(error) => Err(error).context("get"),
            },
            Self::Http(http) => http.get(key).await,
            Self::Plain(plain) => plain.get(key).await,
        }
    }

    /// Writes `key`.
    pub async fn put(&mut self, key: &Key, value: Bytes) -> Result<()> {
        match self {
            Self::Engine(engine, call) => engine
                .put(open(call.as_ref())?, key.clone(), value)
                .await
                .context("put"),
            Self::Http(http) => http.put(key, value).await,
            Self::Plain(plain) => plain.put(key, value).await,
        }
    }

    /// Commits; durable when it returns. Returns the version of the writes.
    pub async fn commit(&mut self) -> Result<Version> {
        match self {
            Self::Engine(engine, call) => {
                let committed = engine
                    .commit(open(call.as_ref())?)
                    .await
                    .context("commit")?;
                Ok(committed
                    .after
                    .context("a transaction that wrote has a version")?
                    .version)
            }
            Self::Http(http) => http.commit().await,
            Self::Plain(plain) => plain.commit(),
        }
    }

    /// Aborts the transaction.
    pub async fn abort(&mut self) -> Result<()> {
        match self {
            Self::Engine(engine, call) => engine.abort(open(call.as_ref())?).await.context("abort"),
            Self::Http(http) => http.abort().await,
            // Plain Redis keeps the writes of an aborted transaction: the benchmark measures this.
            Self::Plain(_) => Ok(()),
        }
    }
}

fn open(call: Option<&Call>) -> Result<&Call> {
    call.context("a transaction has begun")
}
