//! Beginning a transaction, and running a body until its transaction has committed.
//!
//! The body runs again only where its attempt is known to have ended without effect, always under the same id. So
//! even a commit whose answer never came cannot be applied twice: the next begin under that id says so.
//!
//! A begin that is dropped once it was sent and before it is answered has what it may have opened ended aside, if its id is
//! generated. Under one that was given another attempt of the same work may be at work, so that one is left to its
//! time-out.

use std::{fmt::Write as _, pin::Pin, sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::time::sleep;

use crate::{
    after::After,
    attempt::Verdict,
    call::{AttemptName, Call},
    client::Core,
    error::{Error, ErrorKind, Result},
    exchange::full_jitter,
    limits::Limits,
    transaction::Transaction,
};

/// How often a body runs before the last error is returned; it takes up to about 10 s.
pub const RUNS_MAX: u32 = 16;
/// What a generated id begins with: by it a server keeps its outcome for minutes and not for days.
pub(crate) const GENERATED_ID_PREFIX: &str = "random-";
/// Bytes of a generated id behind that, before they are written as hexadecimal digits.
const GENERATED_ID_BYTES: usize = 16;
/// Before a begin that was dropped is aborted once more: it may still be on its way.
const UNHEARD_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// What concurrent transactions may do to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// Nobody sees half of a transaction, but two that change the same key at a time may overwrite each other.
    ReadAtomic,
    /// As if one after the other, in an order that fits real time.
    Serializable,
}

impl Isolation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadAtomic => "read-atomic",
            Self::Serializable => "serializable",
        }
    }
}

/// A transaction that is to begin. Await it for one attempt, or give it a body with [`Begin::transact`].
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

/// What a transaction is known by.
struct Id {
    text: String,
    /// Nobody else begins under it.
    is_generated: bool,
}

/// The answer to a begin.
#[derive(Deserialize)]
struct Begun {
    status: Option<String>,
    attempt: Option<String>,
    after: Option<String>,
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

    /// Names it after the work it does, in 1 to 128 bytes: under its id it takes effect once, whoever retries it.
    /// Without, an id is generated.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Asks for an isolation; without, the server's default, which is read-atomic.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Makes it see the commit that another client's [`Transaction::after`] tells of, instead of this one's last.
    pub fn after(mut self, token: impl Into<String>) -> Self {
        self.after = Some(token.into());
        self
    }

    /// How often [`Begin::transact`] runs its body at most, instead of [`RUNS_MAX`] times; at least once.
    pub fn runs_max(mut self, runs_max: u32) -> Self {
        self.runs_max = runs_max;
        self
    }

    /// Runs `body` in the transaction and commits, again if it has to be; returns what it returned, or none if the
    /// id has committed before.
    ///
    /// The body runs again, under the same id, after an attempt that is known to have had no effect: what it does
    /// outside of the transaction may then happen twice, so let it do little. A body whose transaction failed in
    /// such a way is run again whatever error of its own it made of that, unless it has gone on with the transaction
    /// since; any other error of its own aborts the transaction and is returned, and so is any that it returns after
    /// a commit of its own.
    ///
    /// Of calls side by side, one that begins after another has failed is going on, too: a body whose failed call is to have it run again
    /// drops the others, as `tokio::try_join!` does, where `join!` lets each branch go on.
    ///
    /// What it returns tells nothing of which failure it was made of: a body that is not to run again, though the last call of
    /// its transaction failed so that it could, ends the transaction by [`Transaction::abort`] and returns `Ok`.
    // Not `AsyncFnMut`: futures over bodies that borrow would not be `Send`, and so could not be spawned.
    pub async fn transact<T, E, F>(
        self,
        mut body: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<Option<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        let id = Id::given_or_generated(self.id.clone())?;
        let mut runs = 0;
        loop {
            let transaction = match self.begin(&id).await {
                Err(error) if error.kind() == ErrorKind::AlreadyCommitted => return Ok(None),
                begun => begun?,
            };
            let (verdict, error) = match body(transaction.clone()).await {
                Ok(value) if transaction.is_given_up() => return Ok(Some(value)),
                Ok(value) => match transaction.commit().await {
                    Ok(()) => return Ok(Some(value)),
                    Err(error) => (transaction.verdict(), error.into()),
                },
                Err(error) => (transaction.verdict(), error),
            };
            transaction.give_up().await;
            runs += 1;
            match verdict {
                Verdict::Skip => return Ok(None),
                Verdict::Again(reason) if runs < self.runs_max => {
                    sleep(full_jitter(runs).max(reason.retry_after().unwrap_or_default())).await;
                }
                Verdict::Again(_) | Verdict::Failed => return Err(error),
            }
        }
    }

    /// Begins one attempt under `id`.
    async fn begin(&self, id: &Id) -> Result<Transaction> {
        let core = self.core.branch();
        let after = self.after.clone().or_else(|| self.carried.token());
        let call = Call::begin(&id.text, self.isolation, after);
        let unanswered = UnansweredBegin {
            core: &core,
            call: &call,
            id: id.is_generated.then_some(&*id.text),
        };
        let answer = core.exchange(&call).await;
        unanswered.answered();
        // Nothing of a body has run, and what a begin cannot do now it has tried for long enough.
        let answer = answer.map_err(|error| error.with_body_again(false))?;
        let begun: Option<Begun> = serde_json::from_slice(&answer.response.body).ok();
        match begun {
            Some(Begun {
                status: Some(status),
                after,
                ..
            }) if status == "committed" => {
                self.carried.heard(after);
                let error = Error::new(
                    ErrorKind::AlreadyCommitted,
                    call.what,
                    "its id has committed before",
                );
                Err(error.of_transaction(Some(&id.text)))
            }
            Some(Begun {
                attempt: Some(token),
                ..
            }) => {
                let name = AttemptName {
                    id: id.text.clone(),
                    token,
                };
                Ok(Transaction::begun(
                    name,
                    core,
                    Arc::clone(&self.carried),
                    answer.is_doubled,
                ))
            }
            _ => Err(call.unexpected("no attempt in the answer")),
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
            let id = Id::given_or_generated(self.id.clone())?;
            self.begin(&id).await
        })
    }
}

impl Id {
    fn given_or_generated(given: Option<String>) -> Result<Self> {
        match given {
            Some(id) if id.is_empty() => Err(Error::new(
                ErrorKind::InvalidRequest,
                "begin a transaction",
                "its id is empty",
            )),
            Some(text) => Ok(Self {
                text,
                is_generated: false,
            }),
            None => Ok(Self {
                text: generated_id()?,
                is_generated: true,
            }),
        }
    }
}

/// A begin that is under way.
struct UnansweredBegin<'a> {
    core: &'a Core,
    call: &'a Call,
    /// None where others may know it.
    id: Option<&'a str>,
}

impl UnansweredBegin<'_> {
    fn answered(mut self) {
        self.id = None;
    }
}

impl Drop for UnansweredBegin<'_> {
    fn drop(&mut self) {
        // Begins that are given up while they wait for a connection would each add an abort to the load that made them wait.
        if let Some(id) = self.id.take()
            && self.call.may_have_arrived()
        {
            self.core.spawn_aside(abort_unheard(
                self.core.with_limits(Limits::of_aside()),
                Call::abort_latest(id),
            ));
        }
    }
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
        Error::new(
            ErrorKind::Unavailable,
            "generate a transaction id",
            error.to_string(),
        )
    })?;
    Ok(bytes
        .iter()
        .fold(GENERATED_ID_PREFIX.to_owned(), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        }))
}

#[cfg(test)]
mod tests;
