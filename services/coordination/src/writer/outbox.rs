//! Finishes the decisions in a session's outbox: installs them and pushes them to the distributor.
//!
//! Any process may do this, repeatedly (rules C-1 and C-3). Installing leaves installed states
//! unchanged, and the distributor skips applied requests by number. The session's next writer does
//! it, and so does each starting process. If the session has ended, the heartbeat triggers a writer
//! for it.

use bytes::Bytes;
use ports::{ErrorKind, Queue, Result};

use crate::{
    dependency::TrackedStore,
    queue_names,
    storage::{decided::install_outbox, session::Row},
};

/// Installs and pushes a row's whole outbox.
pub(crate) async fn finish(store: &mut TrackedStore, queue: &dyn Queue, row: &Row) -> Result<()> {
    install_outbox(store, row).await?;
    push(queue, row.outbox()).await
}

/// Finishes the outbox of one session among many. An outbox that does not decode is logged and left
/// unchanged, for an operator to examine.
pub(crate) async fn finish_or_skip(
    store: &mut TrackedStore,
    queue: &dyn Queue,
    row: &Row,
) -> Result<()> {
    match finish(store, queue, row).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::error!(session = ?row.session, %error, "cannot read the session's outbox; leaving its decisions unfinished");
            Ok(())
        }
        finished => finished,
    }
}

/// Pushes decided requests to the distributor, in order.
pub(super) async fn push(queue: &dyn Queue, outcomes: &[Bytes]) -> Result<()> {
    let group = queue_names::distributor_group();
    queue_names::send(queue, queue_names::DISTRIBUTOR_QUEUE, group, outcomes).await
}
