//! Answers the messages of other nodes: dispatches each to the part that it concerns.
//!
//! A message is served only if it carries the store's secret and names the node that serves now.
//! Its body is decoded after that.

use std::sync::Arc;

use bytes::Bytes;
use ports::Read;

use crate::{
    Result,
    broken::Broken,
    calls::Calls,
    cluster::{
        forwarded::{Asked, Refused, Said},
        messages::{Answer, Message, Way},
    },
    model::Call,
};

impl Calls {
    /// Answers another node's message.
    pub(crate) async fn answer_peer(self: &Arc<Self>, message: Bytes) -> Bytes {
        let answer = self.answer_message(message).await;
        answer.unwrap_or_else(Answer::Unknown).encode()
    }

    /// Errors: the number of an unknown kind.
    async fn answer_message(self: &Arc<Self>, bytes: Bytes) -> Result<Answer, u8> {
        let way = Way::of(&bytes)?;
        let node = self.serving.current().filter(|node| node.id == way.to);
        let node = node.filter(|node| {
            node.secret == Some(way.secret) || self.context.breaks(Broken::BelievesStrangers)
        });
        // The frontier of a node that is no longer counted may lie below the collected horizon.
        let Some(node) = node.filter(|node| self.cluster.may_answer(node).is_ok()) else {
            return Ok(Answer::NotHere);
        };
        let message = Message::decode(&bytes)?;
        // Its content has been copied, and it may be long.
        drop(bytes);
        Ok(match message {
            Message::Ask => Answer::NodeState(self.cluster.own_state(&node)),
            Message::Announce(announcement) => {
                self.cluster
                    .receive_announcement(&node, way.from, announcement);
                Answer::NodeState(self.cluster.own_state(&node))
            }
            // Never forwarded further.
            Message::Forward(call, asked) => {
                Answer::Reply(self.serve(&call, asked).await.map_err(Refused::from))
            }
            Message::Sequence(proposal) => {
                Answer::Ordered(self.sequencing.serve_sequence(&node, proposal).await)
            }
            Message::StopTimestamps(keyspace) => {
                match self.sequencing.stop_timestamps(&node, keyspace).await {
                    Ok(()) => Answer::Stopped,
                    Err(_) => Answer::NotHere,
                }
            }
        })
    }

    /// Serves a call from another node.
    async fn serve(self: &Arc<Self>, call: &Call, asked: Asked) -> Result<Said> {
        Ok(match asked {
            Asked::Get(key) => {
                let Read { value, point } = self.get(call, &key).await?;
                self.serving.node()?.store.externalize(point).await?;
                Said::Value(value)
            }
            Asked::Write(key, value) => {
                self.write(call, key, value).await?;
                Said::Done
            }
            Asked::Send(effect, place) => {
                self.send(call, effect, place).await?;
                Said::Done
            }
            Asked::Commit => Said::Committed(self.commit(call).await?.after),
            Asked::Keep(result) => {
                self.keep_result(call, result).await?;
                Said::Done
            }
            Asked::Abort => {
                self.abort(call).await?;
                Said::Done
            }
            Asked::Status => {
                self.end_if_begun_elsewhere(call).await?;
                let Read { value, point } = self.status(call).await?;
                self.serving.node()?.store.externalize(point).await?;
                Said::Outcome(value)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::peers::{ANNOUNCE, tests::start_among_others},
        model::NodeId,
        storage::secret::Secret,
    };

    /// T9: the body of these messages does not decode, and only a node of the store learns that.
    #[test]
    fn the_body_of_a_message_without_the_secret_is_not_decoded() {
        simulated::run(async {
            let service = start_among_others().await;
            let calls = service.engine().calls;
            let node = calls.serving.node().expect("it has started");
            let answer = async |secret| {
                let (from, to) = (NodeId(9), node.id);
                let head = Way { from, to, secret }.head(ANNOUNCE);
                calls
                    .answer_peer([&head[..], &[0xff; 64]].concat().into())
                    .await
            };
            assert_eq!(answer(Secret(0)).await, Answer::NotHere.encode());
            let secret = node.secret.expect("one of several has it");
            assert_eq!(answer(secret).await, Answer::Unknown(ANNOUNCE).encode());
        });
    }
}
