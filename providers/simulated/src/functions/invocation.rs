//! One invocation: a handler's future that may be ended between any two of its port calls.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use futures_util::FutureExt;
use ports::{
    Event,
    functions::{Definition, Failure, Permit},
};
use tokio::sync::Notify;

use super::Shared;
use crate::{cloud::lock, run::raise};

tokio::task_local! {
    /// The invocation whose code is running. What a handler spawns by itself does not belong to it.
    static CURRENT: Arc<Invocation>;
}

/// One running invocation, as its port calls see it.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) function: String,
    pub(crate) number: u64,
    calls: AtomicU32,
    ended: Notify,
}

impl Invocation {
    /// The one whose code is asking.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// The number of its next port call, from zero.
    pub(crate) fn next_call(&self) -> u32 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends it: it makes no step after this one.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.function, self.number)
    }
}

/// How an invocation ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Done(Bytes),
    Failed(Failure),
    /// It was ended by a crash.
    Died,
    /// It ran past its timeout (N5).
    TimedOut,
}

impl Shared {
    /// Runs one invocation to whatever end it comes to.
    pub(crate) async fn run(&self, definition: &Definition, event: Event) -> Ended {
        self.run_in(Permit::default(), definition, event).await
    }

    /// The same with the permit that was reserved for it (N7).
    pub(crate) async fn run_in(
        &self,
        permit: Permit,
        definition: &Definition,
        event: Event,
    ) -> Ended {
        let invocation = Arc::new(Invocation {
            function: definition.name.clone().into_owned(),
            number: self.next_number(),
            calls: AtomicU32::new(0),
            ended: Notify::new(),
        });
        self.cloud.started(&invocation);
        self.cloud
            .record("start", invocation.to_string(), say_event(&event));
        let timeout = definition
            .options
            .timeout
            .min(self.cloud.options.functions.timeout_max);
        let work = CURRENT.scope(
            Arc::clone(&invocation),
            AssertUnwindSafe(definition.handler.handle_with(permit, event)).catch_unwind(),
        );
        let ended = tokio::select! {
            biased;
            () = invocation.ended.notified() => Ended::Died,
            result = work => match result {
                Ok(Ok(result)) => Ended::Done(result),
                Ok(Err(failure)) => Ended::Failed(failure),
                Err(panic) => {
                    raise(panic);
                    Ended::Died
                }
            },
            () = tokio::time::sleep(timeout) => Ended::TimedOut,
        };
        self.cloud.ended(&invocation);
        self.cloud
            .record("end", invocation.to_string(), say_end(&ended));
        ended
    }

    fn next_number(&self) -> u64 {
        let mut count = lock(&self.invocation_count);
        *count += 1;
        *count
    }
}

fn say_event(event: &Event) -> String {
    match event {
        Event::Call { payload, .. } => format!("call with {} bytes", payload.len()),
        Event::Messages { deliveries, .. } => crate::queue::say_deliveries(deliveries).into_owned(),
        Event::Timer => "timer".to_owned(),
        Event::Failed {
            function, reason, ..
        } => format!("{function} failed: {reason}"),
    }
}

fn say_end(ended: &Ended) -> String {
    match ended {
        Ended::Done(_) => "done".to_owned(),
        Ended::Failed(failure) => format!("failed after {}: {failure}", failure.completed),
        Ended::Died => "died".to_owned(),
        Ended::TimedOut => "ran past its timeout".to_owned(),
    }
}
