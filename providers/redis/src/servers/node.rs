//! One server: its connections, and the classification of its errors.
//!
//! All commands share one pipelined connection. Waiting for replicas or for the append-only file
//! blocks a connection, so fences have their own. This module never repeats a command: only the
//! caller knows whether a repeat is harmless.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
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
    commands: LazyConnection,
    fences: LazyConnection,
    created: Instant,
    health: Mutex<Health>,
}

/// Why the last use of the server failed. Until the server has answered once, the error goes to the
/// caller alone, which reports it. A store that cannot be opened is retried with new nodes.
#[derive(Default)]
struct Health {
    has_answered: bool,
    outage: LogThrottle,
}

impl fmt::Debug for Node {
    /// Leaves out the client, which knows the password.
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
        let connection = |response_timeout| LazyConnection {
            connected: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            connections_made: AtomicU64::new(0),
            connection_timeout: config.connection_timeout,
            response_timeout,
        };
        let fences = connection(config.response_timeout + config.durability_timeout);
        Ok(Self {
            address,
            client,
            commands: connection(config.response_timeout),
            fences,
            created: Instant::now(),
            health: Mutex::default(),
        })
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Host and port, and why the last use failed, if it did.
    pub(crate) fn health(&self) -> (String, Option<String>) {
        let reason = self.health.lock().outage.reason().map(str::to_owned);
        (self.address.clone(), reason)
    }

    fn record<T>(&self, answered: Result<T, Failure>) -> Result<T, Failure> {
        let now = || Monotonic(self.created.elapsed());
        let mut health = self.health.lock();
        let (server, is_known) = (&self.address, health.has_answered);
        if let Err(Failure::NotSent(error) | Failure::NoReply(error)) = &answered {
            if let Some(lasts) = health.outage.failed(now(), &error.to_string())
                && is_known
            {
                tracing::warn!(server, %error, ?lasts, "a redis server cannot be used; trying again");
            }
        } else {
            // A refusal is a reply too.
            health.has_answered = true;
            if let Some(lasted) = health.outage.ended(now())
                && is_known
            {
                tracing::info!(server, ?lasted, "the redis server is usable again");
            }
        }
        drop(health);
        answered
    }

    /// Runs one command.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, Failure> {
        self.record(self.commands.command(&self.client, command).await)
    }

    /// Pipelines commands on one connection. If one fails, the call returns its error.
    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        self.record(
            self.commands
                .pipeline(&self.client, pipeline, answers)
                .await,
        )
    }

    /// The same on the blocking connection.
    pub(crate) async fn fence(
        &self,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        self.record(self.fences.pipeline(&self.client, pipeline, answers).await)
    }

    /// The messages published on `channel`, on a separate connection.
    pub(crate) async fn subscribe(&self, channel: &str) -> redis::RedisResult<redis::aio::PubSub> {
        let mut subscription = self.client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    }
}

/// A connection that is opened on first use.
struct LazyConnection {
    connected: Mutex<Option<(u64, MultiplexedConnection)>>,
    connecting: tokio::sync::Mutex<()>,
    connections_made: AtomicU64,
    connection_timeout: Duration,
    response_timeout: Duration,
}

impl LazyConnection {
    async fn command(&self, client: &Client, command: &Cmd) -> Result<Value, Failure> {
        let (number, mut connection) = self.connection(client).await?;
        let value = connection.send_packed_command(command).await;
        reject_server_error(value.map_err(|error| self.classify(number, error))?)
    }

    async fn pipeline(
        &self,
        client: &Client,
        pipeline: &Pipeline,
        answers: usize,
    ) -> Result<Vec<Value>, Failure> {
        let (number, mut connection) = self.connection(client).await?;
        let values = connection.send_packed_commands(pipeline, 0, answers).await;
        let values = values.map_err(|error| self.classify(number, error))?;
        values.into_iter().map(reject_server_error).collect()
    }

    async fn connection(&self, client: &Client) -> Result<(u64, MultiplexedConnection), Failure> {
        if let Some(connected) = self.connected.lock().clone() {
            return Ok(connected);
        }
        let _guard = self.connecting.lock().await;
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
            self.connections_made.fetch_add(1, Ordering::Relaxed),
            made.map_err(Failure::NotSent)?,
        );
        *self.connected.lock() = Some(connected.clone());
        Ok(connected)
    }

    /// Classifies an error, and drops the connection if it is unusable.
    fn classify(&self, number: u64, error: redis::RedisError) -> Failure {
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
        Failure::NoReply(error)
    }
}

/// Turns an error reply into a failure.
fn reject_server_error(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(Failure::Refused(error.into())),
        value => Ok(value),
    }
}
