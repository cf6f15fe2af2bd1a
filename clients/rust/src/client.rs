//! The client: the one place where its parts are put together.

use std::{env, path::Path, sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::sync::Semaphore;

use crate::{
    after::After,
    begin::Begin,
    connections::Connections,
    error::{Error, ErrorKind, Result},
    exchange::Core,
    limits::{ASIDE_MAX, CALL_MAX_DEFAULT, Limits},
    nodes::{self, Address, Route, URL_DEFAULT},
    state::State,
    transaction::Transaction,
    trust,
};

/// A connection to one server or to a cluster of them.
///
/// Clones share its connections. Each clone carries its own commits to the transactions that it
/// begins, so that they see them on every node: give each independent task a clone.
#[derive(Debug)]
pub struct Client {
    core: Core,
    nodes: Arc<[Address]>,
    after: Arc<After>,
}

impl Client {
    /// A client of the servers at these URLs, each of which takes any call. Nothing is sent before
    /// the first call.
    pub fn connect<I>(urls: I) -> Result<Self>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let nodes = nodes::parse(urls)?;
        let has_tls = nodes.iter().any(|node| node.is_tls);
        let trust = if has_tls {
            trust::in_system()
        } else {
            trust::in_none()
        };
        let core = Core {
            connections: Connections::to(&nodes, trust),
            route: Route::over(nodes.len()),
            limits: Limits::of_calls(CALL_MAX_DEFAULT),
            aside: Arc::new(Semaphore::new(ASIDE_MAX)),
        };
        Ok(Self {
            core,
            nodes,
            after: Arc::default(),
        })
    }

    /// A client of the servers that `LANDFAST_URL` names, several separated by commas, or of [`URL_DEFAULT`]; with
    /// the token in `LANDFAST_TOKEN`, if there is one, and the authorities in `LANDFAST_TLS_CA`, if that names a file.
    pub fn from_environment() -> Result<Self> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let urls = set("LANDFAST_URL").unwrap_or_else(|| URL_DEFAULT.to_owned());
        let mut client = Self::connect(urls.split(',').filter(|url| !url.trim().is_empty()))?;
        if let Some(path) = set("LANDFAST_TLS_CA") {
            client = client.with_ca(Path::new(&path))?;
        }
        match set("LANDFAST_TOKEN") {
            Some(token) => client.with_token(&token),
            None => Ok(client),
        }
    }

    /// Sends this token with every request.
    pub fn with_token(mut self, token: &str) -> Result<Self> {
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
            let why = "it has characters that a header cannot carry";
            Error::new(ErrorKind::InvalidRequest, "use a token", why)
        })?;
        header.set_sensitive(true);
        self.core.connections.authorization = Some(header);
        Ok(self)
    }

    /// Accepts the certificates of `https` servers that an authority in this PEM file has signed, instead of those
    /// of the system's authorities.
    pub fn with_ca(mut self, path: &Path) -> Result<Self> {
        let authorization = self.core.connections.authorization.take();
        self.core.connections = Connections::to(&self.nodes, trust::in_file(path)?);
        self.core.connections.authorization = authorization;
        Ok(self)
    }

    /// Bounds one call, its repeats and pauses included, instead of 30 s. If a response has begun
    /// by then, the client reads on while at least 64 KiB arrive in 10 s. A server may cut off a
    /// client that reads less than 32 KiB/s.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.core.limits = Limits::of_calls(timeout);
        self
    }

    /// A transaction. Await it for one attempt, which [`Transaction::commit`] commits; or give it a
    /// body with [`Begin::transact`].
    pub fn transaction(&self) -> Begin {
        Begin::new(self.core.clone(), Arc::clone(&self.after))
    }

    /// Runs `body` in a transaction with a generated id, repeatedly if necessary; see
    /// [`Begin::transact`]. A program that may be killed and retried names the work instead:
    /// `client.transaction().id(...).transact(body)`.
    pub async fn transact<T, E, F>(
        &self,
        body: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<Option<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        self.transaction().transact(body).await
    }

    /// Plain state: one key at a time, outside any transaction.
    pub fn state(&self) -> State {
        State::new(self.core.clone(), Arc::clone(&self.after))
    }
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            nodes: Arc::clone(&self.nodes),
            after: Arc::new(After::clone(&self.after)),
        }
    }
}
