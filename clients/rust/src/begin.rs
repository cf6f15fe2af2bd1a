//! Beginning a transaction, and running a body until its transaction has committed.
//!
//! The body runs again only where its attempt is known to have ended without effect, always under
//! the same id. So even a commit whose response was lost cannot be applied twice: the next begin
//! under that id reports the commit.
//!
//! A caller may drop a begin after it was sent and before its response. If the id is generated, the
//! client then aborts the possibly open attempt in the background. Under a client id another
//! attempt of the same work may be running, so the client leaves that one to its time-out.

use std::{pin::Pin, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    after::After,
    attempt::Verdict,
    call::{AttemptName, Call, GENERATED_ID_PREFIX, Isolation},
    error::{Error, ErrorKind, Result},
    exchange::{Core, full_jitter},
    limits::{Limits, RESULT_BYTES_MAX},
    transaction::Transaction,
    unanswered::Unanswered,
};

/// How often a body runs before the last error is returned; all runs take up to about 10 s.
pub const RUNS_MAX: u32 = 16;
/// Random bytes of a generated id after the prefix, which are written as hexadecimal digits.
const GENERATED_ID_BYTES: usize = 16;
/// Pauses before each further abort of a dropped begin: the begin may still be in flight.
const UNHEARD_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// A transaction that is about to begin. Await it for one attempt, or give it a body with
/// [`Begin::transact`].
#[derive(Debug)]
#[must_use = "nothing begins until it is awaited"]
pub struct Begin {
    core: Core,
    carried: Arc<After>,
    id: Option<String>,
    isolation: Option<Isolation>,
    after: Option<String>,
    runs_max: u32,
}

/// The outcome of a transaction with a body.
enum Ran<T> {
    Now(T),
    /// Its id had committed before, as this error says.
    Before(Error),
    /// Its id was committed by another client meanwhile.
    Meanwhile,
}

#[derive(Default, Deserialize)]
struct Begun {
    status: Option<String>,
    attempt: Option<String>,
    after: Option<String>,
    result: Option<Value>,
}

impl Begin {
    pub(crate) fn new(core: Core, carried: Arc<After>) -> Self {
        Self {
            core,
            carried,
            id: None,
            isolation: None,
            after: None,
            runs_max: RUNS_MAX,
        }
    }

    /// Names the transaction after the work it does, in 1 to 128 bytes. Under its id it takes
    /// effect once, even if several callers retry it. Without this call, the client generates an
    /// id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Requests an isolation level; the server's default is read-atomic.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Makes it see the commit of another client's [`Transaction::after`] token, instead of this
    /// client's last.
    pub fn after(mut self, token: impl Into<String>) -> Self {
        self.after = Some(token.into());
        self
    }

    /// Bounds how often [`Begin::transact`] runs its body, instead of [`RUNS_MAX`] times; at least
    /// once.
    pub fn runs_max(mut self, runs_max: u32) -> Self {
        self.runs_max = runs_max;
        self
    }

    /// Runs `body` in the transaction and commits, repeatedly if necessary. Returns the body's
    /// result, or none if the id has committed before.
    ///
    /// The body runs again, under the same id, after an attempt that is known to have had no
    /// effect. Its effects outside of the transaction may then happen twice, so keep them few. A
    /// body whose transaction failed in such a way runs again, no matter which error the body
    /// itself returns, unless it has gone on with the transaction since. Any other error of the
    /// body aborts the transaction and is returned. So is any error that it returns after its own
    /// commit.
    ///
    /// This holds for concurrent calls too: a call that begins after another has failed counts as
    /// going on. A body that should run again after a failed call must drop the others, as
    /// `tokio::try_join!` does. `join!` lets each branch go on.
    ///
    /// The body's error does not tell which failure caused it. Suppose that the last call of the
    /// transaction failed so that the body could run again, but it must not. The body then ends the
    /// transaction by [`Transaction::abort`] and returns `Ok`.
    // Not `AsyncFnMut`: futures over bodies that borrow would not be `Send`, and so could not be spawned.
    pub async fn transact<T, E, F>(
        self,
        mut body: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<Option<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        let id = self.given_or_generated_id()?;
        let ran = self.run(&id, &mut body, |_| None).await?;
        Ok(match ran {
            Ran::Now(value) => Some(value),
            Ran::Before(_) | Ran::Meanwhile => None,
        })
    }

    /// As [`Begin::transact`], and keeps the body's result with the commit, as JSON of at most 64
    /// KiB. If the id has committed before, it returns the kept result; none if none was kept.
    ///
    /// A result that is longer, or cannot be JSON, is returned and not kept. A kept result that is
    /// no `T` is [`UnexpectedAnswer`](crate::ErrorKind::UnexpectedAnswer).
    pub async fn transact_keeping<T, E, F>(
        self,
        mut body: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<Option<T>, E>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        let id = self.given_or_generated_id()?;
        let kept = match self.run(&id, &mut body, kept_result).await? {
            Ran::Now(value) => return Ok(Some(value)),
            Ran::Before(mut error) => error.take_kept(),
            Ran::Meanwhile => self.kept(&id).await?,
        };
        let parsed = kept.map(serde_json::from_value).transpose();
        parsed.map_err(|error| {
            let what = format!("read the kept result of transaction {id:?}");
            let error = Error::new(ErrorKind::UnexpectedAnswer, what, error.to_string());
            error.of_transaction(Some(&id)).into()
        })
    }

    /// The result that was kept with the commit of `id`.
    async fn kept(&self, id: &str) -> Result<Option<Value>> {
        match self.begin(id).await {
            Err(mut error) if error.kind() == ErrorKind::AlreadyCommitted => Ok(error.take_kept()),
            Err(error) => Err(error),
            // The server has forgotten the commit, and the result with it.
            Ok(transaction) => {
                transaction.give_up().await;
                Ok(None)
            }
        }
    }

    async fn run<T, E, F>(
        &self,
        id: &str,
        body: &mut impl FnMut(Transaction) -> F,
        keep: fn(&T) -> Option<String>,
    ) -> std::result::Result<Ran<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        let mut runs = 0;
        loop {
            let transaction = match self.begin(id).await {
                Err(error) if error.kind() == ErrorKind::AlreadyCommitted => {
                    return Ok(Ran::Before(error));
                }
                begun => begun?,
            };
            let (verdict, error) = match body(transaction.clone()).await {
                Ok(value) if transaction.is_given_up() => return Ok(Ran::Now(value)),
                Ok(value) => match transaction.commit_keeping(keep(&value).as_deref()).await {
                    Ok(()) => return Ok(Ran::Now(value)),
                    Err(error) => (transaction.verdict(), error.into()),
                },
                Err(error) => (transaction.verdict(), error),
            };
            transaction.give_up().await;
            runs += 1;
            match verdict {
                Verdict::Skip => return Ok(Ran::Meanwhile),
                Verdict::Again(reason) if runs < self.runs_max => {
                    sleep(full_jitter(runs).max(reason.retry_after().unwrap_or_default())).await;
                }
                Verdict::Again(_) | Verdict::Failed => return Err(error),
            }
        }
    }

    async fn begin(&self, id: &str) -> Result<Transaction> {
        let core = self.core.branch();
        let after = self.after.clone().or_else(|| self.carried.token());
        let call = Call::begin(id, self.isolation, after);
        let unanswered = Unanswered::then(|| {
            // Other clients may know a client id. Begins that are dropped while they wait for a
            // connection would each add an abort to the load that made them wait.
            if self.id.is_none() && call.may_have_arrived() {
                let aside = core.with_limits(Limits::OF_ASIDE);
                core.spawn_aside(abort_unheard(aside, Call::abort_latest(id)));
            }
        });
        let answer = core.exchange(&call).await;
        unanswered.answered();
        // No part of a body has run, and the begin itself has been repeated for long enough.
        let answer = answer.map_err(|error| error.with_body_again(false))?;
        let begun: Begun = serde_json::from_slice(&answer.response.body).unwrap_or_default();
        if begun.status.as_deref() == Some("committed") {
            self.carried.heard(begun.after);
            let why = "its id has committed before";
            let before = call.error(ErrorKind::AlreadyCommitted, why);
            return Err(before.with_kept(begun.result));
        }
        let token = begun
            .attempt
            .ok_or_else(|| call.unexpected("no attempt in the answer"))?;
        let (id, carried) = (id.to_owned(), Arc::clone(&self.carried));
        let name = AttemptName { id, token };
        Ok(Transaction::begun(name, core, carried, answer.is_doubled))
    }

    fn given_or_generated_id(&self) -> Result<String> {
        match &self.id {
            Some(id) if id.is_empty() => {
                let (what, why) = ("begin a transaction", "its id is empty");
                Err(Error::new(ErrorKind::InvalidRequest, what, why))
            }
            Some(id) => Ok(id.clone()),
            None => generated_id(),
        }
    }
}

impl IntoFuture for Begin {
    type Output = Result<Transaction>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// One attempt. An id that has committed before is
    /// [`AlreadyCommitted`](crate::ErrorKind::AlreadyCommitted).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let id = self.given_or_generated_id()?;
            self.begin(&id).await
        })
    }
}

/// A body's result as it is kept with the commit; none if it is not kept.
fn kept_result<T: Serialize>(result: &T) -> Option<String> {
    let json = serde_json::to_string(result).ok()?;
    (json.len() <= RESULT_BYTES_MAX).then_some(json)
}

async fn abort_unheard(core: Core, abort: Call) {
    for pause in UNHEARD_PAUSES {
        match core.exchange(&abort).await {
            Err(error) if error.kind() == ErrorKind::NoSuchTransaction => sleep(pause).await,
            _ => return,
        }
    }
    let _ = core.exchange(&abort).await;
}

fn generated_id() -> Result<String> {
    let mut bytes = [0; GENERATED_ID_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        let what = "generate a transaction id";
        Error::new(ErrorKind::Unavailable, what, error.to_string())
    })?;
    let number = u128::from_be_bytes(bytes);
    Ok(format!("{GENERATED_ID_PREFIX}{number:032x}"))
}

#[cfg(test)]
mod tests;
