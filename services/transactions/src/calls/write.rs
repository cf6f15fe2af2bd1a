//! Put, delete and send: into the buffers, without a call to any port unless something must be
//! spilled. Plain writes: transactions of one write, under an id that no other caller knows.
//!
//! A caller that writes a large value, or exceeds the buffer, waits until the spill is done. That
//! bounds memory.
//!
//! - A plain write comes after every write of its key that was acknowledged before it began, at any
//!   node (T5). This node may not have applied that write, and its clock may be behind the one that
//!   stamped it. Among several nodes, the key's versions are therefore read from the store, which
//!   has all acknowledged writes, and the write is stamped above them. A transaction that writes a
//!   key without reading it has no such promise (rule T-1), which would cost each of them that
//!   read.
//! - A plain write that is refused leaves nothing open, because no other caller could end it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Effect, Error, Result,
    attempts::{
        open_attempts::AttemptState,
        transaction::{Terms, Transaction, refusal},
    },
    broken::Broken,
    calls::{Calls, commit::Committing, spill::Leaving},
    context::Context,
    model::{Call, Committed, Key, Outcome, RESULT_BYTES_MAX, Timestamp},
    node::Node,
    storage::{layout, records::Place},
};

/// How often other attempts are made to spill before a write is refused.
const ROOM_TRIES: usize = 4;
/// The overhead of a plain write under a condition while it waits for its transaction.
const WAITING_BYTES: usize = 4 << 10;
/// The most bytes of an item beside its chunk.
const CHUNK_ITEM_BYTES: usize = 4 << 10;

/// Memory of the write buffers that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    context: Arc<Context>,
    bytes: usize,
}

impl Reserved {
    /// Leaves the memory taken: the attempt that it is for gives it back.
    fn hand_over(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.context.counters.unbuffer(self.bytes);
    }
}

impl Calls {
    /// Buffers a write of `call`'s transaction.
    pub(crate) async fn write(
        self: &Arc<Self>,
        call: &Call,
        key: Key,
        value: Option<Bytes>,
    ) -> Result<()> {
        self.check_write(&key, value.as_ref())?;
        let transaction = self.here(call).await?;
        self.buffer(&transaction, key, value).await
    }

    /// Errors: `TooLarge` if the store cannot hold it.
    pub(crate) fn check_write(&self, key: &Key, value: Option<&Bytes>) -> Result<()> {
        let limits = self.context.key_value.limits();
        if layout::version_sort_bytes(key) > limits.key_bytes_max {
            return Err(Error::TooLarge("the key is too long for this store"));
        }
        if value.is_some_and(|value| value.len() > self.context.config.value_bytes_max) {
            return Err(Error::TooLarge(
                "the value is beyond the limit of one value",
            ));
        }
        Ok(())
    }

    /// Where a value is stored.
    fn place(&self, value: Option<&Bytes>) -> Place {
        if let Some(value) = value.filter(|value| value.len() > self.context.config.pack_bytes_min)
            && self.packing.objects.is_some()
        {
            return Place::Packed {
                bytes: value.len() as u32,
                crc: crc32fast::hash(value),
            };
        }
        let item_bytes_max = self.context.key_value.limits().item_bytes_max;
        let inline_bytes_max = self.context.config.inline_bytes_max.min(item_bytes_max / 4);
        let chunk_bytes_max = self
            .context
            .config
            .chunk_bytes_max
            .min(item_bytes_max.saturating_sub(CHUNK_ITEM_BYTES));
        Place::of(value, inline_bytes_max, chunk_bytes_max.max(1))
    }

    /// Buffers a write. When it returns, the values that had to be spilled for it are in the store.
    pub(crate) async fn buffer(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        key: Key,
        value: Option<Bytes>,
    ) -> Result<()> {
        transaction.check_keyspace(&key)?;
        let place = self.place(value.as_ref());
        for _ in 0..ROOM_TRIES {
            match self.take_in(transaction, &key, place, value.as_ref()) {
                Ok(None) => return Ok(()),
                Ok(Some(leaving)) => return self.spill(transaction, leaving).await,
                Err(Error::TooMuchBuffered) if self.spill_largest().await => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::TooMuchBuffered)
    }

    /// Buffers a write. Returns the values to spill.
    fn take_in(
        &self,
        transaction: &Transaction,
        key: &Key,
        place: Place,
        value: Option<&Bytes>,
    ) -> Result<Option<Leaving>> {
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.check_fence()?;
        let kept_bytes = state.result.as_ref().map_or(0, Bytes::len) as u64;
        let buffer = &mut state.buffer;
        if buffer.get(key).is_none() && buffer.len() >= self.context.config.keys_written_max {
            return Err(Error::TooLarge("the transaction writes too many keys"));
        }
        let (before, after) = (buffer.bytes(), buffer.bytes_with(key, value));
        let written_bytes = buffer.written_bytes_with(key, value) + kept_bytes;
        if written_bytes > self.context.config.attempt_bytes_max {
            return Err(Error::TooLarge("the transaction writes too many bytes"));
        }
        if after > before
            && !self
                .context
                .counters
                .buffer(after - before, self.context.config.node_buffer_bytes_max)
        {
            return Err(Error::TooMuchBuffered);
        }
        buffer.write(key.clone(), place, value.cloned());
        self.context.counters.unbuffer(before.saturating_sub(after));
        Ok(self.leaving(transaction, &mut state))
    }

    /// The local attempt of a read or write. Errors: it has ended, or never existed.
    pub(crate) async fn here(self: &Arc<Self>, call: &Call) -> Result<Arc<Transaction>> {
        let found = if self.context.breaks(Broken::CommitsAnyAttempt) {
            self.attempts.lock().find_any(call)
        } else {
            self.find(call)
        };
        match found {
            AttemptState::Active(transaction) => Ok(transaction),
            AttemptState::Ended(answer) => Err(refusal(&answer)),
            AttemptState::BegunAnew => Err(Error::TransactionFinished(Outcome::BegunAnew)),
            AttemptState::Unknown => Err(refusal(&Box::pin(self.answer_of(call)).await)),
        }
    }

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

    /// Keeps `result` with the commit of `call`'s transaction, for callers that begin its id again.
    /// No caller can begin a generated id again. The result has the limits of a write.
    pub(crate) async fn keep_result(self: &Arc<Self>, call: &Call, result: Bytes) -> Result<()> {
        if result.len() > RESULT_BYTES_MAX {
            return Err(Error::TooLarge("a kept result has at most 65,536 bytes"));
        }
        let transaction = self.here(call).await?;
        if !transaction.is_named() {
            return Ok(());
        }
        self.context.check_room()?;
        let reserved = self.reserve(result.len()).await?;
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.check_fence()?;
        let written_bytes = state.buffer.written_bytes() + result.len() as u64;
        if written_bytes > self.context.config.attempt_bytes_max {
            return Err(Error::TooLarge("the transaction writes too many bytes"));
        }
        let before = state.result.replace(result);
        reserved.hand_over();
        let before = before.map_or(0, |before| before.len());
        self.context.counters.unbuffer(before);
        Ok(())
    }

    /// Takes memory for `value` of a write that has no attempt to buffer it yet.
    pub(crate) async fn reserve_waiting(
        self: &Arc<Self>,
        value: Option<&Bytes>,
    ) -> Result<Reserved> {
        let bytes = WAITING_BYTES + value.map_or(0, Bytes::len);
        self.reserve(bytes).await
    }

    /// Takes memory of the write buffers. Attempts spill their values if too little is left.
    async fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved> {
        let most = self.context.config.node_buffer_bytes_max;
        for _ in 0..ROOM_TRIES {
            if self.context.counters.buffer(bytes, most) {
                let context = Arc::clone(&self.context);
                return Ok(Reserved { context, bytes });
            }
            if !self.spill_largest().await {
                break;
            }
        }
        Err(Error::TooMuchBuffered)
    }

    pub(crate) async fn put_now(
        self: &Arc<Self>,
        key: Key,
        value: Option<Bytes>,
    ) -> Result<Committed> {
        self.check_write(&key, value.as_ref())?;
        let node = self.serving.node()?;
        self.cluster.check_clock()?;
        let after = self.newest_acknowledged(&node, &key).await?;
        let terms = Terms {
            after,
            ..Terms::default()
        };
        let (id, attempt) = self.open_generated(&node, terms)?;
        let call = Call {
            id,
            attempt: Some(attempt),
        };
        let written = async {
            self.buffer(&self.here(&call).await?, key, value).await?;
            self.begin_to_commit(&call).await
        };
        match written.await {
            Ok(Committing::Here(transaction)) => self.wait_for_end(&transaction).await,
            Ok(Committing::Ended(committed)) => Ok(committed),
            Err(error) => {
                if let Err(Error::Unavailable(_)) = self.abort(&call).await {
                    tracing::debug!("a refused write is open until it expires");
                }
                Err(error)
            }
        }
    }

    /// The highest timestamp of any known write to `key`.
    async fn newest_acknowledged(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Timestamp> {
        if self.context.is_alone() || self.context.breaks(Broken::WritesBlindly) {
            return Ok(Timestamp::default());
        }
        let versions = self.loader.load_versions(node, key).await?;
        Ok(versions
            .records
            .iter()
            .map(|record| record.version.timed())
            .max()
            .unwrap_or_default())
    }
}
