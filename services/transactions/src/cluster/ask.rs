//! Requests to another node: one message, and its answer.
//!
//! A plain request has a fixed deadline. A request *at length* waits as long as the node is alive,
//! because the node may be storing a large value.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    Error, Result,
    cluster::{
        Cluster, Peers,
        messages::{Answer, Message, Way, understood},
        peers::{CALL_MAX, NoAnswer, Unanswered, message_bytes_max, more_time_for},
    },
    model::{Address, NodeId},
    node::Node,
};

/// The longest wait of a request at length, before the extra time for its size. A commit answers
/// within five seconds that it is undecided.
const AT_LENGTH_MAX: Duration = Duration::from_secs(6);

impl Cluster {
    /// Asks the node `to`. Errors: `Unavailable`; the node may have received it.
    pub(crate) async fn ask(
        &self,
        node: &Node,
        to: NodeId,
        address: &Address,
        message: &Message,
    ) -> Result<Answer> {
        let (peers, message) = self.envelope(node, to, message)?;
        let answered = self.call_in_time(peers, address, message).await;
        understood(&answered.map_err(|error| Error::unavailable(&error.to_string()))?)
    }

    pub(crate) async fn call_in_time(
        &self,
        peers: &dyn Peers,
        address: &Address,
        message: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        tokio::select! {
            biased;
            answered = peers.call(address, message) => answered,
            () = self.context.clock.sleep(CALL_MAX) => Err(NoAnswer::Silence("it takes too long".into())),
        }
    }

    /// Asks the node `to` for work of unknown duration: a large value is on its way, or being
    /// stored. It waits within bounds while the node is alive.
    pub(crate) async fn ask_at_length(
        self: &Arc<Self>,
        node: &Arc<Node>,
        to: NodeId,
        address: &Address,
        message: &Message,
    ) -> Result<Answer, Unanswered> {
        let (peers, message) = self
            .envelope(node, to, message)
            .map_err(Unanswered::Silence)?;
        let wait_max = AT_LENGTH_MAX + more_time_for(message.len());
        let answered = tokio::select! {
            biased;
            answered = peers.call(address, message) => answered,
            why = self.silence_of(node, to, address) => return Err(Unanswered::Silence(why)),
            () = self.context.clock.sleep(wait_max) => {
                return Err(Unanswered::Late(NoAnswer::Unavailable("it takes too long".into())));
            }
        };
        match answered {
            Ok(answer) => understood(&answer).map_err(Unanswered::Silence),
            Err(NoAnswer::Silence(why)) => Err(Unanswered::Silence(Error::unavailable(&why))),
            Err(refused) => Err(Unanswered::Refused(refused)),
        }
    }

    /// The header and the body of a message.
    pub(crate) fn envelope(
        &self,
        node: &Node,
        to: NodeId,
        message: &Message,
    ) -> Result<(&dyn Peers, Bytes)> {
        let (Some(peers), Some(secret)) = (&self.peers, node.secret) else {
            return Err(Error::unavailable("there is no other node"));
        };
        let message = message.encode(Way {
            from: node.id,
            to,
            secret,
        });
        if message
            .first()
            .is_none_or(|kind| message.len() > message_bytes_max(*kind))
        {
            return Err(Error::TooLarge("what is to be told to a node"));
        }
        Ok((&**peers, message))
    }
}
