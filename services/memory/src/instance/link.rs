//! The channels to an instance, the task that serves them, and the instance's death.
//!
//! Chunks of [`LARGE_BYTES`] and more have a channel of their own. A burst of large chunks then
//! never delays the calls for small ones.

use std::{
    collections::BTreeMap,
    fmt, mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock};
use ports::{
    Clock, Error, Result,
    instances::{Channel, Instance as Port, Region},
};
use primitives::Mutant;
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::{Dead, InstanceId};
use crate::broken::Broken;
use crate::function::{
    CHUNKS_PER_REMOVAL_MAX, Call, ChunkId, Counts, Epoch, Outcome, Record, Reply, Request,
};

/// Chunks from this size on are large.
const LARGE_BYTES: u64 = 1 << 20;
/// The calls of a lane that wait for replies; further ones wait for their turn.
const CALLS_MAX: usize = 64;
/// The longest wait for an answer. Earlier calls are answered in that time, too.
const CALL_MAX: Duration = Duration::from_secs(15);
/// The bytes that are discarded before other work of the thread gets a turn.
const DISCARDED_BYTES_MAX: u64 = 64 << 20;

/// A lane: one channel, and the calls on it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lane {
    Small,
    Large,
}

impl Lane {
    const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// The lane for chunks of this size.
    pub(super) fn of(bytes: u64) -> Self {
        if bytes < LARGE_BYTES {
            Self::Small
        } else {
            Self::Large
        }
    }
}

/// A chunk to be removed.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) id: ChunkId,
    /// The place and size of its pages; none: the reservation was never confirmed.
    pub(super) range: Option<(u64, u64)>,
    /// Dropped once the instance may use the space again.
    pub(super) waits: Option<oneshot::Sender<()>>,
}

/// The handles of an instance that lives.
#[derive(Clone)]
pub(super) struct Live {
    port: Arc<dyn Port>,
    region: Arc<dyn Region>,
    channels: [Arc<dyn Channel>; 2],
}

impl Live {
    /// Opens the channels to `port`.
    pub(super) async fn connect(port: Arc<dyn Port>) -> Result<Self> {
        let region = port.memory();
        let region = region.ok_or_else(|| Error::unavailable("share a region"))?;
        let channels = [port.channel().await?, port.channel().await?];
        Ok(Self {
            port,
            region,
            channels,
        })
    }
}

/// The removals and the calls of a lane.
struct Queue {
    freed: Mutex<Vec<Freed>>,
    has_freed: Notify,
    permits: Semaphore,
}

/// The link to an instance, shared by its handles and its task.
pub(super) struct Link {
    id: InstanceId,
    epoch: Epoch,
    /// None once the instance is known to be dead.
    live: RwLock<Option<Live>>,
    is_dead: watch::Sender<bool>,
    counts: Mutex<Counts>,
    /// The latest state of the instance's log.
    record: Mutex<Record>,
    mutant: Mutant<Broken>,
    clock: Arc<dyn Clock>,
    numbers: AtomicU64,
    pending: Mutex<BTreeMap<u64, oneshot::Sender<Outcome>>>,
    queues: [Queue; 2],
}

/// Forgets a call whose caller has left.
struct Pending<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.link.pending.lock().remove(&self.number);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// The link to a new instance; a task serves it until the instance is dead.
    pub(super) fn run(
        id: InstanceId,
        epoch: Epoch,
        live: Live,
        clock: Arc<dyn Clock>,
        mutant: Mutant<Broken>,
    ) -> Arc<Self> {
        let queue = |_| Queue {
            freed: Mutex::new(Vec::new()),
            has_freed: Notify::new(),
            permits: Semaphore::new(CALLS_MAX),
        };
        let link = Arc::new(Self {
            id,
            epoch,
            live: RwLock::new(Some(live.clone())),
            is_dead: watch::Sender::new(false),
            counts: Mutex::default(),
            record: Mutex::default(),
            mutant,
            clock,
            numbers: AtomicU64::new(0),
            pending: Mutex::new(BTreeMap::new()),
            queues: Lane::ALL.map(queue),
        });
        tokio::spawn(Arc::clone(&link).serve(live));
        link
    }

    /// Serves the link until the instance is dead.
    async fn serve(self: Arc<Self>, live: Live) {
        let cause = tokio::select! {
            biased;
            cause = live.port.died() => format!("{cause:?}"),
            cause = self.receive(&*live.channels[Lane::Small as usize]) => cause,
            cause = self.receive(&*live.channels[Lane::Large as usize]) => cause,
            Dead = self.remove(Lane::Small, &*live.region) => "a removal failed".to_owned(),
            Dead = self.remove(Lane::Large, &*live.region) => "a removal failed".to_owned(),
        };
        live.port.end();
        drop(live);
        self.bury();
        tracing::info!(
            instance = self.id.0,
            cause,
            "an instance of function memory is dead"
        );
    }

    /// Receives replies until the channel is of no use. Returns why.
    async fn receive(&self, channel: &dyn Channel) -> String {
        loop {
            let reply = match channel.receive().await {
                Ok(Some(message)) => Reply::decode(&message),
                Ok(None) => return "it closed a channel".to_owned(),
                Err(error) => Err(error),
            };
            match reply {
                Ok(reply) if !self.is_current(reply.epoch) => {
                    return format!("it replied in {:?}", reply.epoch);
                }
                Ok(reply) if !self.follows(&reply) => return "its log is another one".to_owned(),
                Ok(reply) => self.deliver(reply),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn is_current(&self, epoch: Epoch) -> bool {
        epoch == self.epoch || self.mutant.breaks(Broken::AcceptsOtherEpochs)
    }

    /// Whether the reply comes from the log that the daemon knows. Notes its state.
    fn follows(&self, reply: &Reply) -> bool {
        if self.mutant.breaks(Broken::ForgetsRecords) {
            return true;
        }
        let mut known = self.record.lock();
        if reply.record.term > known.term {
            *known = reply.record;
        }
        let is_fork = reply.record.term == known.term && reply.record != *known;
        reply.outcome != Outcome::Diverged && !is_fork
    }

    fn deliver(&self, reply: Reply) {
        {
            let mut counts = self.counts.lock();
            // Of two replies on two channels the older one may arrive last.
            if reply.counts.changes >= counts.changes {
                *counts = reply.counts;
            }
        }
        let caller = self.pending.lock().remove(&reply.number);
        if let Some(caller) = caller {
            // A caller that has left needs no outcome.
            let _ = caller.send(reply.outcome);
        }
    }

    /// Removes freed chunks as they come, in batches.
    async fn remove(&self, lane: Lane, region: &dyn Region) -> Dead {
        let queue = &self.queues[lane as usize];
        loop {
            queue.has_freed.notified().await;
            let freed = mem::take(&mut *queue.freed.lock());
            let mut freed = freed.into_iter().peekable();
            while freed.peek().is_some() {
                let (mut ids, mut waiting, mut bytes) = (Vec::new(), Vec::new(), 0);
                while ids.len() < CHUNKS_PER_REMOVAL_MAX && bytes < DISCARDED_BYTES_MAX {
                    let Some(Freed { id, range, waits }) = freed.next() else {
                        break;
                    };
                    waiting.extend(waits);
                    bytes += range.map_or(0, |(_, bytes)| bytes);
                    if self.discard(region, range) {
                        ids.push(id);
                    }
                }
                // Only now the instance may give the space to another chunk.
                if let Err(dead) = self.call(lane, Call::Remove(ids)).await {
                    return dead;
                }
                drop(waiting);
            }
        }
    }

    /// Discards the bytes of a chunk. Where that fails, their place is not used again: the kernel may still send them.
    fn discard(&self, region: &dyn Region, range: Option<(u64, u64)>) -> bool {
        let Some((offset, bytes)) = range else {
            return true;
        };
        let discarded = region.discard(offset, bytes);
        if let Err(error) = &discarded {
            tracing::warn!(
                instance = self.id.0, bytes, %error,
                "memory of a removed chunk is not freed before its instance ends"
            );
        }
        discarded.is_ok()
    }

    /// Marks the instance as dead, and fails all that waits for it.
    fn bury(&self) {
        // First of all: a call that comes later finds nothing to send to.
        let live = self.live.write().take();
        drop(live);
        self.pending.lock().clear();
        for queue in &self.queues {
            queue.permits.close();
            queue.freed.lock().clear();
        }
        self.is_dead.send_replace(true);
    }

    /// Calls the instance. One that does not answer in time is ended, so that no caller waits for a
    /// process that hangs.
    pub(super) async fn call(&self, lane: Lane, call: Call) -> Result<Outcome, Dead> {
        let answered = pin!(self.answer(lane, call));
        match select(answered, self.clock.sleep(CALL_MAX)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(((), _)) => {
                tracing::warn!(
                    instance = self.id.0,
                    "an instance of function memory does not answer and is ended"
                );
                self.end();
                Err(Dead)
            }
        }
    }

    async fn answer(&self, lane: Lane, call: Call) -> Result<Outcome, Dead> {
        let permits = &self.queues[lane as usize].permits;
        let _permit = permits.acquire().await.map_err(|_| Dead)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, outcome) = oneshot::channel();
        self.pending.lock().insert(number, sender);
        let _pending = Pending { link: self, number };
        let channel = {
            let live = self.live.read();
            let live = live.as_ref().ok_or(Dead)?;
            Arc::clone(&live.channels[lane as usize])
        };
        let request = Request {
            number,
            epoch: self.epoch,
            record: *self.record.lock(),
            call,
        };
        let request = request.encode();
        if channel.send(request).await.is_err() {
            self.end();
            return Err(Dead);
        }
        drop(channel);
        outcome.await.map_err(|_| Dead)
    }

    /// Queues the removal of a chunk.
    pub(super) fn free(&self, lane: Lane, freed: Freed) {
        let live = self.live.read();
        if live.is_some() {
            let queue = &self.queues[lane as usize];
            queue.freed.lock().push(freed);
            queue.has_freed.notify_one();
        }
    }

    /// The region. Errors: `Unavailable` if the instance is dead.
    pub(super) fn region(&self) -> Result<Arc<dyn Region>> {
        let live = self.live.read();
        let live = live
            .as_ref()
            .ok_or_else(|| Error::unavailable("reach the memory of an instance").caused_by(Dead))?;
        Ok(Arc::clone(&live.region))
    }

    /// The counts of the latest reply.
    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    pub(super) fn is_dead(&self) -> bool {
        *self.is_dead.borrow()
    }

    pub(super) async fn died(&self) {
        let mut is_dead = self.is_dead.subscribe();
        // The sender lives as long as this link.
        let _ = is_dead.wait_for(|is_dead| *is_dead).await;
    }

    /// Ends the instance. The task learns of its death.
    pub(super) fn end(&self) {
        if let Some(live) = &*self.live.read() {
            live.port.end();
        }
    }
}
