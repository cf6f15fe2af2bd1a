//! Deletes the data of attempts that did not commit.
//!
//! The rows of such attempts are closed first, so no commit can name the data any more.

use futures_util::{Stream, StreamExt};
use primitives::Mutant;

use crate::{
    Result,
    broken::Broken,
    model::{Attempt, TransactionId},
    storage::{
        records::{Write, WriteSet},
        store::Store,
    },
};

/// Deletes the data of an attempt that did not commit.
pub(crate) async fn delete_uncommitted(
    store: &Store,
    attempt: Attempt,
    set: &WriteSet,
) -> Result<()> {
    for write in store.write_set(attempt, set).await? {
        store.delete_written(attempt, &write).await?;
    }
    store.delete_write_set(attempt, set).await
}

/// Deletes what an entry announced as spilled, except for what the attempt's record names. The
/// attempt is decided, or cannot commit any more.
pub(crate) async fn tidy_spilled(
    store: &Store,
    id: &TransactionId,
    attempt: Attempt,
    writes: &[Write],
    mutant: Mutant<Broken>,
) -> Result<()> {
    let Some(record) = store.committed(id, attempt).await? else {
        for write in writes {
            store.delete_written(attempt, write).await?;
        }
        return Ok(());
    };
    if mutant.breaks(Broken::KeepsReplacedChunks) {
        return Ok(());
    }
    let is_named = |write: &&Write| {
        record
            .write_of(&write.key)
            .is_some_and(|last| last.write == write.write)
    };
    for write in writes.iter().filter(|write| !is_named(write)) {
        store
            .delete_chunks(attempt, write.write, write.place.chunks())
            .await?;
    }
    Ok(())
}

/// Runs all steps to their end even if one fails, and returns the first error. A task that is
/// dropped while it writes in the sequencer's log would end the node.
pub(crate) async fn all_of(steps: impl Stream<Item = Result<()>>) -> Result<()> {
    steps.fold(Ok(()), async |all, step| all.and(step)).await
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;
    use crate::Error;

    /// T11: the task that resolves a node's log may be writing a slot for others as well.
    #[test]
    fn a_step_that_fails_has_those_beside_it_come_to_their_end() {
        simulated::run(async {
            let (told, hears) = tokio::sync::oneshot::channel();
            let step = async {
                tokio::task::yield_now().await;
                let _ = told.send(());
                Ok(())
            };
            let fails = async { Err(Error::NoRoom) };
            let steps: [futures_util::future::BoxFuture<'_, Result<()>>; 2] =
                [Box::pin(fails), Box::pin(step)];
            assert_eq!(
                all_of(futures_util::stream::iter(steps).buffered(2)).await,
                Err(Error::NoRoom)
            );
            assert_eq!(hears.await, Ok(()), "the other one was not dropped");
        });
    }
}
