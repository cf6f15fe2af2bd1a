//! The functions port: handlers registered in this process, run in place.
//!
//! An invocation runs in the caller's task. Each queue trigger and each timer is one task
//! ([`trigger`], [`timer`]). A trigger drives all its invocations itself, one per message group. A
//! busy trigger may have a thread beside those of the program ([`busy_thread`]).
//! Each function has an event queue with a trigger, through which
//! [`Functions::send`](ports::Functions::send) delivers, so that events survive a crash (N2).
//!
//! Invariants
//! - A timeout costs nothing unless an invocation waits: its timer is armed at the first wait
//!   ([`invocation`]).
//! - A panic of a handler fails its invocation and affects nothing else.
//! - Triggers and timers do not survive a restart; their owners arm them again.
//! - Nothing that a trigger waits for delays the invocations that it has started: queues may be far
//!   away.

mod busy_thread;
mod event;
mod invocation;
mod timer;
mod trigger;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use ports::{
    Entropy, Error, ErrorKind, Receipt, Result,
    functions::{Definition, Event, FunctionLimits, QueueTrigger},
    queue::{Message, OnFailure, QueueOptions, SharedQueue},
};
use tokio::task::JoinSet;

use self::{
    busy_thread::BusyThread,
    event::Envelope,
    invocation::Invocation,
    timer::Timers,
    trigger::{MessageKind, Stop, Visibility},
};
use crate::SystemEntropy;

/// The limits of this provider.
const LIMITS: FunctionLimits = FunctionLimits {
    payload_bytes_max: (4 << 20) - 4096,
    timeout_max: Duration::from_mins(15),
};

/// The prefix of the event queues; the name of the function follows.
const EVENT_QUEUE: &str = "landfast.events/";

/// Functions registered in this process.
#[derive(Debug)]
pub struct Functions {
    inner: Arc<Inner>,
}

/// The state that the port shares with its tasks.
#[derive(Debug)]
struct Inner {
    queue: SharedQueue,
    visibility: Visibility,
    definitions: Mutex<HashMap<String, Arc<Definition>>>,
    triggers: Mutex<Triggers>,
    timers: Mutex<Timers>,
    /// None if busy triggers stay among the tasks of the program.
    busy_thread: Option<BusyThread>,
    /// Tasks that check whether a function has events of an earlier start, one for each function.
    event_checks: Mutex<JoinSet<()>>,
    /// A random number. With the event's number it gives each event its own message group among all
    /// senders, because events have no order.
    origin: u64,
    events: AtomicU64,
}

/// The armed triggers, by queue.
#[derive(Debug, Default)]
struct Triggers {
    armed: HashMap<String, (QueueTrigger, Arc<Stop>)>,
    /// Set by `stop`: nothing is armed any more. Running invocations may still send failures to
    /// exception handlers; the next start delivers them.
    is_stopped: bool,
}

impl Functions {
    /// Functions over a queue that ends with this process. A message stays hidden for as long as
    /// its function may run.
    pub fn new(queue: SharedQueue) -> Self {
        let entropy = SystemEntropy::default();
        Self::with(queue, Visibility::BeyondTimeout, &entropy, None)
    }

    /// As [`Functions::new`], with a thread for triggers that keep the program's runtime busy. The
    /// thread has a runtime and a time of its own, so tests in virtual time use [`Functions::new`].
    ///
    /// # Panics
    /// Outside of the program's runtime.
    pub fn with_busy_thread(queue: SharedQueue) -> Self {
        let thread = Some(BusyThread::new(Instant::now));
        let entropy = SystemEntropy::default();
        Self::with(queue, Visibility::BeyondTimeout, &entropy, thread)
    }

    /// Functions over a queue from which other processes receive too, at the latest after this one
    /// has died. While this process lives, it extends the visibility timeout of its messages.
    /// Another process receives them `hidden` after the last extension. `entropy` keeps the message
    /// groups of different processes apart.
    pub fn over_shared_queue(queue: SharedQueue, hidden: Duration, entropy: &dyn Entropy) -> Self {
        Self::with(queue, Visibility::Extended(hidden), entropy, None)
    }

    fn with(
        queue: SharedQueue,
        visibility: Visibility,
        entropy: &dyn Entropy,
        busy_thread: Option<BusyThread>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                queue,
                visibility,
                definitions: Mutex::default(),
                triggers: Mutex::default(),
                timers: Mutex::default(),
                busy_thread,
                event_checks: Mutex::default(),
                origin: entropy.next_u64(),
                events: AtomicU64::new(0),
            }),
        }
    }

    /// Implements [`Register::register`](ports::functions::Register::register).
    pub fn register(&self, definition: Definition) {
        let name = definition.name.clone();
        let earlier = self
            .inner
            .definitions
            .lock()
            .insert(name.clone().into_owned(), Arc::new(definition));
        // Its earlier events are checked for once.
        if earlier.is_none() {
            let inner = Arc::clone(&self.inner);
            self.inner
                .event_checks
                .lock()
                .spawn(async move { inner.arm_earlier_events(&name).await });
        }
    }

    /// Stops all triggers and timers permanently. Running invocations finish.
    pub fn stop(&self) {
        self.inner.event_checks.lock().abort_all();
        let armed = {
            let mut triggers = self.inner.triggers.lock();
            triggers.is_stopped = true;
            std::mem::take(&mut triggers.armed)
        };
        for (_, stop) in armed.into_values() {
            stop.stop();
        }
        self.inner.timers.lock().stop();
    }
}

fn event_queue(function: &str) -> String {
    format!("{EVENT_QUEUE}{function}")
}

impl Inner {
    fn registered(&self, function: &str) -> Option<Arc<Definition>> {
        self.definitions.lock().get(function).cloned()
    }

    fn known(&self, function: &str) -> Result<Arc<Definition>> {
        self.registered(function)
            .ok_or_else(|| Error::invalid(format!("run {function:?}, which is not registered")))
    }

    /// Queues an event for `function`.
    async fn queue_event(
        &self,
        function: &str,
        id: Option<Bytes>,
        envelope: &Envelope,
    ) -> Result<Receipt> {
        let definition = self.known(function)?;
        let body = envelope.encode()?;
        let queue = event_queue(function);
        let options = QueueOptions {
            visibility_timeout_ms: 30_000,
            // An event that failed permanently stays in this queue until its exception handler has
            // it, without a bound on attempts.
            attempts_max: match definition.options.exception_handler {
                Some(_) => u32::MAX,
                None => trigger::attempts_max(&definition),
            },
            on_failure: OnFailure::DeadLetter,
            ..QueueOptions::default()
        };
        self.queue.create(&queue, options).await?;
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        let mut group = BytesMut::with_capacity(16);
        group.put_u64(self.origin);
        group.put_u64(number);
        let group = group.freeze();
        self.queue
            .send(
                &queue,
                vec![Message {
                    group,
                    deduplication: id,
                    body,
                }],
            )
            .await
    }

    /// Queues an event for `function`, and arms its event queue.
    async fn send_event(
        self: &Arc<Self>,
        function: &str,
        id: Option<Bytes>,
        envelope: &Envelope,
    ) -> Result<Receipt> {
        let receipt = self.queue_event(function, id, envelope).await?;
        self.arm_events(function);
        Ok(receipt)
    }

    /// Spawns a task of the program. A function may arm a trigger from the thread for busy ones.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.busy_thread {
            Some(thread) => thread.spawn_in_program(task),
            None => drop(tokio::spawn(task)),
        }
    }

    fn arm(self: &Arc<Self>, trigger: QueueTrigger, kind: MessageKind) {
        let mut triggers = self.triggers.lock();
        if triggers.is_stopped {
            return;
        }
        let armed = triggers.armed.get(&trigger.queue);
        if armed.is_some_and(|(armed, stop)| *armed == trigger && !stop.is_stopped()) {
            return;
        }
        if let Some((_, earlier)) = armed {
            earlier.stop();
        }
        let stop = Arc::new(Stop::default());
        let (inner, armed, stopped) = (Arc::clone(self), trigger.clone(), Arc::clone(&stop));
        self.spawn(trigger::run(inner, armed, kind, stopped));
        triggers
            .armed
            .insert(trigger.queue.clone(), (trigger, stop));
    }

    fn arm_events(self: &Arc<Self>, function: &str) {
        let trigger = QueueTrigger {
            queue: event_queue(function),
            function: function.to_owned(),
            batch_messages_max: 1,
            groups_max: 1,
        };
        self.arm(trigger, MessageKind::Events);
    }

    /// Arms the event queue of `function`, if an earlier start created it.
    async fn arm_earlier_events(self: Arc<Self>, function: &str) {
        loop {
            match self.check_queue(&event_queue(function)).await {
                Ok(()) => return self.arm_events(function),
                Err(error) if error.kind() == ErrorKind::Invalid => return,
                Err(error) => {
                    tracing::debug!(%error, function, "the event queue of a function cannot be checked yet");
                }
            }
            tokio::time::sleep(trigger::QUEUE_PAUSE).await;
        }
    }

    /// Fails with `Invalid` if the queue does not exist.
    async fn check_queue(&self, queue: &str) -> Result<()> {
        self.queue.send(queue, Vec::new()).await.map(drop)
    }
}

#[async_trait]
impl ports::Functions for Functions {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        check_payload(function, &payload)?;
        let definition = self.inner.known(function)?;
        Invocation::new(definition, Event::Call { id: None, payload })
            .await
            .map_err(|failure| Error::invalid(format!("invoke {function:?}")).caused_by(failure))
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        check_payload(function, &payload)?;
        self.inner
            .send_event(function, id, &Envelope::Call(payload))
            .await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        Ok(self.inner.registered(function).is_some())
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        self.inner.known(&trigger.function)?;
        self.inner.check_queue(&trigger.queue).await?;
        self.inner.arm(trigger, MessageKind::Messages);
        Ok(())
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        if let Some((_, stop)) = self.inner.triggers.lock().armed.remove(queue) {
            stop.stop();
        }
        Ok(())
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        self.inner.known(function)?;
        if period.is_zero() {
            return Err(Error::invalid(format!("arm {function:?} with no period")));
        }
        if let Some(timer) = self.inner.timers.lock().arm(function, period) {
            let (inner, name) = (Arc::clone(&self.inner), function.to_owned());
            let known = move || inner.registered(&name);
            self.inner
                .spawn(timer::run(timer, known, function.to_owned()));
        }
        Ok(())
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let starting = self.inner.timers.lock().disarm(function);
        if let Some(starting) = starting {
            drop(starting.lock().await);
        }
        Ok(())
    }

    fn limits(&self) -> &FunctionLimits {
        &LIMITS
    }
}

impl ports::functions::Register for Functions {
    fn register(&self, definition: Definition) {
        Self::register(self, definition);
    }

    fn event_queue(&self, function: &str) -> String {
        event_queue(function)
    }

    fn take_events(&self, function: &str) {
        if self.inner.registered(function).is_some() {
            self.inner.arm_events(function);
        }
    }

    fn event_of(&self, message: &Bytes, deduplication: Option<Bytes>) -> Result<Event> {
        Ok(Envelope::decode(message)?.into_event(deduplication))
    }
}

fn check_payload(function: &str, payload: &Bytes) -> Result<()> {
    if payload.len() > LIMITS.payload_bytes_max {
        let (bytes, limit) = (payload.len(), LIMITS.payload_bytes_max);
        return Err(Error::invalid(format!(
            "run {function:?} with {bytes} bytes; the limit is {limit}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
