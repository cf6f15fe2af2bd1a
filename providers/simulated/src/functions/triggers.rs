//! The tasks that start functions: queue triggers, timers, and the consumers of sent events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use ports::{
    Error, Event, Result,
    functions::{Failure, Permit, QueueTrigger},
    queue::{Delivery, Handle},
};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout_at},
};

use super::{Shared, decode_event, execution::Ended};
use crate::{armed::Timer, run::lock};

/// The most concurrent invocations of one trigger; further groups wait in their queue.
const INVOCATIONS_MAX: usize = 64;

/// The first pause before a failed message is delivered again; it doubles with each attempt.
const RETRY_MS_MIN: u64 = 100;
/// The longest such pause.
const RETRY_MS_MAX: u64 = 20_000;

/// By how much the visibility timeout of messages exceeds the timeout of their function, so that no
/// second invocation of a group starts beside the first (N3).
const HIDDEN_BEYOND_TIMEOUT: Duration = Duration::from_secs(1);

/// The source of a consumer's messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// A queue with a trigger: at most this many messages of a group, and this many groups, per
    /// invocation.
    Trigger {
        batch_messages_max: usize,
        groups_max: usize,
    },
    /// The events sent to one function, one per invocation.
    Events,
}

impl Source {
    /// The most groups in an invocation whose first group is this one.
    fn groups_max(self, first: &[Delivery]) -> usize {
        match self {
            Self::Trigger { groups_max, .. } if !is_retried(first) => groups_max,
            Self::Trigger { .. } | Self::Events => 1,
        }
    }
}

/// Whether these messages of a group were delivered before. They then have an invocation of their
/// own.
fn is_retried(group: &[Delivery]) -> bool {
    group.first().is_some_and(|first| first.handle.attempt > 1)
}

impl Shared {
    pub(super) fn arm_queue(self: &Arc<Self>, trigger: QueueTrigger) -> Result<()> {
        if self.definition(&trigger.function).is_none() {
            return Err(Error::invalid(format!(
                "trigger {:?}, which does not exist",
                trigger.function
            )));
        }
        self.cloud.store().queue(&trigger.queue)?;
        let mut armed = lock(&self.cloud.armed);
        if armed
            .queues
            .get(&trigger.queue)
            .is_some_and(|(present, _)| *present == trigger)
        {
            return Ok(());
        }
        armed.disarm_queue(&trigger.queue);
        let source = Source::Trigger {
            batch_messages_max: trigger.batch_messages_max.max(1),
            groups_max: trigger.groups_max.max(1),
        };
        let consumer =
            Arc::clone(self).consume(trigger.queue.clone(), trigger.function.clone(), source);
        let task = tokio::spawn(consumer).abort_handle();
        armed.queues.insert(trigger.queue.clone(), (trigger, task));
        Ok(())
    }

    pub(super) fn arm_timer(self: &Arc<Self>, function: &str, period: Duration) -> Result<()> {
        if self.definition(function).is_none() {
            return Err(Error::invalid(format!(
                "arm a timer for {function:?}, which does not exist"
            )));
        }
        let mut armed = lock(&self.cloud.armed);
        if let Some(timer) = armed.timers.get(function) {
            timer.period.send_replace(period);
            return Ok(());
        }
        let (is_armed, (period, periods)) =
            (Arc::new(AtomicBool::new(true)), watch::channel(period));
        let timer = Arc::clone(self).fire(function.to_owned(), periods, Arc::clone(&is_armed));
        let task = tokio::spawn(timer).abort_handle();
        armed.timers.insert(
            function.to_owned(),
            Timer {
                period,
                is_armed,
                task,
            },
        );
        Ok(())
    }

    async fn fire(
        self: Arc<Self>,
        function: String,
        mut periods: watch::Receiver<Duration>,
        is_armed: Arc<AtomicBool>,
    ) {
        let mut last = Instant::now();
        loop {
            let period = (*periods.borrow_and_update()).max(Duration::from_millis(1));
            if timeout_at(last + period, periods.changed())
                .await
                .is_ok_and(|changed| changed.is_ok())
            {
                continue;
            }
            last = Instant::now();
            let (shared, is_armed) = (Arc::clone(&self), Arc::clone(&is_armed));
            let Some(definition) = self.definition(&function) else {
                continue;
            };
            tokio::spawn(async move {
                if is_armed.load(Ordering::Relaxed) {
                    shared.run(&definition, Event::Timer).await;
                }
            });
        }
    }

    /// Delivers the messages of `queue` to `function` until aborted.
    pub(super) async fn consume(self: Arc<Self>, queue: String, function: String, source: Source) {
        let permits = Arc::new(Semaphore::new(INVOCATIONS_MAX));
        loop {
            if self.cloud.queue_ready(&queue).await.is_err() {
                // A crash undid the creation of the queue; its creator will create it again.
                self.cloud.changed.notified().await;
                continue;
            }
            self.cloud.pause_briefly().await;
            let Ok(slot) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let permit = match self.definition(&function) {
                Some(definition) => definition.handler.permit().await,
                None => Permit::default(),
            };
            // There is no await from here to the spawn, so an abort never strands received
            // messages.
            let Ok(mut deliveries) = self.take(&queue, &function, source) else {
                continue;
            };
            if deliveries.is_empty() {
                drop(slot);
                tokio::task::yield_now().await;
                continue;
            }
            let mut alone = None;
            for _ in 1..source.groups_max(&deliveries) {
                let next_permit = match self.definition(&function) {
                    Some(definition) => definition.handler.permit().now_or_never(),
                    None => Some(Permit::default()),
                };
                let next_slot = Arc::clone(&permits).try_acquire_owned().ok();
                let (Some(permit), Some(slot)) = (next_permit, next_slot) else {
                    break;
                };
                match self.take(&queue, &function, source) {
                    Ok(next) if is_retried(&next) => {
                        alone = Some((permit, slot, next));
                        break;
                    }
                    Ok(next) if !next.is_empty() => deliveries.extend(next),
                    Ok(_) | Err(_) => break,
                }
            }
            for (permit, slot, deliveries) in
                std::iter::once((permit, slot, deliveries)).chain(alone)
            {
                let begun =
                    Arc::clone(&self).begin(permit, (&queue, &function), source, deliveries);
                tokio::spawn(async move {
                    begun.await;
                    drop(slot);
                });
            }
        }
    }

    /// Runs one invocation with `deliveries`, which were received just now.
    fn begin(
        self: Arc<Self>,
        permit: Permit,
        (queue, function): (&str, &str),
        source: Source,
        deliveries: Vec<Delivery>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let taken_in = self.cloud.store().point().incarnation;
        let (queue, function) = (queue.to_owned(), function.to_owned());
        async move {
            // A crash in between ended the delivery, so another consumer may have the messages
            // (N3).
            if self.cloud.store().point().incarnation == taken_in {
                self.deliver(permit, &queue, &function, source, deliveries)
                    .await;
            }
        }
    }

    fn take(&self, queue: &str, function: &str, source: Source) -> Result<Vec<Delivery>> {
        let messages_max = match source {
            Source::Trigger {
                batch_messages_max, ..
            } => batch_messages_max,
            Source::Events => 1,
        };
        let timeout = self
            .definition(function)
            .map_or(Duration::ZERO, |definition| {
                definition
                    .options
                    .timeout
                    .min(self.cloud.options.functions.timeout_max)
            });
        let hidden_for = timeout + HIDDEN_BEYOND_TIMEOUT;
        let now = self.cloud.elapsed();
        self.cloud
            .store()
            .receive(queue, messages_max, Some(hidden_for), now)
    }

    /// Runs one invocation with `deliveries` and settles them by its result.
    async fn deliver(
        &self,
        permit: Permit,
        queue: &str,
        function: &str,
        source: Source,
        deliveries: Vec<Delivery>,
    ) {
        let handles: Vec<Handle> = deliveries
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        let event = match (source, deliveries.first()) {
            (Source::Events, Some(delivery)) => decode_event(&delivery.body),
            _ => Event::Messages {
                queue: queue.to_owned(),
                deliveries,
            },
        };
        let ended = match self.definition(function) {
            Some(definition) => self.run_in(permit, &definition, event).await,
            None => Ended::Failed(Failure::new(format!("there is no function {function:?}"))),
        };
        self.cloud.pause_briefly().await;
        match ended {
            Ended::Done(_) => self.acknowledge(queue, &handles),
            Ended::Failed(failure) => self.settle(queue, &handles, &failure, false),
            Ended::TimedOut => {
                self.settle(
                    queue,
                    &handles,
                    &Failure::new("it ran past its timeout"),
                    false,
                );
            }
            Ended::Died => {
                // A crashed machine is noticed at once, or only by the visibility timeout of its
                // messages.
                let is_found = self.cloud.random().bool();
                if is_found {
                    self.settle(queue, &handles, &Failure::new("it died"), true);
                }
            }
        }
    }

    /// Acknowledges the completed messages, and releases or gives up the rest.
    fn settle(&self, queue: &str, handles: &[Handle], failure: &Failure, at_once: bool) {
        let (done, rest) = handles.split_at(failure.completed.min(handles.len()));
        self.acknowledge(queue, done);
        let mut rest = Handle::first_of_groups(rest);
        // An error has the reason given below.
        if failure.is_hopeless
            && let Some(failed) = rest.next()
        {
            drop(self.cloud.give_up(queue, failed, &failure.reason));
        }
        for failed in rest {
            let delay_ms = if at_once { 0 } else { retry_ms(failed.attempt) };
            drop(self.cloud.release(queue, failed, delay_ms, &failure.reason));
        }
    }

    fn acknowledge(&self, queue: &str, done: &[Handle]) {
        // An error means that a crash undid the queue, so there is nothing to settle.
        if !done.is_empty() {
            drop(self.cloud.acknowledge(queue, done));
        }
    }
}

fn retry_ms(attempt: u32) -> u64 {
    RETRY_MS_MIN
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(RETRY_MS_MAX)
}
