//! What the parts of one range's owner share, and the handle to it.

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
    Clock, DurabilityPoint, Entropy, Error, ErrorKind, Incarnation, Monotonic, Result,
    key_value::{KeyValueLimits, SharedKeyValue},
};
use tokio::sync::Notify;

use crate::{
    lane::Lane,
    layout::Record,
    options::{Mode, Options},
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
    pub range: Bytes,
}

/// How it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Records that are not yet far-durable.
    pub pending_records: usize,
    /// What they hold.
    pub pending_bytes: usize,
    /// How long the oldest of them has waited.
    pub pending_for: Duration,
    /// Lanes that a permanent error has stopped.
    pub poisoned_lanes: usize,
    /// How long ago the last write or renewal was sent that the far store has answered; who has nothing to do there sends none.
    pub answered: Option<Duration>,
    /// The far store does not answer as it should.
    pub failing: Option<Failing>,
    /// Why this instance serves nobody any more, if so.
    pub ended: Option<ErrorKind>,
}

/// An outage of the far store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// For how long.
    pub since: Monotonic,
    /// How many attempts have failed.
    pub attempts: u64,
    /// Why the last one did.
    pub reason: String,
}

/// Why an instance serves nobody any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The range has another owner.
    Deposed,
    /// The near store went back or restarted: open anew.
    NearLost,
    /// It was given up.
    Closed,
}

impl Ended {
    fn kind(self) -> ErrorKind {
        match self {
            Self::Deposed | Self::NearLost => ErrorKind::Lost,
            Self::Closed => ErrorKind::Unavailable {
                retry_after_ms: None,
            },
        }
    }

    fn error(self) -> Error {
        let why = match self {
            Self::Deposed => "use a range that has another owner now",
            Self::NearLost => "use a range whose near store has gone back or restarted",
            Self::Closed => "use a range that was given up",
        };
        Error::new(self.kind(), why)
    }
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
    pub(crate) chores: Notify,
}

/// The shortest pause after a far call failed that nobody counts.
const PAUSE_MS_MIN: u64 = 5;
/// The longest.
const PAUSE_MS_MAX: u64 = 500;

impl Engine {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.state()
            .ended
            .map_or(Ok(()), |ended| Err(ended.error()))
    }

    pub(crate) fn open_lane(self: &Arc<Self>) -> Result<Lane> {
        self.check_open()?;
        let id = self.state().stream.open_lane()?;
        Ok(Lane::new(Arc::clone(self), id))
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

    /// How long to wait before a call is repeated: longer while the far store fails for longer.
    pub(crate) fn pause(&self) -> Duration {
        let attempts = self
            .state()
            .failing
            .as_ref()
            .map_or(0, |failing| failing.attempts);
        let ceiling = (PAUSE_MS_MIN << attempts.min(10)).min(PAUSE_MS_MAX);
        Duration::from_millis(PAUSE_MS_MIN + self.entropy.below(ceiling))
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
    pub(crate) async fn apart<T: Send + 'static>(
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
    pub(crate) fn point(&self, lane: crate::layout::LaneId, position: u64) -> DurabilityPoint {
        let position = ports::Position(position << LANE_BITS | u64::from(lane.number));
        DurabilityPoint {
            incarnation: Incarnation(self.epoch),
            position,
        }
    }
}

/// The bits of a point that say which lane was told it.
pub(crate) const LANE_BITS: u32 = 16;

/// The owner of a range. Dropping it is like the death of its process: nothing is drained, and the next
/// [`Synchrony::open`] finds what was ordered near.
#[derive(Debug)]
pub struct Synchrony(pub(crate) Arc<Engine>);

impl Synchrony {
    /// A lane with an order of its own, for one workflow's run: what is written in it stays in order far, and waits for
    /// nothing but what it has read. It is given back when its last handle is dropped.
    ///
    /// Errors: `Unavailable` while [`Options::lanes_max`] lanes are held or not drained.
    pub fn lane(&self) -> Result<Lane> {
        self.0.open_lane()
    }

    /// Returns once this instance serves nobody any more, which is noticed by whoever uses a store then; with why.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + use<> {
        let engine = Arc::clone(&self.0);
        async move {
            engine.ended().await;
            engine.state().ended.expect("it has ended")
        }
    }

    /// From here on a write returns as `mode` says; those that wait go on waiting for what they waited for.
    pub fn set_mode(&self, mode: Mode) {
        self.0.state().stream.set_mode(mode);
        self.0.work.notify_one();
    }

    /// How it goes.
    pub fn health(&self) -> Health {
        let now = self.0.clock.monotonic();
        let state = self.0.state();
        let load = state.stream.load();
        Health {
            pending_records: load.records,
            pending_bytes: load.bytes,
            pending_for: load
                .oldest
                .map_or(Duration::ZERO, |oldest| now.since(oldest)),
            poisoned_lanes: load.poisoned,
            answered: state.lease.proven.map(|proven| now.since(proven)),
            failing: state.failing.clone(),
            ended: state.ended.map(Ended::kind),
        }
    }

    /// How many lanes somebody holds.
    pub fn lanes_held(&self) -> usize {
        self.0.state().stream.lanes_held()
    }

    /// What near rows and payloads take, about.
    pub async fn near_bytes(&self) -> usize {
        self.0.order.lock().await.resident_bytes
    }

    /// Which epoch of the range this is.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }
}

impl Drop for Synchrony {
    fn drop(&mut self) {
        self.0.end(Ended::Closed);
    }
}
