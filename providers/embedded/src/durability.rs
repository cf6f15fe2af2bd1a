//! The durable position and the callers that wait for it.
//!
//! A waiting caller costs one list entry and one wake-up. A point that is already durable costs no
//! wait. The journal thread sleeps here too, and the first waiter wakes it. A change without a
//! waiter is written after [`LAZY_COMMIT_DELAY`], so that more changes join its group. For the same time after a
//! commit, the thread polls for changes itself: under load the next change is near, and a wake-up
//! would be wasted. After that it sleeps until a change wakes it.
//!
//! A wake-up of an idle core takes about as long as a sync. After a commit for a lone caller, the
//! thread therefore polls for [`POLL`] before it sleeps, if such callers came soon for several commits
//! in a row ([`crate::engine`]).
//!
//! Invariants
//! - `durable` only grows within an incarnation. A waiter wakes when `durable` has reached its
//!   point or the incarnation has changed.
//! - For a point of an earlier incarnation the recorded end of that incarnation decides, never a
//!   comparison with today's positions (rule P3). A point older than the remembered incarnations is
//!   lost.
//! - No point is reported durable before a record that survives a crash covers it. This holds even
//!   if every change up to the point was undone before it reached the journal. Otherwise the same
//!   point would return `Lost` after a crash (D3).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use ports::{DurabilityPoint, Error, ErrorKind, Incarnation, Position, Result};
use tokio::sync::oneshot;

/// How many ends of earlier incarnations are kept. The oldest is dropped first.
pub(crate) const INCARNATIONS_MAX: usize = 1024;

/// How long changes without a waiter may gather before they are written.
const LAZY_COMMIT_DELAY: Duration = Duration::from_millis(20);

/// How long the thread polls for the next request of a lone caller.
const POLL: Duration = Duration::from_micros(150);

/// The next task of the journal thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Writes a group.
    Commit,
    /// Writes the remaining changes, then ends.
    Finish,
    /// Ends now, as a crash would.
    Abandon,
}

/// The durable position, its waiters, and the wake-up of the journal thread.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    inner: Mutex<Inner>,
    work: Condvar,
    /// The thread has work. Polled without the lock.
    is_asked: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    incarnation: u64,
    durable: u64,
    /// Earlier incarnations with the position each ended at, oldest first.
    ends: Arc<Vec<(u64, u64)>>,
    waiters: Vec<(DurabilityPoint, oneshot::Sender<Result<()>>)>,
    /// The highest position with a waiter; zero if there is none.
    wanted: u64,
    /// When `wanted` rose last.
    asked_at: Option<Instant>,
    /// When the oldest unwritten change without a waiter was made.
    lazy_since: Option<Instant>,
    /// The thread sleeps without a timeout, so a change must wake it.
    sleeps: bool,
    /// The thread must commit even if there is nothing to write.
    forced: bool,
    stop: Option<Work>,
    closed: bool,
}

impl Inner {
    fn outcome(&self, point: DurabilityPoint) -> Option<Result<()>> {
        if point == DurabilityPoint::DURABLE {
            return Some(Ok(()));
        }
        if point.incarnation.0 == self.incarnation {
            if point.position.0 <= self.durable {
                return Some(Ok(()));
            }
            return self
                .closed
                .then(|| Err(Error::unavailable("externalize in a closed store")));
        }
        let end = self
            .ends
            .binary_search_by_key(&point.incarnation.0, |(incarnation, _)| *incarnation)
            .ok()
            .map(|index| self.ends[index].1);
        match end {
            Some(end) if point.position.0 <= end => Some(Ok(())),
            _ => Some(Err(Error::new(
                ErrorKind::Lost,
                format!("externalize {point:?}"),
            ))),
        }
    }

    /// Removes the waiters whose outcome is known.
    fn take_resolved(&mut self) -> Resolved {
        let mut resolved = Vec::new();
        for (point, waiter) in std::mem::take(&mut self.waiters) {
            match self.outcome(point) {
                Some(outcome) => resolved.push((waiter, outcome)),
                None => self.waiters.push((point, waiter)),
            }
        }
        Resolved(resolved)
    }
}

/// Waiters with their outcomes. They are told after the lock is released.
#[must_use]
struct Resolved(Vec<(oneshot::Sender<Result<()>>, Result<()>)>);

impl Resolved {
    fn tell(self) {
        for (waiter, outcome) in self.0 {
            // A caller that is gone needs no answer.
            let _ = waiter.send(outcome);
        }
    }
}

impl Durability {
    /// Whether `point` is durable now.
    pub(crate) fn is_durable(&self, point: DurabilityPoint) -> bool {
        matches!(self.inner.lock().outcome(point), Some(Ok(())))
    }

    /// The result of waiting for `point`, if it is already known.
    pub(crate) fn outcome(&self, point: DurabilityPoint) -> Option<Result<()>> {
        self.inner.lock().outcome(point)
    }

    /// Waits until the outcome of `point` is known.
    pub(crate) async fn wait(&self, point: DurabilityPoint) -> Result<()> {
        let (tell, told) = oneshot::channel();
        {
            let mut inner = self.inner.lock();
            if let Some(outcome) = inner.outcome(point) {
                return outcome;
            }
            if inner.waiters.len() == inner.waiters.capacity() {
                // Before the list grows, those of callers that are gone leave it.
                inner.waiters.retain(|(_, waiter)| !waiter.is_closed());
            }
            inner.waiters.push((point, tell));
            if inner.wanted < point.position.0 {
                inner.wanted = point.position.0;
                inner.asked_at = Some(Instant::now());
                self.wake();
            }
        }
        told.await
            .expect("each waiter is told before it is dropped")
    }

    /// Notes a change, which the journal thread writes within [`LAZY_COMMIT_DELAY`].
    pub(crate) fn note_change(&self) {
        let mut inner = self.inner.lock();
        if inner.lazy_since.is_none() {
            inner.lazy_since = Some(Instant::now());
            if inner.sleeps {
                self.work.notify_one();
            }
        }
    }

    /// Wakes the journal thread now, whether or not there is a change.
    pub(crate) fn force(&self) {
        self.inner.lock().forced = true;
        self.wake();
    }

    /// Ends the journal thread.
    pub(crate) fn stop(&self, how: Work) {
        self.inner.lock().stop = Some(how);
        self.wake();
    }

    fn wake(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// Wakes all waiters with an error: no further point will become durable.
    pub(crate) fn close(&self) {
        let resolved = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.take_resolved()
        };
        resolved.tell();
    }

    /// Blocks the journal thread until it has work. With `polls`, it first polls for [`POLL`].
    /// Returns also whether a caller asked within that time.
    pub(crate) fn wait_for_work(&self, polls: bool) -> (Work, bool) {
        let begun = Instant::now();
        while polls && !self.is_asked.load(Ordering::Relaxed) && begun.elapsed() < POLL {
            // Another thread of this core goes first.
            std::thread::yield_now();
        }
        let awake_until = begun + LAZY_COMMIT_DELAY;
        let mut inner = self.inner.lock();
        loop {
            if let Some(stop) = inner.stop {
                return (stop, false);
            }
            if inner.forced || inner.wanted > inner.durable {
                break;
            }
            // The lock is held from these checks until the wait begins. A request made while a wait
            // times out is therefore seen before the next wait.
            match inner.lazy_since {
                Some(since) if since.elapsed() >= LAZY_COMMIT_DELAY => break,
                Some(since) => {
                    self.work.wait_until(&mut inner, since + LAZY_COMMIT_DELAY);
                }
                None if Instant::now() < awake_until => {
                    self.work.wait_until(&mut inner, awake_until);
                }
                None => {
                    inner.sleeps = true;
                    self.work.wait(&mut inner);
                    inner.sleeps = false;
                }
            }
        }
        inner.forced = false;
        inner.lazy_since = None;
        self.is_asked.store(false, Ordering::Relaxed);
        let asked = inner.asked_at.take();
        (
            Work::Commit,
            asked.is_some_and(|asked| asked < begun + POLL),
        )
    }

    /// Sleeps for `duration`, or until the thread is told to stop. Returns whether it was.
    pub(crate) fn is_stopped_within(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut inner = self.inner.lock();
        while inner.stop.is_none() {
            if self.work.wait_until(&mut inner, until).timed_out() {
                break;
            }
        }
        inner.stop.is_some()
    }

    /// Whether a record without entries must say that everything up to `position` is durable: a
    /// caller waits for it, or the store is closing.
    pub(crate) fn needs_marker(&self, position: u64, work: Work) -> bool {
        let inner = self.inner.lock();
        position > inner.durable && (inner.wanted > inner.durable || work == Work::Finish)
    }

    /// Notes that everything up to `position` is durable.
    pub(crate) fn advance(&self, position: u64) {
        let resolved = {
            let mut inner = self.inner.lock();
            assert!(position >= inner.durable, "durable never goes back");
            inner.durable = position;
            if inner.wanted <= position {
                inner.wanted = 0;
            }
            inner.take_resolved()
        };
        resolved.tell();
    }

    /// Starts a new incarnation at `position`; `ends` are the ends of the earlier ones.
    pub(crate) fn restart(&self, incarnation: u64, position: u64, ends: Arc<Vec<(u64, u64)>>) {
        let resolved = {
            let mut inner = self.inner.lock();
            assert!(
                incarnation > inner.incarnation,
                "an incarnation is never used twice"
            );
            inner.incarnation = incarnation;
            inner.durable = position;
            inner.ends = ends;
            inner.wanted = 0;
            inner.lazy_since = None;
            inner.take_resolved()
        };
        resolved.tell();
    }

    /// The last durable point.
    pub(crate) fn durable(&self) -> DurabilityPoint {
        let inner = self.inner.lock();
        DurabilityPoint {
            incarnation: Incarnation(inner.incarnation),
            position: Position(inner.durable),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(2);

    type Ask = fn(&mut Inner);

    /// A request made just as the journal thread times out holds the lock at that moment.
    #[test]
    fn a_request_made_as_a_wait_times_out_is_served() {
        let asked: [(Ask, Work); 3] = [
            (|inner| inner.forced = true, Work::Commit),
            (|inner| inner.wanted = 1, Work::Commit),
            (|inner| inner.stop = Some(Work::Finish), Work::Finish),
        ];
        for (ask, expected) in asked {
            for polls in [false, true].repeat(4) {
                let durability = Arc::<Durability>::default();
                let (tell, told) = mpsc::channel();
                let waits = Arc::clone(&durability);
                let begun = Instant::now();
                thread::spawn(move || tell.send(waits.wait_for_work(polls).0));
                while begun.elapsed() < LAZY_COMMIT_DELAY / 2 {
                    thread::yield_now();
                }
                let mut inner = durability.inner.lock();
                while begun.elapsed() < LAZY_COMMIT_DELAY * 2 {
                    thread::yield_now();
                }
                ask(&mut inner);
                durability.work.notify_one();
                drop(inner);
                assert_eq!(told.recv_timeout(PATIENCE), Ok(expected));
            }
        }
    }
}
