//! Leaving in order: so that nobody searches the store for what a death might have left.
//!
//! A node that is told to stop takes no more calls, ends what is open and lets what is under way come to its end. Then all
//! that it ever wrote stands in its log, or is cleaned up, and its row says so: the next start resolves its log as ever, and
//! does not sweep for it.
//!
//! Dies anywhere before that word: it is missing, and the store is swept. Whatever could make the word untrue keeps it from
//! being said: work that does not end in time, or data whose entry never came to stand in the log.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Result, attempts::transaction::Phase, broken::Broken, recovery::Recovery,
    storage::node_registry,
};

/// How long what is under way has to come to its end.
const LEAVE_MAX: Duration = Duration::from_secs(2);

impl Recovery {
    /// Ends this node's service for good. True: the next start need not search the store for what it left.
    pub(crate) async fn leave(self: &Arc<Self>) -> bool {
        let serving = {
            let node = self.serving.stop();
            node.map(|node| (node, self.attempts.close()))
        };
        let Some((node, open)) = serving else {
            // It may be about to join.
            self.cluster.membership.leave().await;
            return false;
        };
        if self.context.config.is_broken(Broken::LeavesAtOnce) {
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
            self.packing.note_all_freed(&node).await?;
            if node.is_traceless() {
                node_registry::mark_left(&node.store, node.id).await
            } else {
                Ok(false)
            }
        };
        let marked: Result<bool> = tokio::select! {
            biased;
            marked = marked => marked,
            () = self.context.clock.sleep(LEAVE_MAX) => Ok(false),
        };
        let has_left = marked.unwrap_or(false);
        self.cluster.membership.leave().await;
        tracing::info!(
            node = node.id.0,
            has_left,
            "transactions are served no more"
        );
        has_left
    }
}
