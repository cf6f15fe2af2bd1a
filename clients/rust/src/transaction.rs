//! A transaction that has begun: a handle around its attempt.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use serde::Deserialize;

use crate::{
    after::After,
    attempt::{Attempt, Phase, Verdict},
    call::{AttemptName, Call},
    error::Result,
    exchange::{Answer, Core},
    limits::Limits,
    unanswered::Unanswered,
};

/// One attempt at a transaction.
///
/// The client repeats lost requests of the transaction, at the next node if necessary. It does not
/// repeat the code that uses the transaction: [`Begin::transact`](crate::Begin::transact) does
/// that. Clones are the same attempt; tasks may share it as long as they write different keys.
///
/// When the last clone is dropped before a commit was requested, or the caller no longer awaits the
/// commit's response, the client aborts the attempt in the background. The abort undoes no commit.
/// It takes 10 s at the most, and is left out where the runtime has ended. An attempt that stays
/// open ends when it has been idle for 60 s.
#[derive(Debug, Clone)]
pub struct Transaction(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    name: AttemptName,
    /// With a route of its own: it stays with its node.
    core: Core,
    after: Arc<After>,
    attempt: Mutex<Attempt>,
    committed: OnceLock<String>,
}

/// The response to a commit, or to a query for the outcome of an id.
#[derive(Deserialize)]
struct Status {
    status: String,
    after: Option<String>,
}

impl Transaction {
    pub(crate) fn begun(
        name: AttemptName,
        core: Core,
        after: Arc<After>,
        is_begin_doubled: bool,
    ) -> Self {
        let attempt = Mutex::new(Attempt::begun(&name.id, is_begin_doubled));
        Self(Arc::new(Handle {
            name,
            core,
            after,
            attempt,
            committed: OnceLock::new(),
        }))
    }

    /// The name of the transaction: under it, it takes effect at most once.
    pub fn id(&self) -> &str {
        &self.0.name.id
    }

    /// Once committed: the token for [`Begin::after`](crate::Begin::after) elsewhere, which makes
    /// that transaction see this commit.
    pub fn after(&self) -> Option<String> {
        self.0.committed.get().cloned()
    }

    /// The value of `key` as this transaction sees it; none if there is none.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let call = Call::get(&self.0.name, key.as_ref());
        self.attempt().may_call(&call)?;
        let answer = self.0.core.exchange(&call).await;
        let answer = answer.map_err(|error| self.attempt().failed(&call, error))?;
        Ok(answer.response.value())
    }

    /// Sets `key`; other transactions see it once this one has committed.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        let call = Call::put(&self.0.name, key.as_ref(), value.into())?;
        self.write(key.as_ref(), &call).await
    }

    /// Removes `key`, whether or not it exists.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let call = Call::delete(&self.0.name, key.as_ref());
        self.write(key.as_ref(), &call).await
    }

    /// Sends `message` to `queue` once the transaction has committed, at least once, in order
    /// within `group`; never if it does not commit. This call, not the commit, refuses a queue that
    /// does not exist.
    pub async fn send(
        &self,
        queue: &str,
        group: impl AsRef<[u8]>,
        message: impl Into<Bytes>,
    ) -> Result<()> {
        let place = self.attempt().next_effect();
        let call = Call::send(&self.0.name, place, queue, group.as_ref(), message.into())?;
        self.effect(&call).await
    }

    /// Invokes `function` with `payload` once the transaction has committed, at least once; never
    /// if it does not commit. This call, not the commit, refuses a function that does not exist.
    pub async fn invoke(&self, function: &str, payload: impl Into<Bytes>) -> Result<()> {
        let place = self.attempt().next_effect();
        let call = Call::invoke(&self.0.name, place, function, payload.into())?;
        self.effect(&call).await
    }

    /// Makes all its writes take effect, durably, once. May be repeated after
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown), and after it has succeeded.
    pub async fn commit(&self) -> Result<()> {
        self.commit_keeping(None).await
    }

    /// Commits, and keeps `result`, in JSON, with the commit.
    pub(crate) async fn commit_keeping(&self, result: Option<&str>) -> Result<()> {
        let call = Call::commit(&self.0.name, result);
        if self.attempt().phase == Phase::Committed {
            return Ok(());
        }
        self.attempt().may_commit(&call)?;
        let unanswered = Unanswered::then(|| self.attempt().break_commit_off());
        let answer = self.0.core.exchange(&call).await;
        unanswered.answered();
        let answer = answer.map_err(|error| self.attempt().commit_failed(&call, error))?;
        self.attempt().committed();
        self.remember(answer);
        Ok(())
    }

    /// Drops all writes so far. Nothing happens if the attempt is over already and did not commit.
    pub async fn abort(&self) -> Result<()> {
        let call = Call::abort(&self.0.name);
        if !self.attempt().may_abort(&call)? {
            return Ok(());
        }
        let core = self.0.core.with_limits(Limits::OF_ABORTS);
        let answer = core.exchange(&call).await;
        self.attempt().aborted(answer.err())
    }

    /// The server's state of the id: `open`, `committing`, `committed`, `aborted` or `expired`.
    pub async fn status(&self) -> Result<String> {
        let call = Call::status(&self.0.name);
        let answer = self.0.core.exchange(&call).await?;
        let found: Status = serde_json::from_slice(&answer.response.body)
            .map_err(|_| call.unexpected("no status in the answer"))?;
        Ok(found.status)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.attempt().verdict()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.attempt().is_given_up()
    }

    /// Aborts an attempt that is still open. Its error is ignored: the body's error says more than
    /// a failed abort, and the server ends idle attempts by itself.
    pub(crate) async fn give_up(&self) {
        if self.attempt().may_be_open() {
            let _ = self.abort().await;
        }
    }

    async fn write(&self, key: &[u8], call: &Call) -> Result<()> {
        self.attempt().may_write(call, key)?;
        let is_doubled = self.exchange_change(call).await?;
        self.attempt().wrote(key, is_doubled);
        Ok(())
    }

    /// An effect that is sent twice takes effect once: its position identifies it.
    async fn effect(&self, call: &Call) -> Result<()> {
        self.attempt().may_call(call)?;
        self.exchange_change(call).await.map(drop)
    }

    /// Whether more than one copy of it was sent.
    async fn exchange_change(&self, call: &Call) -> Result<bool> {
        let unanswered = Unanswered::then(|| self.attempt().tear());
        let answer = self.0.core.exchange(call).await;
        unanswered.answered();
        let answer = answer.map_err(|error| self.attempt().write_failed(call, error))?;
        Ok(answer.is_doubled)
    }

    fn remember(&self, answer: Answer) {
        let said: Option<Status> = serde_json::from_slice(&answer.response.body).ok();
        let said = said.and_then(|body| body.after);
        if let Some(token) = self.0.after.heard(said.or(answer.response.after)) {
            // A concurrent commit has the same token.
            let _ = self.0.committed.set(token);
        }
    }

    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        locked(&self.0.attempt)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !locked(&self.attempt).may_be_open() {
            return;
        }
        let core = self.core.with_limits(Limits::OF_ASIDE);
        let call = Call::abort(&self.name);
        self.core
            .spawn_aside(async move { drop(core.exchange(&call).await) });
    }
}

fn locked(attempt: &Mutex<Attempt>) -> MutexGuard<'_, Attempt> {
    attempt.lock().unwrap_or_else(PoisonError::into_inner)
}
