//! What is decided in a session's row and may be left to be done: installed, and pushed to the distributor.
//!
//! Anybody may do it, and again (rules C-1 and C-3): installing leaves what is installed, and the distributor skips by
//! number what it has applied. The next writer of the session does, which the heartbeat asks for where the session has
//! ended, and a process that starts.

use bytes::Bytes;
use ports::{ErrorKind, Queue, Result, queue::Message};

use super::install_outbox;
use crate::{
    dependency::Basis,
    model::SessionId,
    queue_names,
    storage::{node::Nodes, session::Row},
};

/// Installs and pushes all of a row's outbox.
pub(crate) async fn finish(
    nodes: &Nodes,
    queue: &dyn Queue,
    row: &Row,
    basis: &mut Basis,
) -> Result<()> {
    install_outbox(nodes, row, basis).await?;
    push(queue, row.outbox().to_vec()).await
}

/// The same for one session of many: an outbox that cannot be read is left as it is, for somebody to look at.
pub(crate) async fn finish_one_of_many(
    nodes: &Nodes,
    queue: &dyn Queue,
    (session, row): (SessionId, &Row),
    basis: &mut Basis,
) -> Result<()> {
    match finish(nodes, queue, row, basis).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::error!(?session, %error, "what the session has decided stays undone");
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
