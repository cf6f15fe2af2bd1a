//! Queue triggers: one task that receives messages and drives the invocations that they start (N3).
//!
//! Invocations of different groups run side by side within the task, and one may have messages of
//! several groups. The queue delivers no second batch of a group during the first one, because its
//! messages are hidden. They stay hidden a little longer than the function may run. Where another
//! process must take over soon after this one dies, they are hidden for a short time, which is
//! extended repeatedly.
//!
//! A batch of messages is not interrupted between two calls that need no wait. Its messages count
//! against the task's budget afterwards, so that other tasks run between batches.
//!
//! A message is received only after its function has capacity for it (N7). The task waits for the
//! queue, then for capacity, then receives.

use std::{
    future::Future,
    pin::Pin,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    stream::{FuturesUnordered, StreamExt},
};
use ports::{
    ErrorKind, Result,
    functions::{Definition, Event, Failure, Permit, QueueTrigger},
    queue::{Delivery, Handle},
};
use tokio::{
    sync::Notify,
    task::coop::{consume_budget, unconstrained},
};

use super::{
    Inner,
    busy_thread::{Load, Place, Watched},
    event::Envelope,
    invocation::Invocation,
};

/// The most concurrent invocations of one trigger; further groups wait in the queue.
const INVOCATIONS_MAX: usize = 1024;

/// By how much the visibility timeout of messages exceeds the timeout of their function.
const VISIBILITY_MARGIN: Duration = Duration::from_secs(5);

/// The delay before a failed message is delivered again the first time. It doubles with each
/// attempt, up to the function's `retry_delay_max`.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);

/// The pause after the queue itself failed.
pub(super) const QUEUE_PAUSE: Duration = Duration::from_millis(100);

/// The kind of a trigger's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// Messages that the function receives as such.
    Messages,
    /// Events sent to the function.
    Events,
}

/// How messages stay hidden from other processes while a function runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Visibility {
    /// For longer than the function's timeout.
    BeyondTimeout,
    /// For this long, and extended before it ends.
    Extended(Duration),
}

/// How many extensions fit into one visibility timeout.
const EXTENSIONS_PER_TIMEOUT: u32 = 3;

/// Ends a trigger's task.
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

/// Receives messages until stopped, then lets the running invocations finish.
pub(super) async fn run(
    registry: Arc<Inner>,
    trigger: QueueTrigger,
    kind: MessageKind,
    stop: Arc<Stop>,
) {
    let thread = registry.busy_thread.as_ref();
    let Some(thread) = thread.filter(|_| kind == MessageKind::Messages) else {
        return serve(&registry, &trigger, kind, &stop, &Load::default()).await;
    };
    let now = thread.clock();
    let watched = |place| {
        let (registry, trigger, stop) = (registry.clone(), trigger.clone(), stop.clone());
        async move {
            let load = Load::default();
            let serving = serve(&registry, &trigger, kind, &stop, &load);
            Watched::new(place, now, &load, serving).await;
        }
    };
    loop {
        watched(Place::Here).await;
        if stop.is_stopped() {
            return;
        }
        if let Some(elsewhere) = thread.run(watched(Place::Elsewhere))
            && elsewhere.await.is_err()
        {
            // The thread is being stopped.
            return;
        }
    }
}

/// Receives messages until stopped or until `load` says that it should move, then lets the running
/// invocations finish.
async fn serve(
    registry: &Arc<Inner>,
    trigger: &QueueTrigger,
    kind: MessageKind,
    stop: &Stop,
    load: &Load,
) {
    let mut running: FuturesUnordered<Run<'_>> = FuturesUnordered::new();
    let task = Task {
        registry,
        trigger,
        kind,
    };
    let mut next = task.wait();
    while !stop.is_stopped() {
        if load.should_move() && running.is_empty() && !next.has_asked {
            return;
        }
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            () = stop.notify.notified() => {}
            progress = &mut next, if running.len() < INVOCATIONS_MAX => {
                next = task.advance(progress, &mut running);
            }
        }
    }
    // A receive that has been sent counts as running. If it were dropped, its messages would stay
    // hidden for long.
    if next.has_asked {
        let progress = next.await;
        drop(task.advance(progress, &mut running));
    } else {
        // An unpolled wait would keep its place in the queue for capacity, and block all later
        // waiters until the last run ends.
        drop(next);
    }
    while running.next().await.is_some() {}
}

/// The trigger's present wait, beside its invocations.
struct Step<'task> {
    /// Whether it receives messages, which are then hidden from others.
    receives: bool,
    /// Whether it may have received some already.
    has_asked: bool,
    future: Pin<Box<dyn Future<Output = Progress> + Send + 'task>>,
}

/// The result of a step.
enum Progress {
    /// The queue may have messages.
    Ready,
    /// The function has capacity for them.
    Permit(Permit),
    /// The received messages, perhaps none.
    Batches(Vec<Batch>),
    /// The queue failed, and the pause is over.
    Failed,
}

/// The messages of an invocation, and the function's capacity for it.
struct Batch(Permit, Vec<Delivery>);

/// Whether these messages of a group were delivered before.
fn is_retried(group: &[Delivery]) -> bool {
    group.first().is_some_and(|first| first.handle.attempt > 1)
}

impl<'task> Step<'task> {
    fn new(receives: bool, future: impl Future<Output = Progress> + Send + 'task) -> Self {
        Self {
            receives,
            has_asked: false,
            future: Box::pin(future),
        }
    }
}

impl Future for Step<'_> {
    type Output = Progress;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Progress> {
        self.has_asked = self.receives;
        self.future.as_mut().poll(context)
    }
}

/// The state that the runs of one trigger share.
#[derive(Clone, Copy)]
struct Task<'task> {
    registry: &'task Arc<Inner>,
    trigger: &'task QueueTrigger,
    kind: MessageKind,
}

impl<'task> Task<'task> {
    /// Starts a run of a received batch, and returns the next step. Groups are received one after
    /// the other until none is available.
    fn advance(
        self,
        progress: Progress,
        running: &mut FuturesUnordered<Run<'task>>,
    ) -> Step<'task> {
        match progress {
            Progress::Ready => self.ask_for_room(),
            Progress::Permit(permit) => self.receive(permit),
            Progress::Batches(batches) => {
                let batches = batches.into_iter().filter(|batch| !batch.1.is_empty());
                let before = running.len();
                running.extend(
                    batches.map(|Batch(permit, deliveries)| self.start(permit, deliveries)),
                );
                if running.len() == before {
                    return self.wait();
                }
                self.ask_for_room()
            }
            Progress::Failed => self.wait(),
        }
    }

    /// Waits until the queue may have messages, or until the pause after an error is over.
    fn wait(self) -> Step<'task> {
        let future = async move {
            let ready = self.registry.queue.ready(&self.trigger.queue).await;
            self.or_pause(ready.map(|()| Progress::Ready)).await
        };
        Step::new(false, future)
    }

    /// Waits until the function has capacity for one more invocation.
    fn ask_for_room(self) -> Step<'task> {
        let future = async move { Progress::Permit(self.definition().handler.permit().await) };
        Step::new(false, future)
    }

    /// Receives messages, if some are available.
    fn receive(self, permit: Permit) -> Step<'task> {
        let future = async move {
            let received = self.receive_groups(permit).await;
            self.or_pause(received.map(Progress::Batches)).await
        };
        Step::new(true, future)
    }

    /// Receives the messages of the available groups, up to the most for one invocation. A group
    /// that was delivered before has an invocation of its own, because it may be the one that failed.
    async fn receive_groups(self, permit: Permit) -> Result<Vec<Batch>> {
        let first = self.receive_group().await?;
        let is_shared = !first.is_empty() && !is_retried(&first);
        let mut batches = vec![Batch(permit, first)];
        let more = self.trigger.groups_max.saturating_sub(1);
        for _ in 0..if is_shared { more } else { 0 } {
            let Some(permit) = self.definition().handler.permit().now_or_never() else {
                break;
            };
            match self.receive_group().await {
                Ok(next) if is_retried(&next) => {
                    batches.push(Batch(permit, next));
                    break;
                }
                Ok(next) if !next.is_empty() => batches[0].1.extend(next),
                // The next step meets an error again.
                Ok(_) | Err(_) => break,
            }
        }
        Ok(batches)
    }

    /// Receives the messages of one group, if one is available.
    async fn receive_group(self) -> Result<Vec<Delivery>> {
        let hidden = match self.registry.visibility {
            Visibility::BeyondTimeout => self.definition().options.timeout + VISIBILITY_MARGIN,
            Visibility::Extended(hidden) => hidden,
        };
        let hidden_ms = hidden.as_millis() as u64;
        let batch = self.trigger.batch_messages_max.max(1);
        let queue = &self.trigger.queue;
        self.registry
            .queue
            .receive_hidden(queue, batch, Some(hidden_ms))
            .await
    }

    async fn or_pause(self, progress: Result<Progress>) -> Progress {
        match progress {
            Ok(progress) => progress,
            Err(error) => {
                tracing::debug!(%error, queue = self.trigger.queue, "a triggered queue is unavailable");
                tokio::time::sleep(QUEUE_PAUSE).await;
                Progress::Failed
            }
        }
    }

    fn start(self, permit: Permit, deliveries: Vec<Delivery>) -> Run<'task> {
        let definition = self.definition();
        match self.kind {
            MessageKind::Messages => Box::pin(self.run_messages(permit, definition, deliveries)),
            MessageKind::Events => Box::pin(self.run_event(permit, definition, deliveries)),
        }
    }

    fn definition(self) -> Arc<Definition> {
        self.registry
            .registered(&self.trigger.function)
            .expect("only registered functions are armed, and they stay registered")
    }

    /// One invocation with messages.
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
        let event = Event::Messages {
            queue: self.trigger.queue.clone(),
            deliveries,
        };
        let invocation = Invocation::within(permit, definition, event);
        // A batch is short. If it used up the task's budget, it would wait for its next turn with
        // its locks held, and the other groups' batches would wait for these locks.
        let invocation = unconstrained(invocation);
        let (completed, failure) = match self.run_hidden(&handles, invocation).await {
            Ok(_) => (handles.len(), None),
            Err(failure) => (failure.completed.min(handles.len()), Some(failure)),
        };
        let queue = &self.trigger.queue;
        if completed > 0
            && let Err(error) = self
                .registry
                .queue
                .acknowledge(queue, &handles[..completed])
                .await
        {
            tracing::warn!(%error, queue, "handled messages will be delivered again");
        }
        if let Some(failure) = failure {
            let mut rest = Handle::first_of_groups(&handles[completed..]);
            if failure.is_hopeless
                && let Some(handle) = rest.next()
            {
                self.give_up(handle, &failure.reason).await;
            }
            for handle in rest {
                self.release(handle, &failure).await;
            }
        }
        for _ in &handles {
            consume_budget().await;
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
                // Its last attempt was interrupted, or its exception handler could not receive it.
                Ok(envelope) if handle.attempt > attempts_max => {
                    let reason = format!("failed {attempts_max} times; its last error is unknown");
                    Err((Failure::new(reason), envelope))
                }
                Ok(envelope) => {
                    let event = envelope.clone().into_event(id.clone());
                    let permit = std::mem::take(&mut permit);
                    let invocation = Invocation::within(permit, Arc::clone(&definition), event);
                    let ran = self.run_hidden(slice::from_ref(&handle), invocation).await;
                    ran.map(drop).map_err(|failure| (failure, envelope))
                }
                Err(error) => Err((Failure::from(error), Envelope::Call(body))),
            };
            let disposition = match outcome {
                Ok(()) => Disposition::Done,
                Err((failure, _)) if handle.attempt < attempts_max => Disposition::Retry(failure),
                Err((failure, envelope)) => {
                    self.after_last_attempt(&definition, id, envelope, failure)
                        .await
                }
            };
            match disposition {
                Disposition::Done => self.acknowledge_event(handle).await,
                Disposition::Retry(failure) => self.release(&handle, &failure).await,
                Disposition::GiveUp(reason) => self.give_up(&handle, &reason).await,
            }
        }
    }

    /// Sends the event to the exception handler, unless that handler has given up on it before: a
    /// cycle of exception handlers would forward an event without end.
    async fn after_last_attempt(
        self,
        definition: &Definition,
        id: Option<Bytes>,
        envelope: Envelope,
        failure: Failure,
    ) -> Disposition {
        let Some(handler) = &definition.options.exception_handler else {
            return Disposition::GiveUp(failure.reason);
        };
        if let Some(why) = forwarding_refusal(&envelope, &definition.name, handler) {
            tracing::warn!(
                queue = self.trigger.queue,
                why,
                "an event is kept as a dead letter"
            );
            return Disposition::GiveUp(format!("{why}; its last error: {}", failure.reason));
        }
        let failed = envelope.failed(&definition.name, id, &failure.reason);
        if self.send_to_exception_handler(handler, &failed).await {
            Disposition::Done
        } else {
            Disposition::Retry(failure)
        }
    }

    async fn acknowledge_event(self, handle: Handle) {
        let queue = &self.trigger.queue;
        if let Err(error) = self.registry.queue.acknowledge(queue, &[handle]).await {
            tracing::warn!(%error, queue, "a handled event will be delivered again");
        }
    }

    /// Runs the invocation to its end, with the messages of `handles` hidden from others.
    async fn run_hidden(
        self,
        handles: &[Handle],
        invocation: impl Future<Output = Result<Bytes, Failure>>,
    ) -> Result<Bytes, Failure> {
        let Visibility::Extended(hidden) = self.registry.visibility else {
            return invocation.await;
        };
        let extend = async {
            loop {
                tokio::time::sleep(hidden / EXTENSIONS_PER_TIMEOUT).await;
                let queue = &self.trigger.queue;
                let hidden_ms = hidden.as_millis() as u64;
                for handle in Handle::first_of_groups(handles) {
                    if let Err(error) = self.registry.queue.extend(queue, handle, hidden_ms).await {
                        tracing::debug!(%error, queue, "the visibility timeout of messages could not be extended; another process may receive them");
                    }
                }
            }
        };
        tokio::select! {
            biased;
            ran = invocation => ran,
            () = extend => unreachable!("it has no end"),
        }
    }

    /// Sends a permanently failed event to the exception handler. Returns whether its queue has it.
    /// Otherwise each delivery of the event tries again.
    async fn send_to_exception_handler(self, handler: &str, failed: &Envelope) -> bool {
        // Send first, then acknowledge: a crash in between sends it twice, but never loses it.
        for attempts_left in (0..FORWARD_ATTEMPTS).rev() {
            match self.registry.send_event(handler, None, failed).await {
                Ok(_) => return true,
                Err(error) if attempts_left == 0 || error.kind() == ErrorKind::Invalid => {
                    tracing::warn!(%error, handler, "an event could not be sent to its exception handler yet");
                    return false;
                }
                // The function's error exists only in this delivery, so try again within it.
                Err(_) => tokio::time::sleep(QUEUE_PAUSE).await,
            }
        }
        false
    }

    async fn release(self, handle: &Handle, failure: &Failure) {
        let doublings = handle.attempt.saturating_sub(1).min(16);
        let longest = self.definition().options.retry_delay_max;
        let delay = (RETRY_DELAY_MIN * (1 << doublings)).min(longest.max(RETRY_DELAY_MIN));
        let delay_ms = delay.as_millis() as u64;
        let queue = &self.trigger.queue;
        let (reason, attempt) = (&failure.reason, handle.attempt);
        if attempt < WARN_FROM_ATTEMPT || !attempt.is_power_of_two() {
            tracing::debug!(queue, reason, attempt, delay_ms, "an invocation failed");
        } else {
            tracing::warn!(
                queue,
                reason,
                attempt,
                delay_ms,
                "an invocation fails repeatedly"
            );
        }
        if let Err(error) = self
            .registry
            .queue
            .release(queue, handle, delay_ms, &failure.reason)
            .await
        {
            tracing::warn!(%error, queue, "messages stay hidden until their timeout");
        }
    }

    /// Moves a permanently failed event or message without an exception handler to the dead
    /// letters.
    async fn give_up(self, handle: &Handle, reason: &str) {
        let (queue, attempt) = (&self.trigger.queue, handle.attempt);
        tracing::debug!(
            queue,
            reason,
            attempt,
            "an event or a message failed permanently"
        );
        if let Err(error) = self.registry.queue.give_up(queue, handle, reason).await {
            tracing::warn!(%error, queue, "a permanently failed event or message stays hidden until its timeout");
        }
    }
}

/// What happens to an event after a delivery.
enum Disposition {
    /// It succeeded, or its exception handler has it.
    Done,
    /// It is delivered again.
    Retry(Failure),
    /// It is given up for this reason.
    GiveUp(String),
}

/// Why an event that `function` gave up on is not forwarded to `handler`; none if it is.
fn forwarding_refusal(envelope: &Envelope, function: &str, handler: &str) -> Option<String> {
    let before = envelope.failed_functions();
    let has_failed = handler == function || before.iter().any(|other| other == handler);
    if !has_failed && before.len() < FORWARDS_MAX {
        return None;
    }
    let mut chain: Vec<_> = before.iter().map(String::as_str).collect();
    chain.extend([function, handler]);
    let why = if has_failed {
        "its exception handlers form a cycle"
    } else {
        "too many exception handlers have failed"
    };
    Some(format!("{why} ({})", chain.join(" -> ")))
}

/// How many functions may give up on one event before it becomes a dead letter.
const FORWARDS_MAX: usize = 16;

/// How often one delivery tries to send an event to an exception handler.
const FORWARD_ATTEMPTS: u32 = 10;

/// The most runs of `definition` for one event.
pub(super) fn attempts_max(definition: &Definition) -> u32 {
    definition.options.attempts_max.max(1)
}

/// From this attempt of a message on, failures are logged as warnings, after each doubling of the
/// attempts.
const WARN_FROM_ATTEMPT: u32 = 4;
