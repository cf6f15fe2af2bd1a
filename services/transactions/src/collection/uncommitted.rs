//! Deletes what attempts wrote that did not commit.

use futures_util::{Stream, StreamExt};

use crate::{
    Result,
    broken::Broken,
    model::{Attempt, TransactionId},
    storage::{
        records::{Write, WriteSet},
        store::{Decision, State, Store},
    },
};

/// Deletes what an attempt wrote that did not commit.
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

/// What an entry says was written ahead by an attempt that is decided or can commit no more: it goes, but for what its record
/// names.
pub(crate) async fn tidy_spilled(
    store: &Store,
    id: &TransactionId,
    attempt: Attempt,
    writes: &[Write],
    broken: Option<Broken>,
) -> Result<()> {
    let (decision, point) = store.decision(id).await?;
    let decision = decision.filter(|decision| decision.attempt == attempt);
    let Some(Decision {
        state: State::Committed(stored),
        ..
    }) = decision
    else {
        for write in writes {
            store.delete_written(attempt, write).await?;
        }
        return Ok(());
    };
    if broken == Some(Broken::KeepsReplacedChunks) {
        return Ok(());
    }
    let record = store.record(id, attempt, &stored, point).await?;
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

/// Waits for all steps, also behind one that fails, and says how the first one failed: whoever is dropped while they write in the
/// sequencer's log end the node.
pub(crate) async fn all_of(steps: impl Stream<Item = Result<()>>) -> Result<()> {
    steps.fold(Ok(()), async |all, step| all.and(step)).await
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;
    use crate::Error;

    /// T11: who decides about what a node left may be writing for others as well.
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
