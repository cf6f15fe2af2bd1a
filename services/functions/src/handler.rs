//! A deployed function as the Functions port runs it.
//!
//! Invariants
//! - An attempt that the runtime has refused was none, since nothing was run. What it is for stays hidden in its queue, and is asked for
//!   again until it is run; meanwhile nothing more is taken for its function, so that the rest lies in its queue untried (A8). That ends
//!   at [`REFUSED_MAX`], and where its archive shows that it can never be run: then it has failed by that.
//! - Of an attempt that fails once a stop has begun nobody hears: what ended it may have been that, as a crash might have (A3). What has
//!   succeeded meanwhile is done.

use std::{
    future, mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Event, Handler, LogThrottle,
    functions::{Failure, Room},
    runtime::{FunctionError, Invocation, Ran, START_BOUND_MIN},
};
use tokio::sync::watch;

use crate::{
    batch::Batch,
    event, failure,
    service::{Inner, own_name, request_id, told_id},
    timer::Ticks,
};

/// For how long after a refusal an attempt is asked for again: what keeps a machine from starting processes, as a full disk or too much
/// work, is mostly over by then.
const REFUSED_MAX: Duration = Duration::from_mins(10);
/// What has not been refused for so long has begun.
const BEGUN_WITHIN: Duration = Duration::from_secs(20);
/// How long to wait in between: this, doubled each time, up to the other.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What all else of an attempt takes at the most: handing it over, and ending an instance.
const MARGIN: Duration = Duration::from_mins(1);

/// How long an attempt of an event may take in all: the runtime bounds a start and a run by themselves, and says which of them was too
/// long, so this is never to come before that. An event is taken only once it has a place (A8), but where a deployment has retired that
/// it waits for one of the next, until whoever has that has started and run; and it may be refused for a while.
pub(crate) fn attempt_max(timeout: Duration) -> Duration {
    2 * (timeout.max(START_BOUND_MIN) + timeout) + REFUSED_MAX + MARGIN
}

/// Runs whatever is deployed under `name` at the time.
#[derive(Debug)]
pub(crate) struct Deployed {
    pub(crate) name: String,
    service: Weak<Inner>,
    ticks: Ticks,
    refusals: Refusals,
}

/// Whether all instances are being ended, whatever they are at.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Has no end if it has begun.
    async fn unless_begun(&self) {
        if self.0.load(Ordering::Acquire) {
            future::pending::<()>().await;
        }
    }
}

/// Attempts that were refused and are to be asked for again.
#[derive(Debug, Default)]
struct Refusals {
    /// How many there are.
    count: watch::Sender<usize>,
    outage: Mutex<LogThrottle>,
}

/// One of them.
struct Refused<'of>(&'of Refusals);

impl Refusals {
    fn one_more(&self) -> Refused<'_> {
        self.count.send_modify(|count| *count += 1);
        Refused(self)
    }

    /// Ends once there are none.
    async fn over(&self) {
        // Without an error: it is there as long as this is.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Refused<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
        if *self.0.count.borrow() == 0 {
            *self.0.outage.lock() = LogThrottle::default();
        }
    }
}

#[async_trait]
impl Handler for Deployed {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.handle_in(Room::default(), event).await
    }

    /// A place among its instances (A8). One that was removed has none: what waits for it is not tried, however long, and by
    /// nobody again and again.
    async fn room(&self) -> Room {
        loop {
            self.refusals.over().await;
            let Some(service) = self.service.upgrade() else {
                return Room::default();
            };
            service.stop.unless_begun().await;
            let changed = service.changed();
            let Some(function) = service.function(&self.name) else {
                drop(service);
                changed.await;
                continue;
            };
            // None: it was deployed anew meanwhile, and may be gone.
            if let Some(room) = service.parts.runtime.room(&function).await {
                return room;
            }
        }
    }

    async fn handle_in(&self, room: Room, event: Event) -> Result<Bytes, Failure> {
        let service = self
            .service
            .upgrade()
            .ok_or_else(|| Failure::new("the server stops"))?;
        match event {
            Event::Call { id, payload } => {
                let id = id.map_or_else(|| service.new_id(), |id| request_id(&id));
                self.run(&service, room, id, payload).await
            }
            Event::Messages { queue, deliveries } => {
                let batch = Batch {
                    queue: service.own_queue_name(&self.name, queue),
                    deliveries,
                };
                self.run_batch(&service, room, &batch).await
            }
            Event::Timer => {
                self.ticks.tick(&service, &self.name).await;
                Ok(Bytes::new())
            }
            Event::Failed {
                function,
                id,
                payload,
                reason,
            } => {
                let id = id.map_or_else(|| service.new_id(), |id| request_id(&id));
                let failed = Told {
                    function: &function,
                    id: &id,
                    payload: &payload,
                    reason: &reason,
                };
                let (own_id, payload) = failed.to(&self.name, &service);
                self.run(&service, room, own_id, payload).await
            }
        }
    }
}

/// An event that `function` gave up on, of which another is told.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) function: &'a str,
    /// Its request id.
    pub(crate) id: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) reason: &'a str,
}

impl Told<'_> {
    /// The request id under which `told` runs for it, and what that is given now.
    pub(crate) fn to(&self, told: &str, service: &Inner) -> (String, Bytes) {
        let Self {
            function,
            id,
            payload,
            reason,
        } = *self;
        let function = own_name(function);
        let attempts = service.retries(function).map(|retries| 1 + retries);
        let failed = event::Failed {
            function,
            id,
            payload,
            reason,
            attempts,
        };
        (
            told_id(told, function, id),
            event::failed(&failed, service.parts.clock.now()),
        )
    }
}

impl Deployed {
    pub(crate) fn new(name: &str, service: Weak<Inner>) -> Self {
        Self {
            name: name.to_owned(),
            service,
            ticks: Ticks::default(),
            refusals: Refusals::default(),
        }
    }

    pub(crate) async fn run(
        &self,
        service: &Arc<Inner>,
        room: Room,
        id: String,
        payload: Bytes,
    ) -> Result<Bytes, Failure> {
        let ran = self.started(service, room, &id, &payload).await;
        let failed = |FunctionError { payload }| Failure::new(failure::kept(&payload));
        let ran = ran.and_then(|ran| ran.result.map_err(failed));
        if ran.is_err() {
            service.stop.unless_begun().await;
        }
        ran
    }

    /// What came of a run, once there was one. Errors: why there will be none.
    async fn started(
        &self,
        service: &Arc<Inner>,
        mut room: Room,
        id: &str,
        payload: &Bytes,
    ) -> Result<Ran, Failure> {
        let (runtime, clock) = (&service.parts.runtime, &service.parts.clock);
        let (mut pause, longest) = PAUSES;
        let (mut since, mut refused_now) = (None, None);
        loop {
            let function = service.function(&self.name).ok_or_else(|| {
                Failure::new(format!("there is no function {:?} any more", self.name))
            })?;
            let room = mem::take(&mut room);
            let invocation = Invocation {
                room,
                ..Invocation::new(id.to_owned(), payload.clone(), true)
            };
            let mut run = runtime.run(&function, invocation);
            let ran = tokio::select! {
                biased;
                ran = &mut run => ran,
                () = clock.sleep(BEGUN_WITHIN) => {
                    refused_now = None;
                    run.await
                }
            };
            let refused = match ran {
                Ok(ran) => return Ok(ran),
                Err(refused) => refused,
            };
            service.stop.unless_begun().await;
            refused_now.get_or_insert_with(|| self.refusals.one_more());
            let now = clock.monotonic();
            let begun = *since.get_or_insert(now);
            // What is deployed meanwhile may be there.
            let is_current = service
                .function(&self.name)
                .is_some_and(|now| now.revision == function.revision);
            let is_over = now.since(begun) >= REFUSED_MAX;
            if is_over || is_current && runtime.check(&function).await.is_err() {
                return Err(Failure::new(refused.to_string()));
            }
            if let Some(lasts) = self
                .refusals
                .outage
                .lock()
                .failed(now, &refused.to_string())
            {
                let function = &self.name;
                tracing::warn!(function, %refused, ?lasts, "what a function has to do is not begun");
            }
            clock.sleep(pause).await;
            pause = (2 * pause).min(longest);
        }
    }
}
