//! Orderly shutdown, after which no node has to search the store for leftovers.
//!
//! A node that is asked to stop accepts no more calls, ends open attempts, and lets running work
//! finish. Then everything it ever wrote is named in its log or cleaned up, and its row records
//! that. The next start resolves its log as usual, and does not sweep for it.
//!
//! If it crashes before that record, the record is missing, and the store is swept. The node does
//! not write the record if it could be untrue: if work does not finish in time, or data were
//! written whose entry never reached the log.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Result, attempts::transaction::Phase, broken::Broken, recovery::Recovery,
    storage::node_registry,
};

/// The longest wait for running work.
const LEAVE_MAX: Duration = Duration::from_secs(2);

impl Recovery {
    /// Ends this node's service permanently. Returns true if the next start need not search the
    /// store for leftovers.
    pub(crate) async fn leave(self: &Arc<Self>) -> bool {
        let serving = {
            let node = self.calls.serving.stop();
            node.map(|node| (node, self.calls.attempts.close()))
        };
        let Some((node, open)) = serving else {
            // The node may be about to join.
            self.calls.cluster.membership.leave().await;
            return false;
        };
        if self.calls.context.breaks(Broken::LeavesAtOnce) {
            return node_registry::mark_left(&node.store, node.id).await.is_ok();
        }
        node.work.notify_one();
        for transaction in open {
            let mut state = transaction.state();
            if state.phase == Phase::Open {
                self.calls.end(
                    &transaction,
                    &mut state,
                    &Err(Error::unavailable("the server stops")),
                );
                drop(state);
                self.calls.forget_begin(&transaction);
            }
        }
        let marked = async {
            let _nobody_else = node.all_work_done().await;
            self.calls.packing.note_all_freed(&node).await?;
            if node.is_traceless() {
                node_registry::mark_left(&node.store, node.id).await
            } else {
                Ok(false)
            }
        };
        let marked: Result<bool> = tokio::select! {
            biased;
            marked = marked => marked,
            () = self.calls.context.clock.sleep(LEAVE_MAX) => Ok(false),
        };
        let has_left = marked.unwrap_or(false);
        self.calls.cluster.membership.leave().await;
        tracing::info!(
            node = node.id.0,
            has_left,
            "transactions are no longer served"
        );
        has_left
    }
}
