//! Waiting until a reply of a server is durable.

use std::time::Duration;

use redis::{Cmd, Value, pipe};

use crate::{
    error::Failure,
    servers::{node::Node, reply},
};

/// The wait after which an answered write is as safe as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DurabilityWait {
    /// Nothing: no durability is configured.
    Never,
    /// Nothing: the server syncs before it replies (`appendfsync always`).
    Synced,
    /// `WAITAOF`, since Redis 7.2.
    AppendOnlyFile,
    /// `WAIT` for this many replicas.
    Replicas(u32),
}

impl DurabilityWait {
    /// Whether a fence must write, so that the wait covers a command after all earlier ones.
    pub(crate) fn needs_write(self) -> bool {
        matches!(self, Self::AppendOnlyFile | Self::Replicas(_))
    }

    /// Runs `fence` on the blocking connection, then waits until it and all earlier commands of the
    /// server are safe. Returns the fence's reply. Repeating a fence is harmless, so it is sent
    /// again if the connection broke: an idle one often did so long ago.
    pub(crate) async fn run(
        self,
        node: &Node,
        fence: Cmd,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        match self.run_once(node, fence.clone(), timeout).await {
            Err(Failure::NoReply(error)) if error.is_connection_dropped() => {
                self.run_once(node, fence, timeout).await
            }
            fenced => fenced,
        }
    }

    async fn run_once(self, node: &Node, fence: Cmd, timeout: Duration) -> Result<Value, Failure> {
        let mut pipeline = pipe();
        pipeline.add_command(fence);
        let timeout_ms = timeout.as_millis() as u64;
        match self {
            Self::Never | Self::Synced => {}
            Self::AppendOnlyFile => _ = pipeline.cmd("WAITAOF").arg(1).arg(0).arg(timeout_ms),
            Self::Replicas(count) => _ = pipeline.cmd("WAIT").arg(count).arg(timeout_ms),
        }
        let mut answers = node.fence(&pipeline, pipeline.len()).await?.into_iter();
        let fenced = answers.next().unwrap_or(Value::Nil);
        if let Some(confirmed) = answers.next() {
            self.check_confirmed(confirmed)?;
        }
        Ok(fenced)
    }

    /// A confirmation that is late may still arrive, so the outcome is unknown.
    fn check_confirmed(self, confirmed: Value) -> Result<(), Failure> {
        let (asked, given) = match (self, confirmed) {
            (Self::Replicas(count), confirmed) => (u64::from(count), reply::number(&confirmed)?),
            (_, Value::Array(counts)) => (1, counts.first().map_or(Ok(0), reply::number)?),
            (_, other) => (1, reply::number(&other)?),
        };
        if given >= asked {
            return Ok(());
        }
        let late = format!("{given} of {asked} confirmed the write in time");
        Err(Failure::NoReply(redis::RedisError::from((
            redis::ErrorKind::Client,
            "not confirmed",
            late,
        ))))
    }
}
