//! The loop of an instance: it serves several channels at once, each request by request.
//!
//! A channel with small requests never waits for one with large requests. The loop ends when no
//! more channels can arrive, which says that the daemon is gone.

use std::{future::Future, pin::pin, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    Stream, StreamExt as _,
    future::{Either, select},
    stream::FuturesUnordered,
};
use parking_lot::Mutex;
use ports::instances::Channel;

use super::{
    log::Log,
    memory::Memory,
    protocol::{
        CHUNKS_PER_REMOVAL_MAX, Call, EPOCH_VARIABLE, Epoch, Outcome, REGION_VARIABLE,
        REQUEST_BYTES_MAX, Reply, Request,
    },
};

/// The most channels that are served at once; further ones wait.
pub const CHANNELS_MAX: usize = 8;

/// A channel of messages to the daemon and back.
#[async_trait]
pub trait Wire: Send + Sync {
    /// The next message; none: the daemon has closed the channel.
    async fn receive(&self) -> Option<Bytes>;

    /// Sends a message. Whether the daemon still has the channel.
    async fn send(&self, message: Bytes) -> bool;
}

#[async_trait]
impl Wire for Arc<dyn Channel> {
    async fn receive(&self) -> Option<Bytes> {
        // An error is the end of the channel, too: neither side can go on.
        Channel::receive(&**self).await.ok().flatten()
    }

    async fn send(&self, message: Bytes) -> bool {
        Channel::send(&**self, message).await.is_ok()
    }
}

/// An instance of function memory.
#[derive(Debug)]
pub struct Function {
    epoch: Epoch,
    state: Mutex<(Memory, Log)>,
}

impl Function {
    /// An empty instance of this epoch, with a region of `bytes` bytes.
    pub fn new(epoch: Epoch, bytes: u64) -> Self {
        Self {
            epoch,
            state: Mutex::new((Memory::new(bytes), Log::default())),
        }
    }

    /// The instance that the daemon describes in the environment, where `variable` finds values.
    ///
    /// Errors: `Invalid` if a variable is missing or no number.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> ports::Result<Self> {
        let number = |name: &str| {
            let value = variable(name).and_then(|value| value.parse().ok());
            value.ok_or_else(|| ports::Error::invalid(format!("read {name}: it is no number")))
        };
        Ok(Self::new(
            Epoch(number(EPOCH_VARIABLE)?),
            number(REGION_VARIABLE)?,
        ))
    }

    /// Answers a request.
    pub fn answer(&self, request: &Request) -> Reply {
        let mut state = self.state.lock();
        let (memory, log) = &mut *state;
        let outcome = if request.epoch == self.epoch && log.contains(request.record) {
            apply(memory, log, &request.call)
        } else {
            Outcome::Diverged
        };
        Reply {
            number: request.number,
            epoch: self.epoch,
            counts: memory.counts(),
            record: log.record(),
            outcome,
        }
    }

    /// Serves one channel until it is closed, or a message on it is no request.
    async fn serve(&self, wire: impl Wire) {
        while let Some(message) = wire.receive().await {
            let is_short = message.len() <= REQUEST_BYTES_MAX;
            let Some(request) = is_short.then(|| Request::decode(&message).ok()).flatten() else {
                return;
            };
            if !wire.send(self.answer(&request).encode()).await {
                return;
            }
        }
    }
}

fn apply(memory: &mut Memory, log: &mut Log, call: &Call) -> Outcome {
    match call {
        Call::Counts => Outcome::Done,
        Call::Reserve {
            id,
            name,
            bytes,
            partition,
        } => memory.reserve(*id, *name, *bytes, *partition),
        Call::Seal(id) => {
            let outcome = memory.seal(*id);
            if let (Outcome::Done, Some(name)) = (&outcome, memory.name(*id)) {
                log.insert(*id, name);
            }
            outcome
        }
        Call::Remove(ids) if ids.len() > CHUNKS_PER_REMOVAL_MAX => Outcome::Unknown,
        Call::Remove(ids) => {
            for id in ids {
                memory.remove(*id);
            }
            log.remove(ids);
            Outcome::Done
        }
    }
}

/// Serves all `wires` as `function` until their stream ends.
pub async fn serve<W: Wire>(function: &Function, wires: impl Stream<Item = W> + Send) {
    let mut wires = pin!(wires);
    let mut serving = FuturesUnordered::new();
    loop {
        if serving.len() >= CHANNELS_MAX {
            serving.next().await;
        }
        match either(wires.next(), &mut serving).await {
            Either::Left(Some(wire)) => serving.push(function.serve(wire)),
            Either::Left(None) => return,
            Either::Right(()) => {}
        }
    }
}

/// The result of `first`, or the end of one of `others`.
async fn either<T>(
    first: impl Future<Output = T>,
    others: &mut FuturesUnordered<impl Future<Output = ()>>,
) -> Either<T, ()> {
    if others.is_empty() {
        return Either::Left(first.await);
    }
    match select(pin!(first), others.next()).await {
        Either::Left((result, _)) => Either::Left(result),
        Either::Right(_) => Either::Right(()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::function::protocol::{ChunkId, ChunkName, Partition, Record};

    /// Both ends of a channel are queues of the test.
    struct Queues {
        requests: tokio::sync::Mutex<mpsc::Receiver<Bytes>>,
        replies: mpsc::Sender<Bytes>,
    }

    #[async_trait]
    impl Wire for Queues {
        async fn receive(&self) -> Option<Bytes> {
            self.requests.lock().await.recv().await
        }
        async fn send(&self, message: Bytes) -> bool {
            self.replies.send(message).await.is_ok()
        }
    }

    struct Daemon {
        requests: mpsc::Sender<Bytes>,
        replies: mpsc::Receiver<Bytes>,
    }

    impl Daemon {
        fn pair() -> (Self, Queues) {
            let (requests, theirs) = mpsc::channel(4);
            let (back, replies) = mpsc::channel(4);
            let queues = Queues {
                requests: tokio::sync::Mutex::new(theirs),
                replies: back,
            };
            (Self { requests, replies }, queues)
        }

        async fn ask(&mut self, number: u64, call: Call) -> Reply {
            let request = request(number, call).encode();
            self.requests.send(request).await.expect("it serves");
            Reply::decode(&self.replies.recv().await.expect("it replies")).expect("a reply")
        }
    }

    fn request(number: u64, call: Call) -> Request {
        Request {
            number,
            epoch: Epoch(3),
            record: Record::default(),
            call,
        }
    }

    fn reserve(id: u64, bytes: u64) -> Call {
        Call::Reserve {
            id: ChunkId(id),
            name: ChunkName {
                segment: 1,
                fragment: 0,
                index: 0,
            },
            bytes,
            partition: Partition::Storage,
        }
    }

    async fn with_two_channels<F: Future<Output = ()>>(check: impl FnOnce(Daemon, Daemon) -> F) {
        let function = Function::new(Epoch(3), 8 * 4096);
        let ((one, first), (two, second)) = (Daemon::pair(), Daemon::pair());
        let wires = stream::iter([first, second]).chain(stream::pending());
        let serving = pin!(serve(&function, wires));
        let checking = pin!(check(one, two));
        let ended = select(checking, serving).await;
        assert!(matches!(ended, Either::Left(_)), "it ended too early");
    }

    /// M3.
    #[tokio::test]
    async fn replies_carry_the_number_the_epoch_and_the_counts() {
        with_two_channels(|mut one, mut two| async move {
            let reply = one.ask(41, reserve(1, 10)).await;
            assert_eq!((reply.number, reply.epoch), (41, Epoch(3)));
            let reply = two.ask(7, Call::Counts).await;
            assert_eq!((reply.number, reply.counts.storage_bytes), (7, 4096));
            let reply = one
                .ask(42, Call::Remove(vec![ChunkId(1), ChunkId(2)]))
                .await;
            assert_eq!(reply.outcome, Outcome::Done);
            assert_eq!((reply.counts.storage_bytes, reply.counts.chunks), (0, 0));
        })
        .await;
    }

    /// M3, section 5.5.1.
    #[test]
    fn a_request_for_another_epoch_or_another_log_has_no_effect() {
        let function = Function::new(Epoch(3), 8 * 4096);
        for call in [reserve(1, 10), Call::Seal(ChunkId(1))] {
            assert_ne!(function.answer(&request(1, call)).outcome, Outcome::Unknown);
        }
        let reply = function.answer(&request(2, Call::Counts));
        assert_eq!((reply.record.term, reply.record.insertions), (1, 1));
        let newer = Request {
            epoch: Epoch(4),
            ..request(3, reserve(2, 10))
        };
        let mut forked = request(4, reserve(2, 10));
        forked.record = Record {
            hash: [1; 32],
            ..reply.record
        };
        let mut ahead = request(5, reserve(2, 10));
        ahead.record.term = 2;
        for void in [newer, forked, ahead] {
            let refused = function.answer(&void);
            assert_eq!(refused.outcome, Outcome::Diverged);
            assert_eq!(
                (refused.counts, refused.record),
                (reply.counts, reply.record)
            );
        }
    }

    #[tokio::test]
    async fn a_channel_whose_reader_is_slow_delays_no_other() {
        with_two_channels(|slow, mut other| async move {
            // More replies than the channel holds: the instance waits with the last ones.
            let mut number = 0;
            while slow
                .requests
                .try_send(request(number, Call::Counts).encode())
                .is_ok()
                || number < 12
            {
                number += 1;
                tokio::task::yield_now().await;
            }
            assert_eq!(other.ask(1, Call::Counts).await.number, 1);
        })
        .await;
    }

    #[tokio::test]
    async fn a_message_that_is_no_request_closes_its_channel_alone() {
        for hostile in [vec![1, 255], vec![0; 3], vec![1; REQUEST_BYTES_MAX + 1]] {
            with_two_channels(|mut one, mut two| async move {
                one.requests.send(hostile.into()).await.expect("it serves");
                assert_eq!(one.replies.recv().await, None, "closed");
                assert_eq!(two.ask(1, Call::Counts).await.number, 1);
            })
            .await;
        }
    }

    #[tokio::test]
    async fn a_removal_of_too_many_chunks_is_refused() {
        with_two_channels(|mut one, _two| async move {
            one.ask(1, reserve(1, 10)).await;
            let ids = vec![ChunkId(1); CHUNKS_PER_REMOVAL_MAX + 1];
            let reply = one.ask(2, Call::Remove(ids)).await;
            assert_eq!((reply.outcome, reply.counts.chunks), (Outcome::Unknown, 1));
        })
        .await;
    }

    #[tokio::test]
    async fn the_loop_ends_when_no_more_channels_can_arrive() {
        let (_daemon, wire) = Daemon::pair();
        serve(&Function::new(Epoch(1), 4096), stream::iter([wire])).await;
    }
}
