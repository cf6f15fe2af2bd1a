//! One store that holds runs and functions' state: near, or in one lane of a far store's shard.
//!
//! Near, functions' state is the state of transactions, and rows are items of the same key-value
//! store. A step commits like this:
//!
//! ```text
//!  a step that wrote nothing: its row, unless the row exists
//!  a step that wrote: 1 begin its transaction, named after it: earlier begins can no longer commit (rule T-5)
//!                     2 its row, with the result and the number of this begin, unless a later begin has written it
//!                     3 writes and sends, commit
//! ```
//!
//! A row with the number of a begin takes effect if that transaction has committed. So result,
//! writes and sends take effect together. After a death between 1 and 3 nothing has taken effect,
//! and the next attempt begins the transaction anew. After 3, the next begin reports the commit, and
//! we read the result from the row.
//!
//! In a shard all of these are items of one lane, so one transaction of items suffices. Messages that
//! a step sends there stay in the [`outbox`](super::outbox) until they are sent.

mod catalog;
mod driver;
mod keys;
mod runs;
mod steps;

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    DurabilityPoint, Item,
    key_value::{Scan, SharedKeyValue},
};
use primitives::Mutant;
use transactions::Engine;

use crate::{Broken, Options, Result, failure::FAILURE_BYTES_MAX, storage::outbox::Outbox};

pub(crate) use keys::{cut, listed};

/// Bytes of a row that are reserved for a failure and for the row's fixed attributes.
const ROW_RESERVE_BYTES: usize = FAILURE_BYTES_MAX + (8 << 10);

/// The attribute of a value in a shard.
pub(crate) const VALUE: &str = "v";

/// Where functions' state is.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// With transactions and `/v1/state`.
    Transactions(Engine),
    /// Items of the same shard, which has an outbox.
    Shard(Arc<Outbox>),
}

/// A store of runs. A clone shares the lane.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) rows: SharedKeyValue,
    pub(crate) state: State,
    /// Whether other processes execute runs that are stored here.
    pub(crate) is_shared: bool,
    pub(crate) mutant: Mutant<Broken>,
}

impl Store {
    pub(crate) fn of_transactions(rows: SharedKeyValue, engine: Engine, options: &Options) -> Self {
        let (state, is_shared) = (State::Transactions(engine), options.among_others);
        Self {
            rows,
            state,
            is_shared,
            mutant: options.mutant,
        }
    }

    pub(crate) fn of_shard(rows: SharedKeyValue, outbox: Arc<Outbox>, options: &Options) -> Self {
        Self {
            rows,
            state: State::Shard(outbox),
            is_shared: false,
            mutant: options.mutant,
        }
    }

    /// The same store. In a shard, with a lane that has read nothing, and depends on no write that
    /// the far store refuses permanently.
    pub(crate) async fn with_clean_lane(&self) -> Result<Self> {
        let rows = match &self.state {
            State::Transactions(_) => Arc::clone(&self.rows),
            State::Shard(outbox) => Arc::new(outbox.clean_lane().await?),
        };
        Ok(Self {
            rows,
            ..self.clone()
        })
    }

    /// Whether this is a shard of a far store.
    pub(crate) fn is_far(&self) -> bool {
        matches!(self.state, State::Shard(_))
    }

    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if !self.mutant.breaks(Broken::AnswersBeforeDurable) && !self.rows.is_durable(point) {
            self.rows.externalize(point).await?;
        }
        Ok(())
    }

    /// Errors: this handle serves no longer, as after a restart of the near store. The run continues
    /// when the shard is opened again.
    pub(crate) async fn still_serves(&self) -> Result<()> {
        Ok(self.rows.externalize(DurabilityPoint::DURABLE).await?)
    }

    /// The longest input or result, in bytes, that fits in a row beside its failure and names.
    pub(crate) fn bytes_max(&self) -> usize {
        let item_bytes_max = self.rows.limits().item_bytes_max;
        item_bytes_max.saturating_sub(ROW_RESERVE_BYTES)
    }

    pub(crate) async fn rows_of(
        &self,
        mut scan: Scan,
    ) -> Result<(Vec<(Bytes, Arc<Item>)>, DurabilityPoint)> {
        let (mut rows, mut point) = (Vec::new(), DurabilityPoint::DURABLE);
        loop {
            let read = self.rows.scan(&scan).await?;
            rows.extend(read.value.items);
            point = point.max(read.point);
            match read.value.next {
                Some(next) => scan.from = next,
                None => return Ok((rows, point)),
            }
        }
    }
}
