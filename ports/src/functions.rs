//! Functions: code that runs when called, when messages arrive, or when a timer fires.
//!
//! The three classes of `faaskeeper.txt`, section 2.2: any client invokes *free* functions, and
//! receives their errors; a queue triggers *event* functions; a timer, which is armed and disarmed
//! at run time, starts *scheduled* functions.
//!
//! Promises
//! - **N1** [`Functions::invoke`] runs the function once and returns its result. The provider never
//!   repeats it.
//! - **N2** A function that was sent an event by [`Functions::send`] runs at least once, up to
//!   `attempts_max` times. Then the exception handler named at registration receives the event and
//!   the reason (requirement 2), however long delivery to it takes. A handler that gave up on the
//!   same event before need not receive it again. The event is then kept with those that have no
//!   handler.
//! - **N3** A queue trigger runs at most one invocation per message group at a time. The invocation
//!   receives the name of the queue and messages of one group in order, or of several groups, one
//!   group after the other. Messages that it completed are acknowledged, and the rest is delivered
//!   again. A message that it declares [hopeless](Failure::hopeless) is given up at once (Q11).
//! - **N4** An armed timer fires about once per period until disarmed. After
//!   [`Functions::disarm_timer`] returned no new invocation starts, even if one was about to.
//!   Arming an armed timer changes only its period.
//! - **N5** An invocation that runs past its timeout is dropped and counts as failed.
//! - **N6** An event that was sent with an id shows it in every run, to its exception handler, and
//!   to the handler of a handler that failed. A function that keeps the ids of its completed work
//!   therefore recognises an event that was sent again or runs again. A provider may merge two
//!   events of one function with the same id, but need not.
//! - **N7** No message and no sent event is taken for a function before its [`Handler::permit`] has
//!   returned. Until then it waits in its queue. It has not been tried, cannot time out, and other
//!   processes can take it when this one dies.

use std::{any::Any, borrow::Cow, fmt, fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Receipt, Result, queue::Delivery};

/// Why a function runs.
#[derive(Debug, Clone)]
pub enum Event {
    /// Called by [`Functions::invoke`] or [`Functions::send`].
    Call {
        /// The id that its sender gave it (N6). None for invocations, and for events sent without
        /// one.
        id: Option<Bytes>,
        /// The caller's payload.
        payload: Bytes,
    },
    /// Messages of a queue trigger.
    Messages {
        /// Their queue. Several queues may start one function.
        queue: String,
        /// Messages of one group, in order.
        deliveries: Vec<Delivery>,
    },
    /// Its timer fired.
    Timer,
    /// Another function gave up on an event: the exception handler of requirement 2.
    Failed {
        /// The function that failed.
        function: String,
        /// The id that the sender gave the event (N6).
        id: Option<Bytes>,
        /// The payload of the event.
        payload: Bytes,
        /// The reason of the last failure.
        reason: String,
    },
}

/// How an invocation failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// Of [`Event::Messages`], how many leading messages are done and may be acknowledged.
    pub completed: usize,
    /// Whether the first of the others is given up at once, because no further attempt can help.
    pub is_hopeless: bool,
    /// The reason, for logs, dead letters and exception handlers.
    pub reason: String,
}

impl Failure {
    /// No part of the event is done.
    pub fn new(reason: impl Into<String>) -> Self {
        Self::after(0, reason)
    }

    /// The first `completed` messages are done.
    pub fn after(completed: usize, reason: impl Into<String>) -> Self {
        Self {
            completed,
            is_hopeless: false,
            reason: reason.into(),
        }
    }

    /// The first `completed` messages are done, and the message after them is given up.
    pub fn hopeless(completed: usize, reason: impl Into<String>) -> Self {
        Self {
            is_hopeless: true,
            ..Self::after(completed, reason)
        }
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// The code of a function: takes an event, returns a result. It may die between any two of its
/// steps.
#[async_trait]
pub trait Handler: Debug + Send + Sync {
    /// Handles one event. The result matters to [`Functions::invoke`] only.
    async fn handle(&self, event: Event) -> Result<Bytes, Failure>;

    /// Waits for a permit for one more event (N7). A handler without a limit returns at once.
    async fn permit(&self) -> Permit {
        Permit::default()
    }

    /// As [`Handler::handle`], with the permit for this event.
    async fn handle_with(&self, permit: Permit, event: Event) -> Result<Bytes, Failure> {
        let result = self.handle(event).await;
        drop(permit);
        result
    }
}

/// A permit for one event, until this is dropped.
#[derive(Default)]
pub struct Permit(Option<Box<dyn Any + Send + Sync>>);

impl Permit {
    /// A permit that ends when `what` is dropped.
    pub fn holding(what: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(what)))
    }

    /// The value of the permit. None if it has another type, or if there is no limit.
    pub fn into_held<T: Any + Send + Sync>(self) -> Option<Box<T>> {
        self.0.and_then(|kept| kept.downcast().ok())
    }
}

impl Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() {
            "Permit(held)"
        } else {
            "Permit"
        })
    }
}

/// How a function is run.
#[derive(Debug, Clone)]
pub struct FunctionOptions {
    /// An invocation longer than this is dropped (N5).
    pub timeout: Duration,
    /// How often an event is tried in all (N2).
    pub attempts_max: u32,
    /// The function that receives events that failed permanently, as [`Event::Failed`]. Without one
    /// they stay as dead letters.
    pub exception_handler: Option<String>,
    /// The longest delay before a message or an event that failed is delivered again, at least
    /// 50 ms. Delays grow with the number of deliveries. Some deliveries fail for no fault of the
    /// message: another process took over, or the machine is slow.
    pub retry_delay_max: Duration,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            attempts_max: 3,
            exception_handler: None,
            retry_delay_max: Duration::from_secs(30),
        }
    }
}

/// A function, as a service registers it with a provider.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The name by which it is called.
    pub name: Cow<'static, str>,
    /// How it is run.
    pub options: FunctionOptions,
    /// Its code.
    pub handler: Arc<dyn Handler>,
}

/// A provider that runs code of this process, which can register functions at any time.
pub trait Register: Functions {
    /// Registers a function under its name, and replaces one of the same name. Events that were
    /// sent to it before a restart are delivered from now on. Call this on a runtime.
    fn register(&self, definition: Definition);

    /// The queue in which events of `function` wait, once the first was sent.
    fn event_queue(&self, function: &str) -> String;

    /// Makes this process take events of `function` even if another process created their queue
    /// after the registration here, by sending the first event. A caller that saw such events calls
    /// this. It returns at once.
    fn take_events(&self, function: &str);

    /// Decodes an event from the body of its message in such a queue, and from the message's
    /// deduplication id.
    ///
    /// Errors: `Corrupt`.
    fn event_of(&self, message: &Bytes, deduplication: Option<Bytes>) -> Result<Event>;
}

/// Which queue starts which function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTrigger {
    /// The queue.
    pub queue: String,
    /// The function that receives its messages.
    pub function: String,
    /// The most messages of a group given to one invocation.
    pub batch_messages_max: usize,
    /// The most groups whose messages are given to one invocation. If it fails, every group that it
    /// did not complete has one failure more. A group that was delivered before has an invocation
    /// of its own, so that a message which always fails delays no other group.
    pub groups_max: usize,
}

/// The limits of a provider's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionLimits {
    /// The largest payload of an invocation or an event.
    pub payload_bytes_max: usize,
    /// The longest that an invocation may run. A writer that started longer ago no longer runs.
    pub timeout_max: Duration,
}

/// Runs functions.
#[async_trait]
pub trait Functions: Debug + Send + Sync {
    /// Runs `function` with `payload` and returns its result (N1).
    ///
    /// Errors: `Invalid` if the function does not exist or failed; `Unavailable` if it could not
    /// run.
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes>;

    /// Runs `function` with `payload` soon, at least once (N2). A caller that may have to send it
    /// again gives it an `id` (N6), of at most
    /// [`DEDUPLICATION_BYTES_MAX`](crate::queue::DEDUPLICATION_BYTES_MAX).
    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt>;

    /// Whether a function of this name exists now.
    async fn knows(&self, function: &str) -> Result<bool>;

    /// Starts `trigger.function` whenever `trigger.queue` has messages (N3). Arming twice changes
    /// nothing.
    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()>;

    /// Stops the trigger of `queue`; running invocations finish.
    async fn disarm_queue(&self, queue: &str) -> Result<()>;

    /// Starts `function` every `period` from now on (N4).
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()>;

    /// Stops the timer of `function` (N4).
    async fn disarm_timer(&self, function: &str) -> Result<()>;

    /// The provider's limits.
    fn limits(&self) -> &FunctionLimits;
}
