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
    Clock, DurabilityPoint, Entropy, Error, Incarnation, Result,
    key_value::{KeyValueLimits, SharedKeyValue},
};
use primitives::{Backoff, Delays};
use tokio::sync::Notify;

use crate::{
    health::{Ended, Failing},
    layout::{LaneId, Record},
    options::Options,
    owner::{End, Lease},
    stream::Stream,
};

/// The two stores of a range, and its name: the partition that it takes of each, which nobody else uses.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Orders at once; transacts.
    pub near: SharedKeyValue,
    /// Durable and distant; transacts within a partition.
    pub far: SharedKeyValue,
    /// The range.
    pub shard: Bytes,
}

/// What one writer at a time changes: near order is position order.
#[derive(Debug)]
pub(crate) struct Order {
    /// The last position.
    pub(crate) position: u64,
    /// What the near store has told last: the next transaction rests on it.
    pub(crate) near: DurabilityPoint,
    /// What rows and payloads take, about.
    pub(crate) resident_bytes: usize,
    /// Where eviction goes on.
    pub(crate) evict_from: Bytes,
}

/// What is changed without waiting.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) stream: Stream,
    pub(crate) ended: Option<Ended>,
    /// No new writes: the range is being released.
    pub(crate) is_draining: bool,
    /// The last position that was ordered.
    pub(crate) position: u64,
    pub(crate) lease: Lease,
    pub(crate) failing: Option<Failing>,
    /// The pauses after failed calls, until the far store responds.
    pub(crate) pauses: Delays,
    /// Far-durable records that still lie near.
    pub(crate) to_clean: VecDeque<Arc<Record>>,
    pub(crate) wants_room: bool,
}

/// One start of a range's owner.
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
    /// Where earlier epochs ended.
    pub(crate) ends: Vec<End>,
    pub(crate) order: tokio::sync::Mutex<Order>,
    pub(crate) renewing: tokio::sync::Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Everything that the range has lies near.
    pub(crate) is_complete: AtomicBool,
    /// How often rows were taken away: what was read far before may be older than what was near.
    pub(crate) removals: AtomicU64,
    /// Something was settled, or it ended.
    pub(crate) changed: Notify,
    /// It ended.
    pub(crate) over: Notify,
    /// The sender has something to do.
    pub(crate) work: Notify,
    /// The cleaner has.
    pub(crate) cleaning: Notify,
}

/// The shortest pause after a failed call.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// What is added to it, until the far store responds. There is no last attempt.
pub(crate) const PAUSES: Backoff = Backoff {
    first: PAUSE_MIN,
    longest: Duration::from_millis(500),
    attempts_max: u32::MAX,
};

impl Engine {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.state()
            .ended
            .map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// This instance serves nobody from now on; everybody who waits is told.
    pub(crate) fn end(&self, ended: Ended) {
        self.state().ended.get_or_insert(ended);
        self.changed.notify_waiters();
        self.over.notify_waiters();
    }

    /// A far call failed in a way that waiting may help.
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

    /// The far store has responded as it should.
    pub(crate) fn far_responded(&self) {
        let mut state = self.state();
        state.failing = None;
        state.pauses = PAUSES.delays();
    }

    /// How long to wait before a call is repeated: longer while the far store fails for longer.
    pub(crate) fn pause(&self) -> Duration {
        let delay = self.state().pauses.next_delay(&*self.entropy);
        PAUSE_MIN + delay.unwrap_or(PAUSES.longest)
    }

    /// Waits until `look` finds something; looks again whenever something changed.
    pub(crate) async fn until<T>(
        &self,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.check_open()?;
            if let Some(found) = look(&mut self.state()) {
                return Ok(found);
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

    /// Runs `task` beside everything else until it ends or this instance does: a caller that gives up leaves no half of it.
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
            // A panic is a bug of ours: what it left half done must not be built on.
            self.end(Ended::Closed);
            Err(Error::unavailable("run a call apart").caused_by(error))
        })
    }

    /// The point of what a lane knows at `position`.
    pub(crate) fn point(&self, lane: LaneId, position: u64) -> DurabilityPoint {
        let position = ports::Position(position << LANE_BITS | u64::from(lane.number));
        DurabilityPoint {
            incarnation: Incarnation(self.epoch),
            position,
        }
    }
}

/// The bits of a point that say which lane was told it.
pub(crate) const LANE_BITS: u32 = 16;
