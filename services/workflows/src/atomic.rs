//! Atomic runs: one transaction around all steps (W5).
//!
//! Steps come to count in an overlay, and what that holds is written and committed when the last one has ended. The transaction is named
//! after the run: whoever begins it anew, here or after a death, is told if it has committed, and else the earlier begin commits no
//! more (rule T-5). What the run comes to stands in its row before it commits.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Error,
    run::{Failure, Run},
    service::Inner,
};

/// How many attempts of an atomic run there are that lose their transaction.
const ATOMIC_ATTEMPTS_MAX: u32 = 10;

impl Run {
    /// Goes through the run, of an atomic one until its transaction has committed.
    pub(crate) async fn attempts(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Failure> {
        if !self.workflow.atomic {
            return self.go().await;
        }
        let mut last = String::new();
        for _ in 0..ATOMIC_ATTEMPTS_MAX {
            last = match self.as_one_transaction(service).await {
                Ok(output) => return Ok(output),
                Err(Undone::Failure(failure)) => return Err(failure),
                Err(Undone::Anew(why)) => why,
            };
            tracing::debug!(run = %self.id, why = %last, "an atomic run begins anew");
        }
        let said =
            format!("its transaction was lost {ATOMIC_ATTEMPTS_MAX} times, the last time for this: {last}");
        Err(Failure::new("", "Workflow.TransactionFailed", &said))
    }

    async fn as_one_transaction(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Undone> {
        let begun = self
            .until_it_passes(service, || self.store.begin_atomic(&self.name, &self.id, self.row.began_ms))
            .await;
        let call = match begun {
            Ok(Some(call)) => call,
            // Only its row is missing.
            Ok(None) => return self.told_before().await,
            Err(error) => return Err(error.into()),
        };
        let overlay = self.begin_anew(&call);
        let output = self.go().await?;
        let changes = overlay.close();
        let committed = self.store.commit_atomic(&self.name, &self.id, &call, &output, changes).await;
        match committed {
            Ok(point) => {
                self.saw(point);
                Ok(output)
            }
            Err(Error::RunEnded) => Err(Failure::Stopped.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// An atomic run is to end with `failure`: its commit may be under way, and then it has succeeded, or commits no more (W5).
    pub(crate) async fn unless_it_committed(
        &self,
        service: &Inner,
        failure: Bytes,
    ) -> Result<Bytes, Failure> {
        let begun = self
            .until_it_passes(service, || self.store.begin_atomic(&self.name, &self.id, self.row.began_ms))
            .await;
        match begun {
            Ok(None) => self.told_before().await.map_err(|_| Failure::Stopped),
            _ => Err(Failure::Failed(failure)),
        }
    }

    /// What an atomic run said it would come to before it committed.
    async fn told_before(&self) -> Result<Bytes, Undone> {
        let row = self.store.run(&self.name, &self.id).await;
        let (row, point) = row.ok().flatten().ok_or(Failure::Stopped)?;
        self.saw(point);
        Ok(row.output.unwrap_or_default())
    }
}

/// Why an attempt of an atomic run came to nothing.
enum Undone {
    Failure(Failure),
    /// Its transaction is lost: all of it again.
    Anew(String),
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Of what an atomic run's transaction was refused.
impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        let said = error.to_string();
        if error.is_refusal() {
            Failure::new("", "Workflow.NotWritten", &said).into()
        } else {
            Self::Anew(said)
        }
    }
}
