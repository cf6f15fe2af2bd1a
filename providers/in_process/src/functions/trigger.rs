//! Queue triggers: one task that takes messages and drives the invocations they start (N3).
//!
//! Invocations of different groups run side by side within the task; the queue gives no second batch of a
//! group while the first is with us: messages are hidden for a little longer than the function may run or,
//! where another process is to have them soon after this one's death, for a short time again and again.
//!
//! Nothing is taken before the function has room for it (N7): so the task waits for the queue, then for a permit, then takes.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use ports::{
    ErrorKind, Result,
    functions::{Definition, Event, Failure, Permit, QueueTrigger},
    queue::{Delivery, Handle},
};
use tokio::sync::Notify;

use super::{event::Envelope, invocation::Invocation, registry::Inner};

/// The most invocations of one trigger at a time; further groups wait in the queue.
const INVOCATIONS_MAX: usize = 1024;

/// How much longer than the function's timeout its messages stay hidden.
const HIDDEN_MARGIN: Duration = Duration::from_secs(5);

/// How long a failed message waits before it is given again: this, doubled with each attempt, up to the other.
const BACKOFF_MS: (u64, u64) = (50, 30_000);

/// How long the task waits when the queue itself is out of service.
pub(super) const QUEUE_PAUSE: Duration = Duration::from_millis(100);

/// What a trigger's messages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Messages for the function to see as such.
    Messages,
    /// Events sent to the function.
    Events,
}

/// How messages are kept from others while a function has them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hiding {
    /// For longer than the function may run.
    ForTheTimeout,
    /// For this long, and again before it is over.
    WhileRunning(Duration),
}

/// How often a message is hidden again before it would be given to somebody else.
const HIDDEN_AGAIN: u32 = 3;

/// Tells a trigger's task to end.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopped: AtomicBool,
    notify: Notify,
}

impl Stop {
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

type Run<'task> = Pin<Box<dyn Future<Output = ()> + Send + 'task>>;

/// Takes messages until stopped, then lets what runs finish.
pub(super) async fn run(functions: Arc<Inner>, trigger: QueueTrigger, work: Work, stop: Arc<Stop>) {
    let mut running: FuturesUnordered<Run<'_>> = FuturesUnordered::new();
    let task = Task {
        functions: &functions,
        trigger: &trigger,
        work,
    };
    let mut next = task.wait();
    while !stop.is_stopped() {
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            () = stop.notify.notified() => {}
            came = &mut next, if running.len() < INVOCATIONS_MAX => {
                next = task.after(came, &mut running);
            }
        }
    }
    // What was asked for before the stop counts as running: given to nobody, it would be hidden for long.
    if next.is_asked_for {
        let came = next.await;
        drop(task.after(came, &mut running));
    } else {
        // Polled no more it would keep its place in the line for a permit, and everybody out who stands behind it, until all has ended.
        drop(next);
    }
    while running.next().await.is_some() {}
}

/// What a trigger waits for beside its invocations.
struct Next<'task> {
    /// Whether it takes messages, which are then nobody else's.
    receives: bool,
    /// Whether it may have taken some already.
    is_asked_for: bool,
    step: Pin<Box<dyn Future<Output = Came> + Send + 'task>>,
}

/// What came of it.
enum Came {
    /// The queue may have something.
    Ready,
    /// The function has room for what it has.
    Permit(Permit),
    /// This, or nothing, with that permit.
    Batch(Permit, Vec<Delivery>),
    /// The queue did not answer; some time has passed.
    Failed,
}

impl Future for Next<'_> {
    type Output = Came;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Came> {
        self.is_asked_for = self.receives;
        self.step.as_mut().poll(context)
    }
}

/// What one trigger's runs share.
#[derive(Debug, Clone, Copy)]
struct Task<'task> {
    functions: &'task Arc<Inner>,
    trigger: &'task QueueTrigger,
    work: Work,
}

impl<'task> Task<'task> {
    /// Starts a run of what came, and says what to wait for then: groups are taken one by one until none is in line.
    fn after(self, came: Came, running: &mut FuturesUnordered<Run<'task>>) -> Next<'task> {
        match came {
            Came::Ready => self.ask_for_room(),
            Came::Permit(permit) => self.receive(permit),
            Came::Batch(_, deliveries) if deliveries.is_empty() => self.wait(),
            Came::Batch(permit, deliveries) => {
                running.push(self.start(permit, deliveries));
                self.ask_for_room()
            }
            Came::Failed => self.wait(),
        }
    }

    /// Ends once the queue may have something, or may be asked again.
    fn wait(self) -> Next<'task> {
        let step = async move {
            let ready = self.functions.queue.ready(&self.trigger.queue).await;
            self.or_pause(ready.map(|()| Came::Ready)).await
        };
        Next {
            receives: false,
            is_asked_for: false,
            step: Box::pin(step),
        }
    }

    /// Ends once the function has room for one more invocation.
    fn ask_for_room(self) -> Next<'task> {
        let step = async move { Came::Permit(self.definition().handler.permit().await) };
        Next {
            receives: false,
            is_asked_for: false,
            step: Box::pin(step),
        }
    }

    /// Ends with the messages of one group, if one is in line.
    fn receive(self, permit: Permit) -> Next<'task> {
        let step = async move {
            let hidden = match self.functions.hiding {
                Hiding::ForTheTimeout => self.definition().options.timeout + HIDDEN_MARGIN,
                Hiding::WhileRunning(hidden) => hidden,
            };
            let hidden_ms = hidden.as_millis() as u64;
            let batch = self.trigger.batch_messages_max.max(1);
            let received = self
                .functions
                .queue
                .receive_hidden(&self.trigger.queue, batch, Some(hidden_ms))
                .await;
            self.or_pause(received.map(|deliveries| Came::Batch(permit, deliveries)))
                .await
        };
        Next {
            receives: true,
            is_asked_for: false,
            step: Box::pin(step),
        }
    }

    async fn or_pause(self, came: Result<Came>) -> Came {
        match came {
            Ok(came) => came,
            Err(error) => {
                tracing::debug!(%error, queue = self.trigger.queue, "a triggered queue is out of service");
                tokio::time::sleep(QUEUE_PAUSE).await;
                Came::Failed
            }
        }
    }

    fn start(self, permit: Permit, deliveries: Vec<Delivery>) -> Run<'task> {
        let definition = self.definition();
        match self.work {
            Work::Messages => Box::pin(self.run_messages(permit, definition, deliveries)),
            Work::Events => Box::pin(self.run_event(permit, definition, deliveries)),
        }
    }

    fn definition(self) -> Arc<Definition> {
        self.functions
            .definition(&self.trigger.function)
            .expect("only what is registered is armed, and stays so")
    }

    /// One invocation with messages of one group.
    async fn run_messages(
        self,
        permit: Permit,
        definition: Arc<Definition>,
        deliveries: Vec<Delivery>,
    ) {
        let handles: Vec<_> = deliveries
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        let Some(handle) = handles.first() else {
            return;
        };
        let event = Event::Messages {
            queue: self.trigger.queue.clone(),
            deliveries,
        };
        let invocation = Invocation::within(permit, definition, event);
        let (completed, failure) = match self.kept(handle, invocation).await {
            Ok(_) => (handles.len(), None),
            Err(failure) => (failure.completed.min(handles.len()), Some(failure)),
        };
        let queue = &self.trigger.queue;
        if completed > 0
            && let Err(error) = self
                .functions
                .queue
                .acknowledge(queue, &handles[..completed])
                .await
        {
            tracing::warn!(%error, queue, "handled messages will be delivered again");
        }
        match (failure, handles.get(completed)) {
            (
                Some(Failure {
                    is_hopeless: true,
                    reason,
                    ..
                }),
                Some(handle),
            ) => {
                self.give_up(handle, &reason).await;
            }
            (Some(failure), Some(handle)) => self.give_back(handle, &failure).await,
            (None, _) | (_, None) => {}
        }
    }

    /// One invocation with one event.
    async fn run_event(
        self,
        mut permit: Permit,
        definition: Arc<Definition>,
        deliveries: Vec<Delivery>,
    ) {
        for delivery in deliveries {
            let Delivery {
                handle,
                deduplication: id,
                body,
                ..
            } = delivery;
            let attempts_max = attempts_max(&definition);
            let outcome = match Envelope::decode(&body) {
                // Its last attempt came to no end, or its exception handler could not be given it.
                Ok(envelope) if handle.attempt > attempts_max => {
                    let reason =
                        format!("failed {attempts_max} times; what it said last is not known");
                    Err((Failure::new(reason), envelope))
                }
                Ok(envelope) => {
                    let event = envelope.clone().into_event(id.clone());
                    let permit = std::mem::take(&mut permit);
                    let invocation = Invocation::within(permit, Arc::clone(&definition), event);
                    let ran = self.kept(&handle, invocation).await;
                    ran.map(drop).map_err(|failure| (failure, envelope))
                }
                Err(error) => Err((Failure::from(error), Envelope::Call(body))),
            };
            let left = match outcome {
                Ok(()) => Left::Done,
                Err((failure, _)) if handle.attempt < attempts_max => Left::Again(failure),
                Err((failure, envelope)) => {
                    self.failed_for_good(&definition, id, envelope, failure)
                        .await
                }
            };
            match left {
                Left::Done => self.acknowledge_event(handle).await,
                Left::Again(failure) => self.give_back(&handle, &failure).await,
                Left::Hopeless(reason) => self.give_up(&handle, &reason).await,
            }
        }
    }

    /// Its exception handler is told, if there is one that has not given up on it before: among functions that are told of each other's
    /// failures in a circle an event would go round for ever.
    async fn failed_for_good(
        self,
        definition: &Definition,
        id: Option<Bytes>,
        envelope: Envelope,
        failure: Failure,
    ) -> Left {
        let Some(handler) = &definition.options.exception_handler else {
            return Left::Hopeless(failure.reason);
        };
        if let Some(why) = why_it_ends(&envelope, &definition.name, handler) {
            tracing::warn!(
                queue = self.trigger.queue,
                why,
                "an event is kept as a dead letter"
            );
            return Left::Hopeless(format!("{why}; it failed last with: {}", failure.reason));
        }
        let failed = envelope.failed(&definition.name, id, &failure.reason);
        if self.hand_on(handler, &failed).await {
            Left::Done
        } else {
            Left::Again(failure)
        }
    }

    async fn acknowledge_event(self, handle: Handle) {
        let queue = &self.trigger.queue;
        if let Err(error) = self.functions.queue.acknowledge(queue, &[handle]).await {
            tracing::warn!(%error, queue, "a handled event will be delivered again");
        }
    }

    /// Runs to the end, with the batch of `handle` hidden from others.
    async fn kept(self, handle: &Handle, invocation: Invocation) -> Result<Bytes, Failure> {
        let Hiding::WhileRunning(hidden) = self.functions.hiding else {
            return invocation.await;
        };
        let hide_again = async {
            loop {
                tokio::time::sleep(hidden / HIDDEN_AGAIN).await;
                let queue = &self.trigger.queue;
                let hidden_ms = hidden.as_millis() as u64;
                if let Err(error) = self.functions.queue.extend(queue, handle, hidden_ms).await {
                    tracing::debug!(%error, queue, "messages may be given to another while a function has them");
                }
            }
        };
        tokio::select! {
            biased;
            ran = invocation => ran,
            () = hide_again => unreachable!("it has no end"),
        }
    }

    /// Gives an event that failed for good to the exception handler; answers whether that has it. One that cannot be given it
    /// is tried again at each delivery.
    async fn hand_on(self, handler: &str, failed: &Envelope) -> bool {
        // Its own queue first, then ours is acknowledged: a crash in between hands it on twice, never not.
        for tries_left in (0..HAND_ON_TRIES).rev() {
            match self.functions.send_event(handler, None, failed).await {
                Ok(_) => return true,
                Err(error) if tries_left == 0 || error.kind() == ErrorKind::Invalid => {
                    tracing::warn!(%error, handler, "an exception handler could not be given an event yet");
                    return false;
                }
                // What the function said goes with this delivery.
                Err(_) => tokio::time::sleep(QUEUE_PAUSE).await,
            }
        }
        false
    }

    async fn give_back(self, handle: &Handle, failure: &Failure) {
        let (first, longest) = BACKOFF_MS;
        let doublings = handle.attempt.saturating_sub(1).min(16);
        let delay_ms = (first << doublings).min(longest);
        let queue = &self.trigger.queue;
        let (reason, attempt) = (&failure.reason, handle.attempt);
        if attempt < ALARM_ATTEMPT {
            tracing::debug!(queue, reason, attempt, delay_ms, "an invocation failed");
        } else {
            tracing::warn!(
                queue,
                reason,
                attempt,
                delay_ms,
                "an invocation fails again and again"
            );
        }
        if let Err(error) = self
            .functions
            .queue
            .release(queue, handle, delay_ms, &failure.reason)
            .await
        {
            tracing::warn!(%error, queue, "messages stay hidden until their timeout");
        }
    }

    /// What failed for good, and nobody is told of, is kept as a dead letter.
    async fn give_up(self, handle: &Handle, reason: &str) {
        let (queue, attempt) = (&self.trigger.queue, handle.attempt);
        tracing::debug!(
            queue,
            reason,
            attempt,
            "an event or a message has failed for good"
        );
        if let Err(error) = self.functions.queue.give_up(queue, handle, reason).await {
            tracing::warn!(%error, queue, "what failed for good stays hidden until its timeout");
        }
    }
}

/// What becomes of an event after a delivery.
enum Left {
    /// It succeeded, or somebody else has it.
    Done,
    /// It is delivered again.
    Again(Failure),
    /// It is given up, because of this.
    Hopeless(String),
}

/// Why an event that `function` gave up on is not handed on to `handler`; none: it is.
fn why_it_ends(envelope: &Envelope, function: &str, handler: &str) -> Option<String> {
    let before = envelope.given_up_by();
    let has_failed = handler == function || before.iter().any(|other| other == handler);
    if !has_failed && before.len() < HANDED_ON_MAX {
        return None;
    }
    let mut chain: Vec<_> = before.iter().map(String::as_str).collect();
    chain.extend([function, handler]);
    let why = if has_failed {
        "its exception handlers are told of each other's failures in a circle"
    } else {
        "too many exception handlers have failed"
    };
    Some(format!("{why} ({})", chain.join(" -> ")))
}

/// How many exception handlers are told of one event, each of the failure of the one before it.
const HANDED_ON_MAX: usize = 16;

/// How often an event is tried to be given to an exception handler in one delivery.
const HAND_ON_TRIES: u32 = 10;

/// How often `definition` runs for one event at most.
pub(super) fn attempts_max(definition: &Definition) -> u32 {
    definition.options.attempts_max.max(1)
}

/// From this attempt of one message on, failures are worth somebody's attention.
const ALARM_ATTEMPT: u32 = 4;
