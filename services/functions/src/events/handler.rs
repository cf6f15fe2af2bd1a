//! A deployed function as the Functions port runs it.
//!
//! Invariants
//! - A refusal by the runtime is not an attempt, because nothing ran. The event stays hidden in its
//!   queue, and the handler asks the runtime again until it runs. Meanwhile it takes nothing more
//!   for this function, so that other events stay in their queue, untried (A8). After
//!   [`REFUSED_MAX`], or when the archive shows that the function can never run, the event has
//!   failed for that reason.
//! - An attempt that fails after a stop has begun is never reported: the stop may have caused the
//!   failure, as a crash would (A3). An attempt that succeeds after that counts.

pub(crate) mod batch;

use std::{
    future, mem,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use ports::{
    Event, Handler, LogThrottle,
    functions::{Failure, Permit},
    runtime::{FunctionError, Invocation, Ran, START_BOUND_MIN},
};
use tokio::sync::watch;

use self::batch::Batch;
use super::{
    context::Context,
    failure,
    format::{self, Failed},
    timers::TickLog,
};
use crate::ids::{notice_id, own_name, request_id};

/// How long a refused attempt is repeated. Most obstacles to a start, such as a full disk or high
/// load, are gone by then.
const REFUSED_MAX: Duration = Duration::from_mins(10);
/// An attempt that was not refused within this time has begun.
const BEGUN_WITHIN: Duration = Duration::from_secs(20);
/// The first and the longest pause between refused attempts. The pause doubles.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The bound on the rest of an attempt: handing it over, and ending an instance.
const MARGIN: Duration = Duration::from_mins(1);

/// The longest an attempt of an event may take in all.
///
/// The runtime bounds the start and the run itself and says which one was too long, so this bound
/// must never strike first. An event is taken only once it has a place among the instances (A8). If
/// a deployment retires that place, the event waits for one of the new revision, until the
/// invocation there has started and run. It may also be refused for a while.
pub(crate) fn attempt_max(timeout: Duration) -> Duration {
    2 * (timeout.max(START_BOUND_MIN) + timeout) + REFUSED_MAX + MARGIN
}

/// Runs the function that is deployed as `name` at the time of each event.
#[derive(Debug)]
pub(crate) struct DeployedHandler {
    name: String,
    context: Weak<Context>,
    ticks: TickLog,
    refusals: Refusals,
}

/// Attempts that the runtime refused and that are to be repeated.
#[derive(Debug, Default)]
struct Refusals {
    count: watch::Sender<usize>,
    outage: Mutex<LogThrottle>,
}

struct Refused<'of>(&'of Refusals);

impl Refusals {
    fn one_more(&self) -> Refused<'_> {
        self.count.send_modify(|count| *count += 1);
        Refused(self)
    }

    async fn over(&self) {
        // No error: the sender lives as long as `self`.
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
impl Handler for DeployedHandler {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.handle_with(Permit::default(), event).await
    }

    /// Reserves a place among the function's instances (A8). A removed function has none: its
    /// events wait untried, without limit and without polling.
    async fn permit(&self) -> Permit {
        loop {
            self.refusals.over().await;
            let Some(context) = self.context.upgrade() else {
                return Permit::default();
            };
            context.stop.unless_begun().await;
            let changed = context.lookup.catalogue.changed();
            let Some(function) = context.lookup.function(&self.name) else {
                drop(context);
                changed.await;
                continue;
            };
            // None: the function was deployed again meanwhile, or removed.
            if let Some(permit) = context.parts.runtime.permit(&function).await {
                return permit;
            }
        }
    }

    async fn handle_with(&self, permit: Permit, event: Event) -> Result<Bytes, Failure> {
        let context = self
            .context
            .upgrade()
            .ok_or_else(|| Failure::new("the server stops"))?;
        match event {
            Event::Call { id, payload } => {
                let id = id.map_or_else(|| context.new_id(), |id| request_id(&id));
                self.run(&context, permit, id, payload).await
            }
            Event::Messages { queue, deliveries } => {
                let batch = Batch {
                    queue: context.own_queue_name(&self.name, queue),
                    deliveries,
                };
                self.run_batch(&context, permit, &batch).await
            }
            Event::Timer => {
                self.ticks.tick(&context.timers, &self.name).await;
                Ok(Bytes::new())
            }
            Event::Failed {
                function,
                id,
                payload,
                reason,
            } => {
                let id = id.map_or_else(|| context.new_id(), |id| request_id(&id));
                let failed = Failed {
                    function: own_name(&function),
                    id: &id,
                    payload: &payload,
                    reason: &reason,
                };
                let (own_id, payload) = notice(&self.name, &failed, &context);
                self.run(&context, permit, own_id, payload).await
            }
        }
    }
}

/// The request id under which `notified` runs to learn of `failed`, and its payload as of now.
pub(crate) fn notice(notified: &str, failed: &Failed<'_>, context: &Context) -> (String, Bytes) {
    let retries = context.lookup.retries(failed.function);
    let attempts = retries.map(|retries| 1 + retries);
    (
        notice_id(notified, failed.function, failed.id),
        format::failed(failed, attempts, context.parts.clock.now()),
    )
}

impl DeployedHandler {
    pub(crate) fn new(name: &str, context: Weak<Context>) -> Self {
        Self {
            name: name.to_owned(),
            context,
            ticks: TickLog::default(),
            refusals: Refusals::default(),
        }
    }

    async fn run(
        &self,
        context: &Arc<Context>,
        permit: Permit,
        id: String,
        payload: Bytes,
    ) -> Result<Bytes, Failure> {
        let ran = self.started(context, permit, &id, &payload).await;
        let failed = |FunctionError { payload }| Failure::new(failure::kept(&payload));
        let ran = ran.and_then(|ran| ran.result.map_err(failed));
        if ran.is_err() {
            context.stop.unless_begun().await;
        }
        ran
    }

    /// Repeats the invocation until the runtime has run it. Errors: why it never will.
    async fn started(
        &self,
        context: &Arc<Context>,
        mut permit: Permit,
        id: &str,
        payload: &Bytes,
    ) -> Result<Ran, Failure> {
        let (runtime, clock) = (&context.parts.runtime, &context.parts.clock);
        let (mut pause, longest) = PAUSES;
        let (mut since, mut refused_now) = (None, None);
        loop {
            let function = context.lookup.function(&self.name).ok_or_else(|| {
                Failure::new(format!("there is no function {:?} any more", self.name))
            })?;
            let permit = mem::take(&mut permit);
            let invocation = Invocation {
                permit,
                ..Invocation::new(id.to_owned(), payload.clone(), true)
            };
            let mut run = pin!(context.run(&function, invocation));
            let ran = tokio::select! {
                biased;
                ran = &mut run => ran,
                () = clock.sleep(BEGUN_WITHIN) => {
                    refused_now = None;
                    run.await
                }
            };
            let refused = match ran {
                Some(Ok(ran)) => return Ok(ran),
                Some(Err(refused)) => refused,
                // The event is tried again after the next start.
                None => future::pending().await,
            };
            context.stop.unless_begun().await;
            refused_now.get_or_insert_with(|| self.refusals.one_more());
            let now = clock.monotonic();
            let begun = *since.get_or_insert(now);
            // A deployment since then may have changed what the check would find.
            let is_current = context
                .lookup
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
                tracing::warn!(function, %refused, ?lasts, "no instance can be started for the events of a function");
            }
            clock.sleep(pause).await;
            pause = (2 * pause).min(longest);
        }
    }
}
