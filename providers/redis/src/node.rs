//! One server: its connections, and what a failed command tells.
//!
//! All commands share one pipelined connection. Waiting for replicas or for the append-only file blocks the
//! connection it happens on, so it has one of its own. No command is ever repeated here: only the caller knows
//! whether a repeat does harm.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ports::{LogThrottle, Monotonic};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, Value,
    aio::MultiplexedConnection,
};

use crate::{config::Config, error::Failure};

/// A server.
pub(crate) struct Node {
    address: String,
    client: Client,
    commands: Link,
    fences: Link,
    trouble: Trouble,
}

/// Why the server could not be used when it was last needed. As long as it has never answered, whoever looks for it is told
/// and says so: a store that cannot be opened is tried again with nodes of its own.
struct Trouble {
    address: String,
    made: Instant,
    has_answered: AtomicBool,
    is_there: AtomicBool,
    outage: Mutex<LogThrottle>,
}

impl Trouble {
    fn of(address: String) -> Self {
        let (has_answered, is_there) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            address,
            made: Instant::now(),
            has_answered,
            is_there,
            outage: Mutex::default(),
        }
    }

    fn told<T>(&self, answered: Result<T, Failure>) -> Result<T, Failure> {
        match &answered {
            Err(Failure::NotSent(error) | Failure::Unanswered(error)) => {
                let mut outage = self.outage.lock();
                self.is_there.store(true, Ordering::Relaxed);
                if let Some(lasts) = outage.failed(self.now(), &error.to_string())
                    && self.has_answered.load(Ordering::Relaxed)
                {
                    tracing::warn!(server = self.address, %error, ?lasts, "a redis server cannot be used; trying again");
                }
            }
            // A refusal is an answer too.
            _ if self.is_there.load(Ordering::Relaxed)
                || !self.has_answered.load(Ordering::Relaxed) =>
            {
                let mut outage = self.outage.lock();
                self.is_there.store(false, Ordering::Relaxed);
                if let Some(lasted) = outage.ended(self.now())
                    && self.has_answered.load(Ordering::Relaxed)
                {
                    tracing::info!(
                        server = self.address,
                        ?lasted,
                        "the redis server can be used again"
                    );
                }
                self.has_answered.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        answered
    }

    fn now(&self) -> Monotonic {
        Monotonic(self.made.elapsed())
    }
}

impl fmt::Debug for Node {
    /// The client knows the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo, config: &Config) -> Result<Self, Failure> {
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(Failure::NotSent)?;
        let link = |response_timeout| Link {
            connected: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            made: AtomicU64::new(0),
            connection_timeout: config.connection_timeout,
            response_timeout,
        };
        let fences = link(config.response_timeout + config.durability_timeout);
        let trouble = Trouble::of(address.clone());
        Ok(Self {
            address,
            client,
            commands: link(config.response_timeout),
            fences,
            trouble,
        })
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Host and port, and why it could not be used when it was last needed, if so.
    pub(crate) fn health(&self) -> (String, Option<String>) {
        (
            self.address.clone(),
            self.trouble.outage.lock().reason().map(str::to_owned),
        )
    }

    /// Runs one command.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, Failure> {
        self.trouble
            .told(self.commands.command(&self.client, command).await)
    }

    /// Runs commands one right behind the other on one connection; an error of one is the error of all.
    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        self.trouble.told(
            self.commands
                .pipeline(&self.client, pipeline, answers)
                .await,
        )
    }

    /// The same on the connection that may be blocked.
    pub(crate) async fn waiting(
        &self,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        self.trouble
            .told(self.fences.pipeline(&self.client, pipeline, answers).await)
    }

    /// Messages published on `channel`, on a connection of their own.
    pub(crate) async fn subscribe(&self, channel: &str) -> redis::RedisResult<redis::aio::PubSub> {
        let mut subscription = self.client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    }
}

/// A connection that is made when it is needed.
struct Link {
    connected: Mutex<Option<(u64, MultiplexedConnection)>>,
    connecting: tokio::sync::Mutex<()>,
    made: AtomicU64,
    connection_timeout: Duration,
    response_timeout: Duration,
}

impl Link {
    async fn command(&self, client: &Client, command: &Cmd) -> Result<Value, Failure> {
        let (number, mut connection) = self.connection(client).await?;
        let value = connection.send_packed_command(command).await;
        refused(value.map_err(|error| self.failed(number, error))?)
    }

    async fn pipeline(
        &self,
        client: &Client,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        let (number, mut connection) = self.connection(client).await?;
        let values = connection.send_packed_commands(pipeline, 0, answers).await;
        let values = values.map_err(|error| self.failed(number, error))?;
        values.into_iter().map(refused).collect()
    }

    async fn connection(&self, client: &Client) -> Result<(u64, MultiplexedConnection), Failure> {
        if let Some(connected) = self.connected.lock().clone() {
            return Ok(connected);
        }
        let _turn = self.connecting.lock().await;
        if let Some(connected) = self.connected.lock().clone() {
            return Ok(connected);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connection_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let made = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let connected = (
            self.made.fetch_add(1, Ordering::Relaxed),
            made.map_err(Failure::NotSent)?,
        );
        *self.connected.lock() = Some(connected.clone());
        Ok(connected)
    }

    /// Judges a failure, and forgets the connection if it is of no more use.
    fn failed(&self, number: u64, error: redis::RedisError) -> Failure {
        if let ErrorKind::Server(_) | ErrorKind::Extension = error.kind() {
            return Failure::Refused(error);
        }
        let mut connected = self.connected.lock();
        if connected
            .as_ref()
            .is_some_and(|(present, _)| *present == number)
        {
            *connected = None;
        }
        Failure::Unanswered(error)
    }
}

/// The server's refusal as what it is.
fn refused(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(Failure::Refused(error.into())),
        value => Ok(value),
    }
}
