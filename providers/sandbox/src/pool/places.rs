//! The places of a function: the permits for its instances, shared between calls and events.
//!
//! Invariants
//! - A place belongs to an invocation, or is reserved for an event that is being taken, or is free.
//! - One event at a time queues for the next place, however many wait. At most one event and the
//!   calls that queued earlier precede a call in the queue. The first call in the queue gets a
//!   place after at most two invocations have ended, and the next call after three.
//! - A call is refused at once only if calls have all places, or if as many calls as there are
//!   places queue already.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a call queues where events have places. It is longer than most invocations, and shorter
/// than the time-out of most callers: a refused caller knows that nothing ran, and one that timed
/// out does not.
const CALL_WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Places {
    count: usize,
    permits: Arc<Semaphore>,
    /// The permit of the one event in the queue. Other events wait for it.
    next_event: Semaphore,
    /// The permits of the calls in the queue.
    calls_in_line: Semaphore,
    /// Has one more owner for each place of a call.
    of_calls: Arc<()>,
}

#[derive(Debug)]
pub(super) struct Place {
    /// Held by a call. It is dropped before the permit: otherwise a call could be refused beside a
    /// free place.
    _of_call: Option<Arc<()>>,
    permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            permits: Arc::new(Semaphore::new(count)),
            next_event: Semaphore::new(1),
            calls_in_line: Semaphore::new(count),
            of_calls: Arc::default(),
        }
    }

    pub(super) fn has(&self, place: &Place) -> bool {
        Arc::ptr_eq(place.permit.semaphore(), &self.permits)
    }

    /// Waits for a place for an event; none: the places were closed.
    pub(super) async fn for_event(&self) -> Option<Place> {
        let _is_next = self.next_event.acquire().await.ok()?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(Place {
            _of_call: None,
            permit,
        })
    }

    /// A place for a call; none: it is refused.
    pub(super) async fn for_call(&self) -> Option<Place> {
        let permits = Arc::clone(&self.permits);
        let permit = match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if self.calls_have_all() => return None,
            Err(_) => {
                let _in_line = self.calls_in_line.try_acquire().ok()?;
                tokio::time::timeout(CALL_WAIT_MAX, permits.acquire_owned())
                    .await
                    .ok()?
                    .ok()?
            }
        };
        Some(Place {
            _of_call: Some(Arc::clone(&self.of_calls)),
            permit,
        })
    }

    /// Whether a call has every place. The places of events are not counted: an event's place may
    /// be taken before the event knows of it.
    fn calls_have_all(&self) -> bool {
        Arc::strong_count(&self.of_calls) > self.count
    }

    /// Gives out no more places. All waiting callers return.
    pub(super) fn close(&self) {
        self.permits.close();
        self.next_event.close();
    }
}
