//! Send: a message or an invocation, buffered until the commit.

use std::sync::Arc;

use crate::{Effect, Error, Result, attempts::transaction::Transaction, calls::Calls, model::Call};

impl Calls {
    /// Buffers `effect`, which happens once `call`'s transaction has committed.
    pub(crate) async fn send(
        self: &Arc<Self>,
        call: &Call,
        effect: Effect,
        place: Option<u32>,
    ) -> Result<()> {
        self.effects.check_effect(&effect)?;
        let transaction = self.here(call).await?;
        self.effects.check_destination(&effect).await?;
        self.buffer_effect(&transaction, &effect, place)
    }

    fn buffer_effect(
        &self,
        transaction: &Transaction,
        effect: &Effect,
        place: Option<u32>,
    ) -> Result<()> {
        if self.effects.outbox.is_full(self.context.config.unsent_max) {
            return Err(Error::TooMuchBuffered);
        }
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.check_fence()?;
        let bytes = effect.bytes_len();
        if !self
            .context
            .counters
            .buffer(bytes, self.context.config.node_buffer_bytes_max)
        {
            return Err(Error::TooMuchBuffered);
        }
        let added = state
            .effects
            .add(effect, place, self.context.config.effects_max);
        if !matches!(added, Ok(true)) {
            self.context.counters.unbuffer(bytes);
        }
        added.map(drop)
    }
}
