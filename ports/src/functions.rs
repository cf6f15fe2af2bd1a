//! Functions: code that runs when called, when messages arrive, or when a timer fires.
//!
//! The three classes of `faaskeeper.txt`, section 2.2: *free* functions are invoked by anybody and report
//! their errors to the caller; *event* functions are triggered by a queue; *scheduled* functions by a timer
//! that is armed and disarmed at run time.
//!
//! Promises
//! - **N1** [`Functions::invoke`] runs the function once and returns its result; it is never repeated by the
//!   provider.
//! - **N2** A function sent an event by [`Functions::send`] runs at least once, up to `attempts_max` times;
//!   then the exception handler named at registration gets the event and the reason (requirement 2), however long it
//!   takes until it can be given them. One that has given up on the same event before need not be told of it again: then it is
//!   kept where those are kept that nobody is told of.
//! - **N3** A queue trigger runs at most one invocation per message group at a time, with messages in
//!   order, and is told which queue they are from; what it completed is acknowledged, the rest is delivered again. A message that it
//!   says is [hopeless](Failure::hopeless) is given up at once (Q11).
//! - **N4** An armed timer fires about once per period until disarmed; after [`Functions::disarm_timer`]
//!   returned no new invocation starts, also of one that was just going off. Arming an armed timer changes nothing but its period.
//! - **N5** An invocation that runs past its timeout is dropped and counts as failed.
//! - **N6** An event that was sent with an id shows it in every run, and to its exception handler, also to that of a handler
//!   that failed in its turn: so a function that keeps
//!   the ids of what it has done knows an event that was sent again or runs again. A provider may, and need not, take
//!   two events of one function with one id for one.
//! - **N7** No message and no sent event is taken for a function before its [`Handler::room`] has ended: what waits for that is in
//!   its queue, so it has not been tried, times out for nobody, and is there for others when this process dies.

use std::{any::Any, borrow::Cow, fmt, fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Receipt, Result, queue::Delivery};

/// Why a function runs.
#[derive(Debug, Clone)]
pub enum Event {
    /// Called by [`Functions::invoke`] or [`Functions::send`].
    Call {
        /// What its sender called it (N6); none: it was invoked, or sent without one.
        id: Option<Bytes>,
        /// What the caller passes.
        payload: Bytes,
    },
    /// Messages have come that a queue trigger is for.
    Messages {
        /// The queue that they are from: several may start one function.
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
        /// What the sender called the event (N6).
        id: Option<Bytes>,
        /// What it had been sent.
        payload: Bytes,
        /// What it said last.
        reason: String,
    },
}

/// How an invocation failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// Of [`Event::Messages`], how many leading messages are done and may be acknowledged.
    pub completed: usize,
    /// Whether the first of the others is given up at once: no further attempt can help it.
    pub is_hopeless: bool,
    /// What went wrong, for logs, dead letters and exception handlers.
    pub reason: String,
}

impl Failure {
    /// Nothing of the event is done.
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

    /// The same, and the message behind them is given up.
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

/// The code of a function: takes an event, returns a result. It may die between any two of its steps.
#[async_trait]
pub trait Handler: Debug + Send + Sync {
    /// Handles one event. The result matters to [`Functions::invoke`] only.
    async fn handle(&self, event: Event) -> Result<Bytes, Failure>;

    /// Ends once there is room for one more event, which is kept for that (N7). Who has room for any number says so at once.
    async fn room(&self) -> Room {
        Room::default()
    }

    /// As [`Handler::handle`], in the room that was kept for this event.
    async fn handle_in(&self, room: Room, event: Event) -> Result<Bytes, Failure> {
        let result = self.handle(event).await;
        drop(room);
        result
    }
}

/// Room for one event, kept until this is dropped.
#[derive(Default)]
pub struct Room(Option<Box<dyn Any + Send + Sync>>);

impl Room {
    /// Room for as long as `what` is kept.
    pub fn keeping(what: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(what)))
    }

    /// What was kept, for whoever keeps such things; none: it is somebody else's, or nothing.
    pub fn into_kept<T: Any + Send + Sync>(self) -> Option<Box<T>> {
        self.0.and_then(|kept| kept.downcast().ok())
    }
}

impl Debug for Room {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() {
            "Room(kept)"
        } else {
            "Room"
        })
    }
}

/// How a function is run.
#[derive(Debug, Clone)]
pub struct FunctionOptions {
    /// An invocation longer than this is dropped (N5).
    pub timeout: Duration,
    /// How often an event sent to it is tried in all (N2).
    pub attempts_max: u32,
    /// Who gets events that failed for good, as [`Event::Failed`]; nobody: they stay as dead letters.
    pub exception_handler: Option<String>,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            attempts_max: 3,
            exception_handler: None,
        }
    }
}

/// A function as a service hands it to whoever runs it.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The name others call it by.
    pub name: Cow<'static, str>,
    /// How it is run.
    pub options: FunctionOptions,
    /// Its code.
    pub handler: Arc<dyn Handler>,
}

/// A provider that runs code of this process, which is made known to it at any time.
pub trait Register: Functions {
    /// Makes a function known by its name; one of the same name is replaced. Events that were sent to it before a restart
    /// are delivered from now on, so this is called on a runtime.
    fn register(&self, definition: Definition);

    /// The queue in which events of `function` wait once there are any.
    fn event_queue(&self, function: &str) -> String;

    /// Makes sure that events of `function` are taken by this process, too, where their queue has come to be since it was made known
    /// here: another process has sent the first of them. Called by who has seen that there are some; returns at once.
    fn take_events(&self, function: &str);

    /// The event of which this is the body of its message in such a queue, and what that was called by its sender.
    ///
    /// Errors: `Corrupt`.
    fn event_of(&self, message: &Bytes, deduplication: Option<Bytes>) -> Result<Event>;
}

/// Which queue starts which function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTrigger {
    /// The queue.
    pub queue: String,
    /// The function its messages go to.
    pub function: String,
    /// The most messages given to one invocation.
    pub batch_messages_max: usize,
}

/// What a provider's functions cannot exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionLimits {
    /// The largest payload of an invocation or an event.
    pub payload_bytes_max: usize,
    /// The longest an invocation may run: a writer older than this is certainly gone.
    pub timeout_max: Duration,
}

/// Runs functions.
#[async_trait]
pub trait Functions: Debug + Send + Sync {
    /// Runs `function` with `payload` and returns its result (N1).
    ///
    /// Errors: `Invalid` if there is no such function or it failed by itself; `Unavailable` if it could not be run.
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes>;

    /// Has `function` run with `payload` some time soon, at least once (N2). Who may have to send it again gives it an
    /// `id` (N6), of at most [`DEDUPLICATION_BYTES_MAX`](crate::queue::DEDUPLICATION_BYTES_MAX).
    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt>;

    /// Whether there is a function of this name now.
    async fn knows(&self, function: &str) -> Result<bool>;

    /// Starts `trigger.function` whenever `trigger.queue` has messages (N3). Arming twice changes nothing.
    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()>;

    /// Stops the trigger of `queue`; running invocations finish.
    async fn disarm_queue(&self, queue: &str) -> Result<()>;

    /// Starts `function` every `period` from now on (N4).
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()>;

    /// Stops the timer of `function` (N4).
    async fn disarm_timer(&self, function: &str) -> Result<()>;

    /// What this provider cannot exceed.
    fn limits(&self) -> &FunctionLimits;
}
