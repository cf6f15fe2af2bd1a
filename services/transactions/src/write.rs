//! Put and delete: into the buffer, without a call to any port.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Error, Result,
    broken::Broken,
    engine::Core,
    layout,
    model::{Call, Key, Outcome},
    open::Found,
    transaction::{Transaction, refusal},
};

impl Core {
    /// Buffers a write of `call`'s transaction.
    pub(crate) async fn write(self: &Arc<Self>, call: &Call, key: Key, value: Option<Bytes>) -> Result<()> {
        self.check_write(&key, value.as_ref())?;
        let transaction = self.here(call).await?;
        self.buffer(&transaction, key, value)
    }

    /// Errors: `TooLarge` if the store has no place for it.
    pub(crate) fn check_write(&self, key: &Key, value: Option<&Bytes>) -> Result<()> {
        let limits = self.key_value.limits();
        if layout::version_sort_bytes(key) > limits.key_bytes_max {
            return Err(Error::TooLarge("the key is too long for this store"));
        }
        let value_bytes_max = self.config.inline_bytes_max.min(limits.item_bytes_max / 4);
        if value.is_some_and(|value| value.len() > value_bytes_max) {
            return Err(Error::TooLarge("the value is beyond the limit of one value"));
        }
        Ok(())
    }

    /// Buffers a write.
    pub(crate) fn buffer(&self, transaction: &Transaction, key: Key, value: Option<Bytes>) -> Result<()> {
        transaction.check_keyspace(&key)?;
        let mut state = transaction.state();
        state.touch(self.clock.monotonic())?;
        transaction.node.store.standing()?;
        let buffer = &mut state.buffer;
        if buffer.get(&key).is_none() && buffer.len() >= self.config.keys_written_max {
            return Err(Error::TooLarge("the transaction writes too many keys"));
        }
        let (before, after) = (buffer.bytes(), buffer.bytes_with(&key, value.as_ref()));
        if after > self.config.attempt_buffer_bytes_max {
            return Err(Error::TooLarge("the transaction writes too many bytes"));
        }
        if after > before && !self.counters.buffer(after - before, self.config.node_buffer_bytes_max) {
            return Err(Error::TooMuchBuffered);
        }
        buffer.write(key, value);
        self.counters.unbuffer(before.saturating_sub(after));
        Ok(())
    }

    /// The attempt that a read or write belongs to. Errors: it has ended, or never was.
    pub(crate) async fn here(self: &Arc<Self>, call: &Call) -> Result<Arc<Transaction>> {
        let found = if self.config.is_broken(Broken::CommitsAnyAttempt) {
            self.view().open.find_any(call)
        } else {
            self.view().open.find(call)
        };
        match found {
            Found::Here(transaction) => Ok(transaction),
            Found::Ended(answer) => Err(refusal(&answer)),
            Found::BegunAnew => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            Found::Nothing => Err(refusal(&self.answer_of(call).await)),
        }
    }
}
