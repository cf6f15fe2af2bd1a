//! The lease of the owner: proofs and renewals (E10, E11).

use std::sync::Arc;

use ports::{
    Error, ErrorKind, Key, Monotonic, Result, Update,
    key_value::{Action, Change, Outcome},
};

use super::Engine;
use crate::{
    health::Ended,
    layout::OWNER,
    owner::{RENEWALS, epoch_is},
};

impl Engine {
    /// Proves that we owned the shard at some time since the barrier began (E10, E11).
    pub(crate) async fn prove_ownership(&self, began: Monotonic) -> Result<()> {
        if self.is_proven(began) {
            return Ok(());
        }
        let _one_at_a_time = self.renewing.lock().await;
        while !self.is_proven(began) {
            self.check_open()?;
            self.renew().await?;
        }
        self.check_open()
    }

    fn is_proven(&self, began: Monotonic) -> bool {
        let now = self.clock.monotonic();
        let state = self.state();
        let holds = state.lease.until.is_some_and(|until| now < until);
        state.ended.is_none() && (holds || state.lease.proven.is_some_and(|proven| proven >= began))
    }

    /// Renews the lease, unless more than half of it is left.
    pub(crate) async fn renew_early(&self) -> Result<()> {
        let _one_at_a_time = self.renewing.lock().await;
        self.check_open()?;
        let now = self.clock.monotonic();
        let until = self.state().lease.until;
        if until.is_some_and(|until| until.since(now) > self.options.lease / 2) {
            return Ok(());
        }
        self.renew().await
    }

    /// Renews an expired lease in the background. A barrier whose own batch has proven ownership
    /// needs no renewal. Without this, an owner with only such barriers would look dead to a start
    /// elsewhere.
    pub(crate) fn renew_apart_if_over(self: &Arc<Self>) {
        let now = self.clock.monotonic();
        let is_over = self.state().lease.until.is_none_or(|until| until <= now);
        if is_over && self.renewing.try_lock().is_ok() {
            let engine = Arc::clone(self);
            // The users of the shard see this error in their own calls.
            tokio::spawn(async move { engine.renew_early().await });
        }
    }

    /// Renews once; waits after a transient error.
    async fn renew(&self) -> Result<()> {
        let sent = self.clock.monotonic();
        let renewal = Change::Modify(vec![Action::Add(RENEWALS.into(), 1)]);
        let update =
            Update::of(Key::new(&self.stores.shard, OWNER), renewal).when(epoch_is(self.epoch));
        let renewed = async {
            let updated = self.stores.far.update(update).await?;
            // If the far store lost the renewal, a successor would begin early.
            self.stores.far.externalize(updated.receipt.point).await?;
            Ok::<_, Error>(updated.outcome)
        };
        match renewed.await {
            Ok(Outcome::Done(_)) => {
                let mut state = self.state();
                state.lease.until = Some(sent + self.options.lease);
                state.lease.proven = state.lease.proven.max(Some(sent));
                state.failing = None;
                Ok(())
            }
            Ok(Outcome::Conflict(_)) => {
                self.end(Ended::Deposed);
                self.check_open()
            }
            Err(error) if error.is_retryable() || error.kind() == ErrorKind::Lost => {
                self.far_failed(&error);
                self.clock.sleep(self.pause()).await;
                Ok(())
            }
            // This error concerns the lease alone, so callers must not take it for a refusal of
            // their writes.
            Err(error) => {
                self.far_failed(&error);
                Err(Error::unavailable("renew the lease of a shard").caused_by(error))
            }
        }
    }
}
