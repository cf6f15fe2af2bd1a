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
    owner::{RENEWALS, far_epoch_is},
};

impl Engine {
    /// Makes sure that the range was still ours when the barrier began, or is (E10, E11).
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

    /// Has a lease that is over renewed, while nobody waits for that: a barrier that a batch of its own has proven needs none, and who
    /// has nothing but such barriers would seem dead to a start elsewhere.
    pub(crate) fn renew_apart_if_over(self: &Arc<Self>) {
        let now = self.clock.monotonic();
        let is_over = self.state().lease.until.is_none_or(|until| until <= now);
        if is_over && self.renewing.try_lock().is_ok() {
            let engine = Arc::clone(self);
            // Who uses the range hears what is wrong from what it asks for itself.
            tokio::spawn(async move { engine.renew_early().await });
        }
    }

    /// One renewal; a failure that waiting may help is waited for.
    async fn renew(&self) -> Result<()> {
        let sent = self.clock.monotonic();
        let renewal = Change::Modify(vec![Action::Add(RENEWALS.into(), 1)]);
        let update =
            Update::of(Key::new(&self.stores.shard, OWNER), renewal).when(far_epoch_is(self.epoch));
        let renewed = async {
            let updated = self.stores.far.update(update).await?;
            // A renewal that the far store loses would let a successor begin early.
            self.stores.far.externalize(updated.receipt.point).await?;
            Ok::<_, Error>(updated.outcome)
        };
        match renewed.await {
            Ok(Outcome::Done(_)) => {
                let mut state = self.state();
                state.lease.until = Some(sent + self.options.lease);
                state.lease.proven = state.lease.proven.max(Some(sent));
                drop(state);
                self.far_responded();
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
            // It says nothing of what was written: that is no refusal.
            Err(error) => {
                self.far_failed(&error);
                Err(Error::unavailable("renew the lease of a shard").caused_by(error))
            }
        }
    }
}
