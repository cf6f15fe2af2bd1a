//! Calls that may delete more blocks than one transaction does.
//!
//! Such a call deletes blocks in several transactions, and the last one has the rest and the new
//! length. So other clients may read zeros in the range before the call returns, and a crash may
//! leave that. Within one [`Transaction`], the call fails with `EFBIG` instead.

use futures_util::future::FutureExt as _;

use super::FileSystem;
use crate::{
    error::Result,
    model::{Allocation, Ino, SetAttributes},
    transaction::Transaction,
};

/// A call that may clear a part of a file.
#[derive(Clone, Copy)]
enum Call {
    Truncate(u64),
    SetAttributes(SetAttributes),
    Allocate(Allocation, u64, u64),
}

impl Call {
    /// The range of bytes that it clears; `None` as its end: the end of the file.
    fn cleared(self) -> Option<(u64, Option<u64>)> {
        match self {
            Self::Truncate(size) => Some((size, None)),
            Self::SetAttributes(set) => set.size.map(|size| (size, None)),
            Self::Allocate(Allocation::PunchHole | Allocation::ZeroRange, offset, count) => {
                Some((offset, Some(offset.checked_add(count)?)))
            }
            Self::Allocate(..) => None,
        }
    }

    async fn run(self, transaction: &mut Transaction, ino: Ino) -> Result<()> {
        match self {
            Self::Truncate(size) => transaction.truncate(ino, size).await,
            Self::SetAttributes(set) => transaction.setattr(ino, set).await,
            Self::Allocate(allocation, offset, count) => {
                transaction.fallocate(ino, allocation, offset, count).await
            }
        }
    }
}

impl FileSystem {
    /// As [`Transaction::truncate`], for files of any length.
    pub async fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        self.in_steps(ino, Call::Truncate(size)).await
    }

    /// As [`Transaction::setattr`], for files of any length.
    pub async fn setattr(&self, ino: Ino, set: SetAttributes) -> Result<()> {
        self.in_steps(ino, Call::SetAttributes(set)).await
    }

    /// As [`Transaction::fallocate`], for ranges of any length.
    pub async fn fallocate(
        &self,
        ino: Ino,
        allocation: Allocation,
        offset: u64,
        count: u64,
    ) -> Result<()> {
        self.in_steps(ino, Call::Allocate(allocation, offset, count))
            .await
    }

    /// Deletes the blocks of a range, as many as there are. Blocks that are written meanwhile may
    /// stay.
    pub(crate) async fn clear_ahead(&self, ino: Ino, first: u64, end: Option<u64>) -> Result<()> {
        let mut rest = Some(first);
        while let Some(next) = rest {
            let step = self
                .transact(move |transaction| transaction.clear_step(ino, next, end).boxed())
                .await;
            rest = step?;
        }
        Ok(())
    }

    async fn in_steps(&self, ino: Ino, call: Call) -> Result<()> {
        let is_done = self.transact(move |transaction| {
            async move {
                if let Some((from, until)) = call.cleared()
                    && transaction.is_long(ino, from, until).await?
                {
                    return Ok(false);
                }
                call.run(transaction, ino).await?;
                Ok(true)
            }
            .boxed()
        });
        if is_done.await? {
            return Ok(());
        }
        if let Some((from, until)) = call.cleared() {
            let block_bytes = u64::from(self.context.store.block_bytes().get());
            let end = until.map(|until| until / block_bytes);
            let first = from.div_ceil(block_bytes);
            self.clear_ahead(ino, first, end).await?;
        }
        self.transact(move |transaction| call.run(transaction, ino).boxed())
            .await
    }
}
