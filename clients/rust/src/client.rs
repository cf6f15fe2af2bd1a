//! The client: the one place where its parts are put together.

use std::{env, sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    after::After,
    begin::Begin,
    call::Call,
    connections::Connections,
    error::{Error, ErrorKind, Result},
    exchange::{Answer, exchange},
    limits::{ASIDE_CALL_MAX, ASIDE_MAX, CALL_MAX_DEFAULT, Limits},
    nodes::{self, Route, URL_DEFAULT},
    state::State,
    transaction::Transaction,
};

/// A connection to one server or to a cluster of them.
///
/// Clones share its connections. Each clone carries its own commits to the transactions that it
/// begins, so that they see them on every node: give each independent task a clone.
#[derive(Debug)]
pub struct Client {
    core: Core,
    after: Arc<After>,
}

/// The settings and connections that every call needs.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    connections: Connections,
    route: Arc<Route>,
    limits: Limits,
    /// Permits for background work.
    pub(crate) aside: Arc<Semaphore>,
}

impl Core {
    /// Runs background work, for [`ASIDE_CALL_MAX`] in all. Work beyond [`ASIDE_MAX`] tasks at a
    /// time is dropped. So is work without a runtime, for instance while the runtime shuts down.
    pub(crate) fn spawn_aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if let Ok(place) = Arc::clone(&self.aside).try_acquire_owned() {
            runtime.spawn(async move {
                // Work that exceeds its time is dropped at any point.
                let _ = timeout(ASIDE_CALL_MAX, work).await;
                drop(place);
            });
        }
    }

    pub(crate) async fn exchange(&self, call: &Call) -> Result<Answer> {
        exchange(call, &self.route, &self.connections, self.limits).await
    }

    /// The same with a route of its own.
    pub(crate) fn branch(&self) -> Self {
        Self {
            route: self.route.branch(),
            ..self.clone()
        }
    }

    pub(crate) fn with_limits(&self, limits: Limits) -> Self {
        Self {
            limits,
            ..self.clone()
        }
    }
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
        let core = Core {
            connections: Connections::to(&nodes),
            route: Route::over(nodes.len()),
            limits: Limits::of_calls(CALL_MAX_DEFAULT),
            aside: Arc::new(Semaphore::new(ASIDE_MAX)),
        };
        Ok(Self {
            core,
            after: Arc::default(),
        })
    }

    /// A client of the servers that `LANDFAST_URL` names, several separated by commas, or of [`URL_DEFAULT`]; with
    /// the token in `LANDFAST_TOKEN`, if there is one.
    pub fn from_environment() -> Result<Self> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let urls = set("LANDFAST_URL").unwrap_or_else(|| URL_DEFAULT.to_owned());
        let client = Self::connect(urls.split(',').filter(|url| !url.trim().is_empty()))?;
        match set("LANDFAST_TOKEN") {
            Some(token) => client.with_token(&token),
            None => Ok(client),
        }
    }

    /// Sends this token with every request.
    pub fn with_token(mut self, token: &str) -> Result<Self> {
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
            Error::new(
                ErrorKind::InvalidRequest,
                "use a token",
                "it has characters that a header cannot carry",
            )
        })?;
        header.set_sensitive(true);
        self.core.connections.authorization = Some(header);
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
            after: Arc::new(After::clone(&self.after)),
        }
    }
}
