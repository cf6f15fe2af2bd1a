//! Answers the messages of other nodes: dispatches each to the part that it concerns.
//!
//! A message is served only if it carries the store's secret and names the node that serves now.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Result,
    broken::Broken,
    calls::Calls,
    cluster::{
        Cluster,
        forwarded::{Asked, Forwarded, Refused, Reply, Said, number},
        messages::{Answer, Message, Way},
    },
    context::Context,
    model::{Call, Committed, Shown},
    serializable::Serializable,
    serving::Serving,
};

/// Answers other nodes.
#[derive(Debug)]
pub(crate) struct PeerServer {
    pub(crate) context: Arc<Context>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) serializable: Arc<Serializable>,
    pub(crate) calls: Arc<Calls>,
}

impl PeerServer {
    /// Answers another node's message.
    pub(crate) async fn answer_peer(&self, message: Bytes) -> Bytes {
        let decoded = Message::decode(&message);
        // Its content has been copied, and it may be long.
        drop(message);
        let answer = match decoded {
            Ok((way, message)) => self.answer_message(way, message).await,
            Err(kind) => Answer::Unknown(kind),
        };
        answer.encode()
    }

    async fn answer_message(&self, way: Way, message: Message) -> Answer {
        let node = self.serving.current().filter(|node| node.id == way.to);
        let node = node.filter(|node| {
            node.secret() == Some(way.secret) || self.context.breaks(Broken::BelievesStrangers)
        });
        // The frontier of a node that is no longer counted may lie below the collected horizon.
        let Some(node) = node.filter(|node| self.cluster.may_answer(node).is_ok()) else {
            return Answer::NotHere;
        };
        match message {
            Message::Ask => Answer::Standing(self.cluster.standing(&node)),
            Message::Announce(announcement) => {
                self.cluster.hear_announced(&node, way.from, announcement);
                Answer::Standing(self.cluster.standing(&node))
            }
            Message::Forward(forwarded) => Answer::Reply(self.serve_forwarded(forwarded).await),
            Message::Sequence(wish) => {
                Answer::Ordered(self.serializable.serve_sequence(&node, wish).await)
            }
            Message::StopTimestamps(keyspace) => {
                match self.serializable.stop_timestamps(&node, keyspace).await {
                    Ok(()) => Answer::Stopped,
                    Err(_) => Answer::NotHere,
                }
            }
        }
    }

    /// Serves a call from another node, and never forwards it further.
    pub(crate) async fn serve_forwarded(&self, forwarded: Forwarded) -> Reply {
        let Forwarded { id, attempt, asked } = forwarded;
        let call = Call { id, attempt };
        self.serve_asked(&call, asked).await.map_err(Refused::from)
    }

    async fn serve_asked(&self, call: &Call, asked: Asked) -> Result<Said> {
        match asked {
            Asked::Get(key) => {
                let Shown { value, point } = self.calls.get(call, &key).await?;
                self.serving.node()?.store.externalize(point).await?;
                Ok(Said::Value(value))
            }
            Asked::Write(key, value) => self
                .calls
                .write(call, key, value)
                .await
                .map(|()| Said::Done),
            Asked::Send(effect, place) => self
                .calls
                .send(call, effect, place)
                .await
                .map(|()| Said::Done),
            Asked::Commit => {
                let Committed { after } = self.calls.commit(call).await?;
                Ok(Said::Committed(
                    after.map(|after| (after.version, after.position)),
                ))
            }
            Asked::Abort => self.calls.abort(call).await.map(|()| Said::Done),
            Asked::Status => {
                self.calls.end_if_begun_elsewhere(call).await?;
                let Shown { value, point } = self.calls.status(call).await?;
                self.serving.node()?.store.externalize(point).await?;
                Ok(Said::Outcome(number(value)))
            }
        }
    }
}
