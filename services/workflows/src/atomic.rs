//! Atomic runs: one transaction around all steps (W5).
//!
//! Steps come to count in an overlay, and what that holds is written and committed when the last one has ended. The transaction is named
//! after the run: whoever begins it anew, here or after a death, is told if it has committed, and else the earlier begin commits no
//! more (rule T-5). What the run comes to stands in its row before it commits.
//!
//! A transaction may be lost: it took too long, what it reads is gone, or another has written what it has read (W10). Then all steps are
//! made anew, also where one was told of that loss and has failed for it.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::Isolation as Asked;
use transactions::model::{Call, Isolation};

use crate::{
    Broken, Error, Result,
    run::{Failure, Run},
    service::Inner,
};

/// How many attempts of an atomic run there are that lose their transaction.
const LOST_MAX: u32 = 10;
/// How many there are of which another has written what they have read: of those who meet one commits each time.
const CONFLICTS_MAX: u32 = 100;

/// Why an attempt of an atomic run came to nothing: all of it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another has written what it has read.
    Conflict,
    /// Its transaction has ended otherwise.
    Ended(String),
}

/// How an attempt of an atomic run has ended without a commit.
enum Undone {
    Failure(Failure),
    Lost(Lost),
}

impl Run {
    /// Goes through the run, of an atomic one until its transaction has committed.
    pub(crate) async fn attempts(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Failure> {
        if !self.workflow.atomic {
            return self.go().await;
        }
        let (mut lost, mut conflicts, mut delays) = (0, 0, None);
        loop {
            let why = match self.as_one_transaction(service).await {
                Ok(output) => return Ok(output),
                Err(Undone::Failure(failure)) => return Err(failure),
                Err(Undone::Lost(Lost::Conflict)) => {
                    conflicts += 1;
                    "others have written what it has read".to_owned()
                }
                Err(Undone::Lost(Lost::Ended(why))) => {
                    lost += 1;
                    why
                }
            };
            tracing::debug!(run = %self.id, why, "an atomic run is made anew");
            if lost == LOST_MAX || conflicts == CONFLICTS_MAX {
                let times = lost + conflicts;
                let said = format!(
                    "its transaction was lost {times} times, the last time for this: {why}"
                );
                return Err(Failure::new("", "Workflow.TransactionFailed", &said));
            }
            service.pause(&mut delays).await;
        }
    }

    async fn as_one_transaction(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Undone> {
        let isolation = match self.workflow.isolation {
            Asked::Serializable if !service.options.breaks(Broken::IsolatesNoRun) => {
                Isolation::Serializable
            }
            _ => Isolation::ReadAtomic,
        };
        // None: only its row is missing.
        let Some(call) = self.begin_atomic(service, isolation).await? else {
            return self.told_before().await;
        };
        let overlay = self.begin_anew(&call);
        let gone = self.go().await;
        if let Some(lost) = self.lost.lock().take() {
            return Err(Undone::Lost(lost));
        }
        let output = gone?;
        let changes = overlay.close();
        match self
            .store
            .commit_atomic(self.place(""), &call, &output, changes)
            .await
        {
            Ok(point) => {
                self.saw(point);
                Ok(output)
            }
            Err(Error::RunEnded) => Err(Failure::Stopped.into()),
            Err(error) => Err(error.into()),
        }
    }

    async fn begin_atomic(&self, service: &Inner, isolation: Isolation) -> Result<Option<Call>> {
        let begin = || self.store.begin_atomic(self.place(""), isolation);
        self.until_it_passes(service, begin).await
    }

    /// An atomic run is to end with `failure`: its commit may be under way, and then it has succeeded, or commits no more (W5).
    pub(crate) async fn unless_it_committed(
        &self,
        service: &Inner,
        failure: Bytes,
    ) -> Result<Bytes, Failure> {
        match self.begin_atomic(service, Isolation::default()).await {
            Ok(None) => self.told_before().await.map_err(|_| Failure::Stopped),
            Ok(Some(_)) => Err(Failure::Failed(failure)),
            // Nothing is known of its commit, as where this process is another node meanwhile: whoever takes it up asks again.
            Err(error) => {
                tracing::debug!(run = %self.id, %error, "whether an atomic run has committed is asked again");
                Err(Failure::Stopped)
            }
        }
    }

    /// What an atomic run said it would come to before it committed.
    async fn told_before(&self) -> Result<Bytes, Undone> {
        let row = self.store.run(&self.name, &self.id).await;
        let (row, point) = row.ok().flatten().ok_or(Failure::Stopped)?;
        self.saw(point);
        Ok(row.output.unwrap_or_default())
    }

    /// Reads in the transaction of an atomic run.
    pub(crate) async fn get_in(&self, call: &Call, key: &Bytes) -> Result<Option<Bytes>> {
        let read = self.store.get_in(call, key).await;
        let (value, point) = read.inspect_err(|error| {
            // What is answered to an attempt whose transaction was begun anew meanwhile is nothing to that.
            if !error.passes()
                && !error.is_refusal()
                && self.call_of_atomic().as_ref() == Some(call)
            {
                *self.lost.lock() = Some(Lost::of(error));
            }
        })?;
        self.saw(point);
        Ok(value)
    }
}

impl Lost {
    fn of(error: &Error) -> Self {
        match error {
            Error::State(transactions::Error::Conflict) => Self::Conflict,
            error => Self::Ended(error.to_string()),
        }
    }
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Of what an atomic run's transaction was refused.
impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        if matches!(error, Error::AttemptEnded) {
            return Failure::Stopped.into();
        }
        if error.is_refusal() {
            return Failure::new("", "Workflow.NotWritten", &error.to_string()).into();
        }
        Self::Lost(Lost::of(&error))
    }
}
