//! Functions as tasks of the run: invoked, sent events, triggered by queues and timers.
//!
//! Each function has an event queue in the same store. An event therefore shares the store's order,
//! survives a crash once it is durable, and is retried like a message. If it is given up, it moves
//! to the exception handler's queue at the same position.

mod execution;
mod triggers;

use std::{collections::BTreeMap, fmt, sync::Arc, sync::Mutex, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Error, ErrorKind, Event, Receipt, Result,
    functions::{Definition, FunctionLimits, QueueTrigger, Register},
    queue::{DEDUPLICATION_BYTES_MAX, Message, OnFailure, QueueOptions},
};
use tokio::{sync::oneshot, task::AbortHandle};

use self::{execution::Ended, triggers::Source};
use crate::{
    call::Kind,
    cloud::Cloud,
    run::{at_end, lock},
    store::Forward,
};

/// The functions port of a world.
#[derive(Debug)]
pub struct Functions(Arc<Shared>);

/// The state that the port, its triggers and its invocations share.
pub(crate) struct Shared {
    cloud: Arc<Cloud>,
    registered: Mutex<BTreeMap<String, Arc<Definition>>>,
    /// The task that delivers sent events, for each function.
    event_consumers: Mutex<BTreeMap<String, AbortHandle>>,
    invocation_count: Mutex<u64>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = lock(&self.registered).keys().cloned().collect();
        f.debug_struct("Functions")
            .field("registered", &names)
            .finish_non_exhaustive()
    }
}

impl Functions {
    pub(crate) fn new(cloud: Arc<Cloud>) -> Self {
        Self(Arc::new(Shared {
            cloud,
            registered: Mutex::default(),
            event_consumers: Mutex::default(),
            invocation_count: Mutex::default(),
        }))
    }

    /// Registers a function or replaces its code. Must be called inside the run, because it starts
    /// a task.
    pub fn register(&self, definition: Definition) {
        let shared = &self.0;
        let name = definition.name.clone().into_owned();
        let name = name.as_str();
        shared.prepare_event_queue(name, Some(&definition));
        definition
            .options
            .exception_handler
            .iter()
            .for_each(|handler| {
                shared.prepare_event_queue(handler, None);
            });
        let is_first = lock(&shared.registered).is_empty();
        lock(&shared.registered).insert(name.to_owned(), Arc::new(definition));
        if is_first {
            // A handler usually holds this port, and the port holds the handler. The end of the run
            // breaks the cycle.
            let shared = Arc::downgrade(shared);
            at_end(Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    lock(&shared.registered).clear();
                }
            }));
        }
        let mut consumers = lock(&shared.event_consumers);
        if !consumers.contains_key(name) {
            let consumer =
                Arc::clone(shared).consume(event_queue(name), name.to_owned(), Source::Events);
            consumers.insert(name.to_owned(), tokio::spawn(consumer).abort_handle());
        }
    }
}

impl Register for Functions {
    fn register(&self, definition: Definition) {
        Self::register(self, definition);
    }

    fn event_queue(&self, function: &str) -> String {
        event_queue(function)
    }

    /// Does nothing: events are delivered from the registration on.
    fn take_events(&self, _: &str) {}

    fn event_of(&self, message: &Bytes, _: Option<Bytes>) -> Result<Event> {
        Ok(decode_event(message))
    }
}

/// The event queue of `function`.
fn event_queue(function: &str) -> String {
    format!("functions/{function}")
}

impl Shared {
    fn definition(&self, function: &str) -> Option<Arc<Definition>> {
        lock(&self.registered).get(function).cloned()
    }

    fn require(&self, attempted: &str, function: &str, payload: &Bytes) -> Result<Arc<Definition>> {
        if payload.len() > self.cloud.options.functions.payload_bytes_max {
            let bytes = payload.len();
            return Err(Error::invalid(format!(
                "{attempted} {function:?} with {bytes} bytes"
            )));
        }
        self.definition(function).ok_or_else(|| {
            Error::invalid(format!("{attempted} {function:?}, which does not exist"))
        })
    }

    /// Creates the event queue of `function`, also before its registration.
    fn prepare_event_queue(&self, function: &str, definition: Option<&Definition>) {
        let mut store = self.cloud.store();
        let queue = store.install_queue(&event_queue(function));
        let Some(definition) = definition else { return };
        queue.reconfigure(QueueOptions {
            attempts_max: definition.options.attempts_max,
            on_failure: OnFailure::DeadLetter,
            ..QueueOptions::default()
        });
        queue.forward = definition
            .options
            .exception_handler
            .as_deref()
            .map(|handler| Forward {
                queue: event_queue(handler),
                wrap: encode_failed,
                function: function.to_owned(),
            });
    }

    /// Runs `function` in a separate task, so that it continues if its caller dies.
    async fn run_apart(self: &Arc<Self>, definition: Arc<Definition>, event: Event) -> Ended {
        let (sender, ended) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move { drop(sender.send(shared.run(&definition, event).await)) });
        ended.await.unwrap_or(Ended::Died)
    }
}

#[async_trait]
impl ports::Functions for Functions {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        let cloud = &self.0.cloud;
        let call = cloud.begin_call("invoke", function.to_owned()).await?;
        let result = match self.0.require("invoke", function, &payload) {
            Err(error) => Err(error),
            Ok(definition) => {
                let unknown =
                    || Error::new(ErrorKind::OutcomeUnknown, format!("invoke {function:?}"));
                match self
                    .0
                    .run_apart(definition, Event::Call { id: None, payload })
                    .await
                {
                    Ended::Done(result) => Ok(result),
                    Ended::Failed(failure) => {
                        Err(Error::invalid(format!("invoke {function:?}")).caused_by(failure))
                    }
                    Ended::Died => Err(unknown().caused_by("it died")),
                    Ended::TimedOut => Err(unknown().caused_by("it ran past its timeout")),
                }
            }
        };
        cloud
            .end_call(call, Kind::Changes, result, |_| "done".into())
            .await
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        let cloud = &self.0.cloud;
        let call = cloud.begin_call("send_event", function.to_owned()).await?;
        let result = self
            .0
            .require("send an event to", function, &payload)
            .and_then(|_| {
                let id_bytes = id.as_ref().map_or(0, Bytes::len);
                if id_bytes > DEDUPLICATION_BYTES_MAX {
                    return Err(Error::invalid(format!(
                        "send {function:?} an event with an id of {id_bytes}"
                    )));
                }
                let mut store = cloud.store();
                let group = Bytes::from(format!("event {}", store.point().position.0));
                let message = Message {
                    group,
                    deduplication: None,
                    body: encode_call(id.as_deref(), &payload),
                };
                store.send_event(&event_queue(function), message, cloud.elapsed())
            });
        cloud.changed.notify_waiters();
        cloud
            .end_call(call, Kind::Changes, result, |_| "done".into())
            .await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        let call = self
            .0
            .cloud
            .begin_call("knows", function.to_owned())
            .await?;
        let known = self.0.definition(function).is_some();
        self.0
            .cloud
            .end_call(call, Kind::Reads, Ok(known), |known| {
                known.to_string().into()
            })
            .await
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        let subject = format!("{} for {}", trigger.queue, trigger.function);
        let call = self.0.cloud.begin_call("arm_queue", subject).await?;
        let result = self.0.arm_queue(trigger);
        self.0
            .cloud
            .end_call(call, Kind::Changes, result, |()| "done".into())
            .await
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        let call = self
            .0
            .cloud
            .begin_call("disarm_queue", queue.to_owned())
            .await?;
        lock(&self.0.cloud.armed).disarm_queue(queue);
        self.0
            .cloud
            .end_call(call, Kind::Changes, Ok(()), |()| "done".into())
            .await
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        let subject = format!("{function} every {period:?}");
        let call = self.0.cloud.begin_call("arm_timer", subject).await?;
        let result = self.0.arm_timer(function, period);
        self.0
            .cloud
            .end_call(call, Kind::Changes, result, |()| "done".into())
            .await
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let call = self
            .0
            .cloud
            .begin_call("disarm_timer", function.to_owned())
            .await?;
        lock(&self.0.cloud.armed).disarm_timer(function);
        self.0
            .cloud
            .end_call(call, Kind::Changes, Ok(()), |()| "done".into())
            .await
    }

    fn limits(&self) -> &FunctionLimits {
        &self.0.cloud.options.functions
    }
}

/// First byte of an event in a queue: its id, if any, and its payload follow.
const CALL: u8 = 0;
/// First byte of a failed event: the function that gave it up and the reason follow, then the
/// fields of an event.
const FAILED: u8 = 1;

/// The id is in the body, not in the message: here two events with one id run twice, as providers
/// may do.
fn encode_call(id: Option<&[u8]>, payload: &[u8]) -> Bytes {
    let mut bytes = vec![CALL];
    put_id(&mut bytes, id);
    bytes.extend_from_slice(payload);
    bytes.into()
}

fn encode_failed(function: &str, body: &[u8], reason: &str) -> Bytes {
    let mut bytes = vec![FAILED];
    put(&mut bytes, function.as_bytes());
    put(&mut bytes, reason.as_bytes());
    // If an exception handler failed in turn, the original call follows after the report.
    let mut call = Bytes::copy_from_slice(body);
    if call.split_to(1)[0] == FAILED {
        let (_function, _reason) = (take(&mut call), take(&mut call));
    }
    bytes.extend_from_slice(&call);
    bytes.into()
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
    bytes.extend_from_slice(part);
}

fn put_id(bytes: &mut Vec<u8>, id: Option<&[u8]>) {
    bytes.push(u8::from(id.is_some()));
    if let Some(id) = id {
        put(bytes, id);
    }
}

fn take(body: &mut Bytes) -> Bytes {
    let length = u32::from_be_bytes(
        body.split_to(4)[..]
            .try_into()
            .expect("four bytes were split off"),
    );
    body.split_to(length as usize)
}

fn take_id(body: &mut Bytes) -> Option<Bytes> {
    let has_id = body.split_to(1)[0] == 1;
    has_id.then(|| take(body))
}

fn decode_event(message: &Bytes) -> Event {
    let mut body = message.clone();
    if body.split_to(1)[0] == CALL {
        let id = take_id(&mut body);
        return Event::Call { id, payload: body };
    }
    let mut text = || String::from_utf8_lossy(&take(&mut body)).into_owned();
    let (function, reason) = (text(), text());
    let id = take_id(&mut body);
    Event::Failed {
        function,
        id,
        payload: body,
        reason,
    }
}
