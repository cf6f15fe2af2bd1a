//! Asking another node: one message, and its answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    Error, Result,
    cluster::{
        Cluster, Peers,
        messages::{Answer, Message, Way, understood},
        peers::{CALL_MAX, NoAnswer, Unheard, message_bytes_max, more_time_for},
    },
    model::{Address, NodeId},
    node::Node,
};

/// How long one is waited for that was asked at length, but for what it carries: a commit says within five seconds that it is undecided.
const AT_LENGTH_MAX: Duration = Duration::from_secs(6);

impl Cluster {
    /// Asks the node `to`. Errors: `Unavailable`, and it may have heard.
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

    /// Asks the node `to` for what takes as long as it takes: a large value is on its way, or into the store. As long as the node
    /// lives it is waited for, within bounds.
    pub(crate) async fn ask_at_length(
        self: &Arc<Self>,
        node: &Arc<Node>,
        to: NodeId,
        address: &Address,
        message: &Message,
    ) -> Result<Answer, Unheard> {
        let (peers, message) = self.envelope(node, to, message).map_err(Unheard::Silence)?;
        let wait_max = AT_LENGTH_MAX + more_time_for(message.len());
        let answered = tokio::select! {
            biased;
            answered = peers.call(address, message) => answered,
            why = self.silence_of(node, to, address) => return Err(Unheard::Silence(why)),
            () = self.context.clock.sleep(wait_max) => {
                return Err(Unheard::Late(NoAnswer::Unavailable("it takes too long".into())));
            }
        };
        match answered {
            Ok(answer) => understood(&answer).map_err(Unheard::Silence),
            Err(NoAnswer::Silence(why)) => Err(Unheard::Silence(Error::unavailable(&why))),
            Err(refused) => Err(Unheard::Refused(refused)),
        }
    }

    /// The way, and what goes there.
    pub(crate) fn envelope(
        &self,
        node: &Node,
        to: NodeId,
        message: &Message,
    ) -> Result<(&dyn Peers, Bytes)> {
        let (Some(peers), Some(secret)) = (&self.peers, node.secret()) else {
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
