//! Finishes the decisions in a session's outbox: installs them and pushes them to the distributor.
//!
//! Any process may do this, repeatedly (rules C-1 and C-3). Installing leaves installed states
//! unchanged, and the distributor skips applied requests by number. The session's next writer does
//! it, and so does each starting process. If the session has ended, the heartbeat triggers a writer
//! for it.

use bytes::Bytes;
use ports::{ErrorKind, Queue, Result, queue::Message};

use super::install_outbox;
use crate::{
    dependency::Dependency,
    model::SessionId,
    queue_names,
    storage::{node::Nodes, session::Row},
};

/// Installs and pushes a row's whole outbox.
pub(crate) async fn finish(
    nodes: &Nodes,
    queue: &dyn Queue,
    row: &Row,
    dependency: &mut Dependency,
) -> Result<()> {
    install_outbox(nodes, row, dependency).await?;
    push(queue, row.outbox().to_vec()).await
}

/// Finishes the outbox of one session among many. An outbox that does not decode is logged and left
/// unchanged, for an operator to examine.
pub(crate) async fn finish_or_skip(
    nodes: &Nodes,
    queue: &dyn Queue,
    (session, row): (SessionId, &Row),
    dependency: &mut Dependency,
) -> Result<()> {
    match finish(nodes, queue, row, dependency).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::error!(?session, %error, "cannot read the session's outbox; leaving its decisions unfinished");
            Ok(())
        }
        finished => finished,
    }
}

/// Pushes decided requests to the distributor, in order.
pub(super) async fn push(queue: &dyn Queue, outcomes: Vec<Bytes>) -> Result<()> {
    let batch_messages_max = queue.limits().batch_messages_max.max(1);
    for outcomes in outcomes.chunks(batch_messages_max) {
        let message = |body: &Bytes| Message {
            group: queue_names::distributor_group(),
            deduplication: None,
            body: body.clone(),
        };
        queue
            .send(
                queue_names::DISTRIBUTOR_QUEUE,
                outcomes.iter().map(message).collect(),
            )
            .await?;
    }
    Ok(())
}
