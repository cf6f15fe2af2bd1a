//! One start of a shard's owner: the state that its parts share.

mod barrier;
mod cleaner;
mod lease;
mod reader;
mod sender;
mod writer;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use ports::{
    Clock, Condition, DurabilityPoint, Entropy, Error, Incarnation, Key, Result, Update,
    key_value::{Change, KeyValueLimits, SharedKeyValue},
};
use tokio::sync::Notify;

use crate::{
    health::{Ended, Failing},
    layout::{LaneId, OWNER, Record},
    options::Options,
    owner::{End, Lease, epoch_is, position_is},
    stream::Stream,
};

pub(crate) use writer::Decision;

/// The two stores of a shard, and its name. The name is the partition of the shard in both stores,
/// which no other user may write.
#[derive(Debug, Clone)]
pub struct Stores {
    /// The near store: orders writes at once; has transactions.
    pub near: SharedKeyValue,
    /// The far store: durable and distant; has transactions within a partition.
    pub far: SharedKeyValue,
    /// The name of the shard.
    pub shard: Bytes,
}

/// State that the present writer changes under a lock, so that near order is position order.
#[derive(Debug)]
pub(crate) struct Order {
    /// The last position.
    pub(crate) position: u64,
    /// The latest near point: the next transaction depends on it.
    pub(crate) near: DurabilityPoint,
    /// About how many bytes rows and payloads take.
    pub(crate) resident_bytes: usize,
    /// The key from which eviction continues.
    pub(crate) evict_from: Bytes,
}

/// State that is changed without waiting.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) stream: Stream,
    pub(crate) ended: Option<Ended>,
    /// Whether the shard is being released and refuses new writes.
    pub(crate) is_draining: bool,
    pub(crate) lease: Lease,
    pub(crate) failing: Option<Failing>,
    /// Records that are durable far and still stored near.
    pub(crate) to_clean: VecDeque<Arc<Record>>,
    pub(crate) wants_room: bool,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) stores: Stores,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) options: Options,
    pub(crate) limits: KeyValueLimits,
    pub(crate) epoch: u64,
    pub(crate) claim: Bytes,
    pub(crate) near_incarnation: Incarnation,
    /// The last positions of earlier epochs.
    pub(crate) ends: Vec<End>,
    pub(crate) order: tokio::sync::Mutex<Order>,
    pub(crate) renewing: tokio::sync::Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Whether all items of the shard are near.
    pub(crate) is_complete: AtomicBool,
    /// How often rows were removed near. A far read that began before a removal may be older than
    /// the row that was removed.
    pub(crate) removals: AtomicU64,
    /// A record was settled, or this instance has ended.
    pub(crate) changed: Notify,
    /// This instance has ended.
    pub(crate) over: Notify,
    /// The sender has work.
    pub(crate) work: Notify,
    /// The cleaner has work.
    pub(crate) cleaning: Notify,
}

/// The shortest pause after a failed call.
const PAUSE_MS_MIN: u64 = 5;
/// The most milliseconds that are added to it.
const PAUSE_MS_MAX: u64 = 500;

impl Engine {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        let ended = self.state().ended;
        ended.map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// Ends this instance, and wakes all waiting callers.
    pub(crate) fn end(&self, ended: Ended) {
        self.state().ended.get_or_insert(ended);
        self.changed.notify_waiters();
        self.over.notify_waiters();
    }

    /// A far call failed with a transient error.
    pub(crate) fn far_failed(&self, error: &Error) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        let failing = state.failing.get_or_insert_with(|| Failing {
            since: now,
            attempts: 0,
            reason: String::new(),
        });
        failing.attempts += 1;
        failing.reason = error.to_string();
    }

    /// How long to wait before a call is repeated: longer while the far store fails for longer. All
    /// repeated calls share this state, so it is no loop with a backoff of its own. A near call is
    /// repeated quickly while the far store responds.
    pub(crate) fn pause(&self) -> Duration {
        let state = self.state();
        let attempts = state.failing.as_ref().map_or(0, |failing| failing.attempts);
        let ceiling = (PAUSE_MS_MIN << attempts.min(10)).min(PAUSE_MS_MAX);
        Duration::from_millis(PAUSE_MS_MIN + self.entropy.below(ceiling))
    }

    /// Waits until `look` returns a value; calls it again after each change.
    pub(crate) async fn until<T>(
        &self,
        mut look: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.check_open()?;
            if let Some(found) = look(&mut self.state()) {
                return found;
            }
            changed.await;
        }
    }

    /// Returns when this instance has ended.
    pub(crate) async fn ended(&self) {
        let over = self.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        if self.check_open().is_ok() {
            over.await;
        }
    }

    /// Runs `task` in the background until it ends or this instance does, so that a caller that
    /// gives up leaves no half of it.
    pub(crate) async fn detached<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let engine = Arc::clone(self);
        let running = tokio::spawn(async move {
            let ended = std::pin::pin!(engine.ended());
            match select(ended, std::pin::pin!(task)).await {
                Either::Left(_) => Err(engine.check_open().expect_err("it has ended")),
                Either::Right((result, _)) => result,
            }
        });
        running.await.unwrap_or_else(|error| {
            // A panic is our bug, and later calls must not build on its partial effects.
            self.end(Ended::Closed);
            Err(Error::unavailable("run a call apart").caused_by(error))
        })
    }

    /// Starts a part that runs until this instance ends. The end of the part ends this instance:
    /// without the sender nothing would become durable, and without the cleaner the near store
    /// would grow.
    pub(crate) fn spawn_part(
        self: &Arc<Self>,
        part: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            if engine.detached(part).await.is_err() {
                engine.end(Ended::NearLost);
            }
        });
    }

    /// The guard of each near transaction: no start has taken the near row, and the position is
    /// the present writer's. `change` is made to that row.
    pub(crate) fn guard(&self, order: &Order, change: Change) -> Update {
        let condition = Condition::All(vec![epoch_is(self.epoch), position_is(order.position)]);
        let key = Key::new(&self.stores.shard, OWNER);
        Update::of(key, change)
            .when(condition)
            .depends_on(order.near)
    }

    /// The point that covers all that a lane has written and read.
    pub(crate) fn point(&self, lane: LaneId) -> DurabilityPoint {
        let high = self.state().stream.high(lane);
        let position = ports::Position(high << LANE_BITS | u64::from(lane.number));
        DurabilityPoint {
            incarnation: Incarnation(self.epoch),
            position,
        }
    }
}

/// The bits of a point that name its lane.
pub(crate) const LANE_BITS: u32 = 16;
