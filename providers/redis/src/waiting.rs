//! Waiting until what a server has answered is safe.

use std::time::Duration;

use redis::{Cmd, Pipeline, Value, pipe};

use crate::{answer, error::Failure, fitness::Waits, node::Node};

impl Waits {
    /// Whether a fence has to write, so that there is something behind everything before it to wait for.
    pub(crate) fn needs_write(self) -> bool {
        matches!(self, Self::AppendOnlyFile | Self::Replicas(_))
    }

    /// Runs `fence` on the connection that may be blocked, then waits until it is safe, and with it all that the
    /// server ran before. Returns the fence's answer. A fence that is repeated does no harm, and the connection for
    /// it is often an idle one that broke long ago.
    pub(crate) async fn run(
        self,
        node: &Node,
        fence: Cmd,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        match self.run_once(node, fence.clone(), timeout).await {
            Err(Failure::Unanswered(error)) if error.is_connection_dropped() => {
                self.run_once(node, fence, timeout).await
            }
            fenced => fenced,
        }
    }

    async fn run_once(self, node: &Node, fence: Cmd, timeout: Duration) -> Result<Value, Failure> {
        let mut pipeline = pipe();
        pipeline.add_command(fence);
        let has_wait = self.add_to(&mut pipeline, timeout);
        let mut answers = node
            .waiting(&pipeline, 1 + usize::from(has_wait))
            .await?
            .into_iter();
        let fenced = answers.next().unwrap_or(Value::Nil);
        if let Some(confirmed) = answers.next() {
            self.judge(confirmed)?;
        }
        Ok(fenced)
    }

    fn add_to(self, pipeline: &mut Pipeline, timeout: Duration) -> bool {
        let timeout_ms = timeout.as_millis() as u64;
        match self {
            Self::Never | Self::Synced => return false,
            Self::AppendOnlyFile => pipeline.cmd("WAITAOF").arg(1).arg(0).arg(timeout_ms),
            Self::Replicas(count) => pipeline.cmd("WAIT").arg(count).arg(timeout_ms),
        };
        true
    }

    /// Who did not confirm in time may still do so: the outcome is not known.
    fn judge(self, confirmed: Value) -> Result<(), Failure> {
        let (asked, given) = match (self, confirmed) {
            (Self::Replicas(count), confirmed) => (u64::from(count), answer::number(&confirmed)?),
            (_, Value::Array(counts)) => (1, counts.first().map_or(Ok(0), answer::number)?),
            (_, other) => (1, answer::number(&other)?),
        };
        if given >= asked {
            return Ok(());
        }
        let late = format!("{given} of {asked} confirmed the write in time");
        Err(Failure::Unanswered(redis::RedisError::from((
            redis::ErrorKind::Client,
            "not confirmed",
            late,
        ))))
    }
}
