//! Who waits for which point, and what a point of an earlier start answers.
//!
//! Waiting costs one entry in a list and one wake-up; a point that is durable already is answered without
//! waiting. The journal thread sleeps here too: it is woken by the first waiter; a change that nobody waits
//! for is given [`LAZY`] time to gather company. So long after a commit the thread looks by itself, since under load
//! the next change is near and would have to wake it for nothing; then it sleeps for good until a change wakes it.
//!
//! Invariants
//! - `durable` only grows within an incarnation; a waiter is woken once `durable` has reached its point or
//!   the incarnation has changed.
//! - A point of an earlier incarnation is answered by where that incarnation ended, never by comparing its
//!   position with today's (rule P3). One that is older than we remember is lost.
//! - No point is called durable before a record says so which a crash leaves: also not one whose every change was undone
//!   before it reached the journal, or the same point would answer `Lost` after the crash (D3).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use ports::{DurabilityPoint, Error, ErrorKind, Incarnation, Position, Result};

/// How many ends of earlier incarnations are kept.
pub(crate) const INCARNATIONS_MAX: usize = 1024;

/// How long changes that nobody waits for may gather before they are written.
const LAZY: Duration = Duration::from_millis(20);

/// What the journal thread is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Write a group.
    Commit,
    /// Write what is left, then end.
    Finish,
    /// End now, as a crash would.
    Abandon,
}

/// The durable position, the waiters for it and the journal thread's bed.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    inner: Mutex<Inner>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    incarnation: u64,
    durable: u64,
    /// Earlier incarnations with the position each ended at, oldest first.
    ends: Arc<Vec<(u64, u64)>>,
    waiters: Vec<Waiter>,
    next_waiter: u64,
    /// The highest position anybody waits for.
    wanted: u64,
    /// Since when there are changes that nobody waits for.
    lazy_since: Option<Instant>,
    /// The thread sleeps for good: it does not see by itself that there are changes.
    sleeps: bool,
    /// A commit was asked for whatever there is to write.
    forced: bool,
    stop: Option<Work>,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    point: DurabilityPoint,
    waker: Waker,
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

    fn wake_resolved(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.retain(|waiter| {
            let is_known = self.outcome(waiter.point).is_some();
            if is_known {
                woken.push(waiter.waker.clone());
            }
            !is_known
        });
        self.waiters = waiters;
        woken
    }
}

impl Durability {
    /// Whether `point` needs no waiting.
    pub(crate) fn is_durable(&self, point: DurabilityPoint) -> bool {
        matches!(self.inner.lock().outcome(point), Some(Ok(())))
    }

    /// What `point` answers, if that is known now.
    pub(crate) fn outcome(&self, point: DurabilityPoint) -> Option<Result<()>> {
        self.inner.lock().outcome(point)
    }

    /// Waits until `point` is outcome.
    pub(crate) fn wait(&self, point: DurabilityPoint) -> Waiting<'_> {
        Waiting {
            durability: self,
            point,
            id: None,
        }
    }

    /// Has the journal thread write soon: there is a change.
    pub(crate) fn changed(&self) {
        let mut inner = self.inner.lock();
        if inner.lazy_since.is_none() {
            inner.lazy_since = Some(Instant::now());
            if inner.sleeps {
                self.work.notify_one();
            }
        }
    }

    /// Has the journal thread run now, whether or not there is a change.
    pub(crate) fn force(&self) {
        self.inner.lock().forced = true;
        self.work.notify_one();
    }

    /// Has the journal thread end.
    pub(crate) fn stop(&self, how: Work) {
        self.inner.lock().stop = Some(how);
        self.work.notify_one();
    }

    /// Answers all waiters: nothing more will become durable.
    pub(crate) fn close(&self) {
        let woken = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.wake_resolved()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// The journal thread sleeps until there is work.
    pub(crate) fn wait_for_work(&self) -> Work {
        let awake_until = Instant::now() + LAZY;
        let mut inner = self.inner.lock();
        loop {
            if let Some(stop) = inner.stop {
                return stop;
            }
            if inner.forced || inner.wanted > inner.durable {
                break;
            }
            // Nothing stands between these looks and the wait: what comes as a wait runs out is seen before the next.
            match inner.lazy_since {
                Some(since) if since.elapsed() >= LAZY => break,
                Some(since) => {
                    self.work.wait_until(&mut inner, since + LAZY);
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
        Work::Commit
    }

    /// Sleeps for `duration` unless told to stop before; answers whether it was.
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

    /// Whether a record is owed that says no more than that everything up to `position` is durable: somebody waits for it, or
    /// nobody could any more.
    pub(crate) fn is_owed(&self, position: u64, work: Work) -> bool {
        let inner = self.inner.lock();
        position > inner.durable && (inner.wanted > inner.durable || work == Work::Finish)
    }

    /// Everything up to `position` is durable.
    pub(crate) fn advance(&self, position: u64) {
        let woken = {
            let mut inner = self.inner.lock();
            assert!(position >= inner.durable, "durable never goes back");
            inner.durable = position;
            if inner.wanted <= position {
                inner.wanted = 0;
            }
            inner.wake_resolved()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// A new incarnation starts at `position`; `ends` are the earlier ones.
    pub(crate) fn restart(&self, incarnation: u64, position: u64, ends: Arc<Vec<(u64, u64)>>) {
        let woken = {
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
            inner.wake_resolved()
        };
        woken.into_iter().for_each(Waker::wake);
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

/// Waits for one point.
#[derive(Debug)]
pub(crate) struct Waiting<'durability> {
    durability: &'durability Durability,
    point: DurabilityPoint,
    id: Option<u64>,
}

impl Future for Waiting<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let durability = self.durability;
        let mut inner = durability.inner.lock();
        if let Some(outcome) = inner.outcome(self.point) {
            return Poll::Ready(outcome);
        }
        let registered = self.id.and_then(|id| {
            inner
                .waiters
                .iter_mut()
                .rev()
                .find(|waiter| waiter.id == id)
        });
        if let Some(waiter) = registered {
            waiter.waker.clone_from(context.waker());
            return Poll::Pending;
        }
        let id = inner.next_waiter;
        inner.next_waiter += 1;
        inner.waiters.push(Waiter {
            id,
            point: self.point,
            waker: context.waker().clone(),
        });
        if inner.wanted < self.point.position.0 {
            inner.wanted = self.point.position.0;
            durability.work.notify_one();
        }
        drop(inner);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.durability
                .inner
                .lock()
                .waiters
                .retain(|waiter| waiter.id != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    type Ask = fn(&mut Inner);

    /// Whoever asks for work just as the journal thread is about to sleep for good holds the lock then.
    #[test]
    fn what_is_asked_for_as_a_wait_runs_out_is_done() {
        let asked: [(Ask, Work); 3] = [
            (|inner| inner.forced = true, Work::Commit),
            (|inner| inner.wanted = 1, Work::Commit),
            (|inner| inner.stop = Some(Work::Finish), Work::Finish),
        ];
        for (ask, expected) in asked {
            for _ in 0..8 {
                let durability = Arc::<Durability>::default();
                let (tell, told) = mpsc::channel();
                let waits = Arc::clone(&durability);
                let begun = Instant::now();
                thread::spawn(move || tell.send(waits.wait_for_work()));
                while begun.elapsed() < LAZY / 2 {
                    thread::yield_now();
                }
                let mut inner = durability.inner.lock();
                while begun.elapsed() < LAZY * 2 {
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
