//! The registry of handlers, and what is armed.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
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

use super::{
    event::Envelope,
    invocation::Invocation,
    timer::{self, Timers},
    trigger::{self, Hiding, Stop, Work},
};
use crate::SystemEntropy;

/// What this provider cannot exceed.
const LIMITS: FunctionLimits = FunctionLimits {
    payload_bytes_max: (4 << 20) - 4096,
    timeout_max: Duration::from_mins(15),
};

/// The events of a function wait in a queue of this name and the function's.
const EVENT_QUEUE: &str = "landfast.events/";

/// Functions registered in this process.
#[derive(Debug)]
pub struct Functions {
    inner: Arc<Inner>,
}

/// What tasks share with the port.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) queue: SharedQueue,
    pub(super) hiding: Hiding,
    definitions: Mutex<HashMap<String, Arc<Definition>>>,
    triggers: Mutex<Triggers>,
    timers: Mutex<Timers>,
    /// Who looks whether a function has events from before, once for each function.
    looking: Mutex<JoinSet<()>>,
    /// With the number, makes each event a message group of its own, whoever else sends: events have no order.
    origin: u64,
    events: AtomicU64,
}

/// What is armed, by queue.
#[derive(Debug, Default)]
struct Triggers {
    armed: HashMap<String, (QueueTrigger, Arc<Stop>)>,
    /// Nothing is armed any more: what still runs may hand on what it has failed, for the next start to find.
    is_over: bool,
}

impl Functions {
    /// Functions whose triggers and events are queues of `queue`, which ends with this process: who takes a
    /// message has it for as long as its function may run.
    pub fn new(queue: SharedQueue) -> Self {
        Self::hiding(queue, Hiding::ForTheTimeout, &SystemEntropy::default())
    }

    /// Functions over queues that other processes take from too, after this one has died at the latest: a
    /// message is somebody else's `hidden` after this process was last heard of, and not before while it lives.
    /// `entropy` tells their events from this one's.
    pub fn beside_others(queue: SharedQueue, hidden: Duration, entropy: &dyn Entropy) -> Self {
        Self::hiding(queue, Hiding::WhileRunning(hidden), entropy)
    }

    fn hiding(queue: SharedQueue, hiding: Hiding, entropy: &dyn Entropy) -> Self {
        Self {
            inner: Arc::new(Inner {
                queue,
                hiding,
                definitions: Mutex::default(),
                triggers: Mutex::default(),
                timers: Mutex::default(),
                looking: Mutex::default(),
                origin: entropy.next_u64(),
                events: AtomicU64::new(0),
            }),
        }
    }

    /// As [`Register::register`](ports::functions::Register::register).
    pub fn register(&self, definition: Definition) {
        let name = definition.name.clone();
        let earlier = self
            .inner
            .definitions
            .lock()
            .insert(name.clone().into_owned(), Arc::new(definition));
        // Its events are looked for once.
        if earlier.is_none() {
            let inner = Arc::clone(&self.inner);
            self.inner
                .looking
                .lock()
                .spawn(async move { inner.arm_earlier_events(&name).await });
        }
    }

    /// Stops all triggers and timers for good; running invocations finish by themselves.
    pub fn stop(&self) {
        self.inner.looking.lock().abort_all();
        let armed = {
            let mut triggers = self.inner.triggers.lock();
            triggers.is_over = true;
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
    pub(super) fn definition(&self, function: &str) -> Option<Arc<Definition>> {
        self.definitions.lock().get(function).cloned()
    }

    fn known(&self, function: &str) -> Result<Arc<Definition>> {
        self.definition(function)
            .ok_or_else(|| Error::invalid(format!("run {function:?}, which is not registered")))
    }

    /// Queues an event for `function`.
    pub(super) async fn queue_event(
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
            // What has failed for good waits here until its exception handler has it, however long.
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

    fn arm(self: &Arc<Self>, trigger: QueueTrigger, work: Work) {
        let mut triggers = self.triggers.lock();
        if triggers.is_over {
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
        tokio::spawn(trigger::run(
            Arc::clone(self),
            trigger.clone(),
            work,
            Arc::clone(&stop),
        ));
        triggers
            .armed
            .insert(trigger.queue.clone(), (trigger, stop));
    }

    fn arm_events(self: &Arc<Self>, function: &str) {
        let trigger = QueueTrigger {
            queue: event_queue(function),
            function: function.to_owned(),
            batch_messages_max: 1,
        };
        self.arm(trigger, Work::Events);
    }

    /// Arms the queue of events that an earlier start may have left for `function`.
    async fn arm_earlier_events(self: Arc<Self>, function: &str) {
        loop {
            match self.check_queue(&event_queue(function)).await {
                Ok(()) => return self.arm_events(function),
                Err(error) if error.kind() == ErrorKind::Invalid => return,
                Err(error) => {
                    tracing::debug!(%error, function, "its events cannot be looked for yet")
                }
            }
            tokio::time::sleep(trigger::QUEUE_PAUSE).await;
        }
    }

    /// Fails as `Invalid` where there is no such queue.
    async fn check_queue(&self, queue: &str) -> Result<()> {
        self.queue.send(queue, Vec::new()).await.map(drop)
    }

    /// Sends an event and makes sure that somebody takes it.
    pub(super) async fn send_event(
        self: &Arc<Self>,
        function: &str,
        id: Option<Bytes>,
        envelope: &Envelope,
    ) -> Result<Receipt> {
        let receipt = self.queue_event(function, id, envelope).await?;
        self.arm_events(function);
        Ok(receipt)
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
        Ok(self.inner.definition(function).is_some())
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        self.inner.known(&trigger.function)?;
        self.inner.check_queue(&trigger.queue).await?;
        self.inner.arm(trigger, Work::Messages);
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
            tokio::spawn(timer::run(
                Arc::clone(&self.inner),
                function.to_owned(),
                timer,
            ));
        }
        Ok(())
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let disarmed = self.inner.timers.lock().disarm(function);
        for timer in disarmed {
            timer.disarmed().await;
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
        if self.inner.definition(function).is_some() {
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
            "run {function:?} with {bytes} bytes, where {limit} is the limit"
        )));
    }
    Ok(())
}
