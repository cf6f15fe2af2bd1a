//! Functions that break N1 to N7.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{AbortHandle, Either, abortable, join, select};

use super::Broken;
use crate::{
    Clock, Event, Functions, Handler, Receipt, Result,
    contract::functions::{Register, Subject},
    decorate::FunctionsDecorator,
    functions::{Definition, Failure},
};

/// Every broken provider of functions, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("N1", "RepeatsInvocations", |subject| {
        altered(subject, RepeatsInvocations)
    }),
    Broken::new("N2", "LosesEvents", |subject| altered(subject, LosesEvents)),
    Broken::new("N2", "TriesOnce", |subject| {
        registering(subject, tries_once)
    }),
    Broken::new("N2", "ForgetsExceptionHandlers", |subject| {
        registering(subject, forgets_exception_handler)
    }),
    Broken::new(
        "N2",
        "DropsEventsWithoutHandler",
        drops_events_without_handler,
    ),
    Broken::new("N3", "RunsGroupsTwice", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(Twice(honest)))
        })
    }),
    Broken::new("N3", "AcknowledgesFailures", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(Content(honest)))
        })
    }),
    Broken::new("N3", "ForgetsWhatWasCompleted", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(AllOrNothing(honest)))
        })
    }),
    Broken::new("N3", "TriesTheHopeless", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(TriesTheHopeless(honest)))
        })
    }),
    Broken::new("N3", "NamesAnotherQueue", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(NamesAnotherQueue::of(honest)))
        })
    }),
    Broken::new("N3", "GivesAgainWhileItRuns", gives_again_while_it_runs),
    Broken::new("N3", "DropsWhatRuns", drops_what_runs),
    Broken::new("N4", "StartsAgainWhenArmed", |subject| {
        altered(subject, StartsAgainWhenArmed)
    }),
    Broken::new("N4", "NeverDisarms", |subject| {
        altered(subject, NeverDisarms)
    }),
    Broken::new("N4", "RunsOnceMore", runs_once_more),
    Broken::new("N4", "FiresTooOften", |subject| {
        altered(subject, FiresTooOften)
    }),
    Broken::new("N5", "NeverTimesOut", |subject| {
        registering(subject, never_times_out)
    }),
    Broken::new("N1", "KnowsEverything", |subject| {
        altered(subject, KnowsEverything)
    }),
    Broken::new("N6", "ForgetsIds", |subject| altered(subject, ForgetsIds)),
    Broken::new("N6", "HidesIdsOfFailures", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(HidesIdsOfFailures(honest)))
        })
    }),
    Broken::new(
        "N6",
        "HidesIdsOfFailedHandlers",
        hides_ids_of_failed_handlers,
    ),
    Broken::new("N7", "AsksForNoRoom", |subject| {
        registering(subject, |definition| {
            handling(definition, |honest| Arc::new(AsksForNoRoom(honest)))
        })
    }),
];

fn altered<D: FunctionsDecorator + 'static>(
    subject: Subject,
    around: fn(Arc<dyn Functions>) -> D,
) -> Subject {
    Subject {
        functions: Arc::new(around(subject.functions)),
        ..subject
    }
}

/// The same provider, which registers altered definitions.
fn registering(subject: Subject, change: fn(Definition) -> Definition) -> Subject {
    let honest = Arc::clone(&subject.register);
    let register: Arc<dyn Register> =
        Arc::new(move |definition| honest.register(change(definition)));
    Subject {
        register,
        ..subject
    }
}

fn handling(
    definition: Definition,
    around: fn(Arc<dyn Handler>) -> Arc<dyn Handler>,
) -> Definition {
    Definition {
        handler: around(definition.handler),
        ..definition
    }
}

/// Gives up an event if its exception handler is missing at the last attempt (N2).
fn drops_events_without_handler(subject: Subject) -> Subject {
    let (honest, known) = (
        Arc::clone(&subject.register),
        Arc::<Mutex<BTreeSet<String>>>::default(),
    );
    let register: Arc<dyn Register> = Arc::new(move |definition: Definition| {
        locked(&known).insert(definition.name.clone().into_owned());
        let Some(waited_for) = definition.options.exception_handler.clone() else {
            return honest.register(definition);
        };
        let (known, attempts) = (
            Arc::clone(&known),
            AtomicU32::new(definition.options.attempts_max),
        );
        let handler = DropsEventsWithoutHandler {
            honest: definition.handler,
            waited_for,
            known,
            attempts,
        };
        honest.register(Definition {
            handler: Arc::new(handler),
            ..definition
        });
    });
    Subject {
        register,
        ..subject
    }
}

#[derive(Debug)]
struct DropsEventsWithoutHandler {
    honest: Arc<dyn Handler>,
    waited_for: String,
    known: Arc<Mutex<BTreeSet<String>>>,
    attempts: AtomicU32,
}

#[async_trait]
impl Handler for DropsEventsWithoutHandler {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let handled = self.honest.handle(event).await;
        let is_last = self.attempts.fetch_sub(1, Ordering::Relaxed) == 1;
        let is_dropped = is_last && !locked(&self.known).contains(&self.waited_for);
        if is_dropped {
            Ok(Bytes::new())
        } else {
            handled
        }
    }
}

/// Disarms a timer when it has fired once more (N4).
fn runs_once_more(subject: Subject) -> Subject {
    let disarming = Arc::<Mutex<BTreeSet<String>>>::default();
    let (honest, register) = (
        Arc::clone(&subject.functions),
        Arc::clone(&subject.register),
    );
    let functions = RunsOnceMore {
        honest: Arc::clone(&honest),
        disarming: Arc::clone(&disarming),
    };
    let register: Arc<dyn Register> = Arc::new(move |definition: Definition| {
        let (functions, disarming) = (Arc::clone(&honest), Arc::clone(&disarming));
        let handler = DisarmsLater {
            name: definition.name.clone(),
            honest: definition.handler,
            functions,
            disarming,
        };
        register.register(Definition {
            handler: Arc::new(handler),
            ..definition
        });
    });
    Subject {
        functions: Arc::new(functions),
        register,
        ..subject
    }
}

#[derive(Debug)]
struct RunsOnceMore {
    honest: Arc<dyn Functions>,
    disarming: Arc<Mutex<BTreeSet<String>>>,
}

impl FunctionsDecorator for RunsOnceMore {
    fn inner(&self) -> &dyn Functions {
        &*self.honest
    }
    async fn disarm_timer(&self, function: &str) -> Result<()> {
        locked(&self.disarming).insert(function.to_owned());
        Ok(())
    }
}

#[derive(Debug)]
struct DisarmsLater {
    name: std::borrow::Cow<'static, str>,
    honest: Arc<dyn Handler>,
    functions: Arc<dyn Functions>,
    disarming: Arc<Mutex<BTreeSet<String>>>,
}

#[async_trait]
impl Handler for DisarmsLater {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        if matches!(event, Event::Timer) && locked(&self.disarming).remove(&*self.name) {
            self.functions.disarm_timer(&self.name).await?;
        }
        self.honest.handle(event).await
    }
}

/// Delivers a group's messages again after a quarter of their invocation's timeout (N3).
fn gives_again_while_it_runs(subject: Subject) -> Subject {
    let (honest, clock) = (Arc::clone(&subject.register), Arc::clone(&subject.clock));
    let register: Arc<dyn Register> = Arc::new(move |definition: Definition| {
        let (hidden, clock) = (definition.options.timeout / 4, Arc::clone(&clock));
        let handler = GivesAgain {
            honest: definition.handler,
            hidden,
            clock,
        };
        honest.register(Definition {
            handler: Arc::new(handler),
            ..definition
        });
    });
    Subject {
        register,
        ..subject
    }
}

#[derive(Debug)]
struct GivesAgain {
    honest: Arc<dyn Handler>,
    hidden: Duration,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl Handler for GivesAgain {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Messages { .. } = event else {
            return self.honest.handle(event).await;
        };
        let first = self.honest.handle(event.clone());
        match select(first, self.clock.sleep(self.hidden)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), first)) => join(first, self.honest.handle(event)).await.0,
        }
    }
}

/// Ends running invocations when a trigger is disarmed (N3).
fn drops_what_runs(subject: Subject) -> Subject {
    let running = Arc::<Mutex<Vec<AbortHandle>>>::default();
    let (honest, dropped) = (Arc::clone(&subject.register), Arc::clone(&running));
    let register: Arc<dyn Register> = Arc::new(move |definition: Definition| {
        let handler = DroppedWhileItRuns {
            honest: definition.handler,
            running: Arc::clone(&running),
        };
        honest.register(Definition {
            handler: Arc::new(handler),
            ..definition
        });
    });
    let functions = DropsWhatRuns {
        honest: subject.functions,
        running: dropped,
    };
    Subject {
        functions: Arc::new(functions),
        register,
        ..subject
    }
}

#[derive(Debug)]
struct DropsWhatRuns {
    honest: Arc<dyn Functions>,
    running: Arc<Mutex<Vec<AbortHandle>>>,
}

impl FunctionsDecorator for DropsWhatRuns {
    fn inner(&self) -> &dyn Functions {
        &*self.honest
    }
    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        locked(&self.running)
            .drain(..)
            .for_each(|running| running.abort());
        self.honest.disarm_queue(queue).await
    }
}

#[derive(Debug)]
struct DroppedWhileItRuns {
    honest: Arc<dyn Handler>,
    running: Arc<Mutex<Vec<AbortHandle>>>,
}

#[async_trait]
impl Handler for DroppedWhileItRuns {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let (run, dropped) = abortable(self.honest.handle(event));
        locked(&self.running).push(dropped);
        run.await.unwrap_or_else(|_| Err(Failure::new("dropped")))
    }
}

/// Reports the failure of an exception handler without the id of the event that the handler
/// received (N6).
fn hides_ids_of_failed_handlers(subject: Subject) -> Subject {
    let (honest, handlers) = (
        Arc::clone(&subject.register),
        Arc::<Mutex<BTreeSet<String>>>::default(),
    );
    let register: Arc<dyn Register> = Arc::new(move |definition: Definition| {
        locked(&handlers).extend(definition.options.exception_handler.clone());
        let handler = HidesIdsOfHandlers {
            honest: definition.handler,
            handlers: Arc::clone(&handlers),
        };
        honest.register(Definition {
            handler: Arc::new(handler),
            ..definition
        });
    });
    Subject {
        register,
        ..subject
    }
}

#[derive(Debug)]
struct HidesIdsOfHandlers {
    honest: Arc<dyn Handler>,
    handlers: Arc<Mutex<BTreeSet<String>>>,
}

#[async_trait]
impl Handler for HidesIdsOfHandlers {
    async fn handle(&self, mut event: Event) -> Result<Bytes, Failure> {
        if let Event::Failed { function, id, .. } = &mut event
            && locked(&self.handlers).contains(function)
        {
            *id = None;
        }
        self.honest.handle(event).await
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats a failed invocation (N1).
#[derive(Debug)]
struct RepeatsInvocations(Arc<dyn Functions>);

impl FunctionsDecorator for RepeatsInvocations {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        match self.0.invoke(function, payload.clone()).await {
            Ok(result) => Ok(result),
            Err(_) => self.0.invoke(function, payload).await,
        }
    }
}

/// Accepts events and drops them (N2).
#[derive(Debug)]
struct LosesEvents(Arc<dyn Functions>);

impl FunctionsDecorator for LosesEvents {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn send(&self, _: &str, _: Option<Bytes>, _: Bytes) -> Result<Receipt> {
        Ok(Receipt::default())
    }
}

/// Gives every event one attempt (N2).
fn tries_once(mut definition: Definition) -> Definition {
    definition.options.attempts_max = 1;
    definition
}

/// Calls no exception handler (N2).
fn forgets_exception_handler(mut definition: Definition) -> Definition {
    definition.options.exception_handler = None;
    definition
}

/// Lets every invocation run on (N5).
fn never_times_out(mut definition: Definition) -> Definition {
    definition.options.timeout = Duration::from_hours(1);
    definition
}

/// Runs two invocations of a group at a time (N3).
#[derive(Debug)]
struct Twice(Arc<dyn Handler>);

#[async_trait]
impl Handler for Twice {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        if let Event::Messages { .. } = event {
            return join(self.0.handle(event.clone()), self.0.handle(event))
                .await
                .0;
        }
        self.0.handle(event).await
    }
}

/// Takes events without waiting for room (N7).
#[derive(Debug)]
struct AsksForNoRoom(Arc<dyn Handler>);

#[async_trait]
impl Handler for AsksForNoRoom {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.0.handle(event).await
    }
}

/// Acknowledges the messages of a failed invocation (N3).
#[derive(Debug)]
struct Content(Arc<dyn Handler>);

#[async_trait]
impl Handler for Content {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        Ok(self.0.handle(event).await.unwrap_or_default())
    }
}

/// Delivers messages again that an invocation had completed before it failed (N3).
#[derive(Debug)]
struct AllOrNothing(Arc<dyn Handler>);

#[async_trait]
impl Handler for AllOrNothing {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.0
            .handle(event)
            .await
            .map_err(|failure| Failure::new(failure.reason))
    }
}

/// Delivers hopeless messages again (N3).
#[derive(Debug)]
struct TriesTheHopeless(Arc<dyn Handler>);

#[async_trait]
impl Handler for TriesTheHopeless {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.0
            .handle(event)
            .await
            .map_err(|failure| Failure::after(failure.completed, failure.reason))
    }
}

/// Names the queue of the first batch for every batch (N3).
#[derive(Debug)]
struct NamesAnotherQueue {
    honest: Arc<dyn Handler>,
    first: OnceLock<String>,
}

impl NamesAnotherQueue {
    fn of(honest: Arc<dyn Handler>) -> Self {
        Self {
            honest,
            first: OnceLock::new(),
        }
    }
}

#[async_trait]
impl Handler for NamesAnotherQueue {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let event = match event {
            Event::Messages { queue, deliveries } => Event::Messages {
                queue: self.first.get_or_init(|| queue).clone(),
                deliveries,
            },
            event => event,
        };
        self.honest.handle(event).await
    }
}

/// Leaves timers armed (N4).
#[derive(Debug)]
struct NeverDisarms(Arc<dyn Functions>);

impl FunctionsDecorator for NeverDisarms {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn disarm_timer(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

/// Restarts a timer's period whenever it is armed (N4).
#[derive(Debug)]
struct StartsAgainWhenArmed(Arc<dyn Functions>);

impl FunctionsDecorator for StartsAgainWhenArmed {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        self.0.disarm_timer(function).await?;
        self.0.arm_timer(function, period).await
    }
}

/// Fires timers four times per period (N4).
#[derive(Debug)]
struct FiresTooOften(Arc<dyn Functions>);

impl FunctionsDecorator for FiresTooOften {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        self.0.arm_timer(function, period / 4).await
    }
}

/// Reports every name as a function (N1).
#[derive(Debug)]
struct KnowsEverything(Arc<dyn Functions>);

impl FunctionsDecorator for KnowsEverything {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn knows(&self, _: &str) -> Result<bool> {
        Ok(true)
    }
}

/// Sends events without their ids (N6).
#[derive(Debug)]
struct ForgetsIds(Arc<dyn Functions>);

impl FunctionsDecorator for ForgetsIds {
    fn inner(&self) -> &dyn Functions {
        &*self.0
    }
    async fn send(&self, function: &str, _: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        self.0.send(function, None, payload).await
    }
}

/// Passes events to exception handlers without ids (N6).
#[derive(Debug)]
struct HidesIdsOfFailures(Arc<dyn Handler>);

#[async_trait]
impl Handler for HidesIdsOfFailures {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let event = match event {
            Event::Failed {
                function,
                payload,
                reason,
                ..
            } => Event::Failed {
                function,
                id: None,
                payload,
                reason,
            },
            event => event,
        };
        self.0.handle(event).await
    }
}
