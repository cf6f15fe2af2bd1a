//! The execution of a function: one invocation from its start to its end.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use futures_util::FutureExt;
use ports::{
    Event,
    functions::{Definition, Failure, Permit},
};

use super::Shared;
use crate::{
    invocation::Invocation,
    run::{lock, raise},
};

/// How an invocation ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Done(Bytes),
    Failed(Failure),
    /// A crash ended it.
    Died,
    /// It exceeded its timeout (N5).
    TimedOut,
}

impl Shared {
    /// Runs one invocation to its end.
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
        let name = definition.name.clone().into_owned();
        let invocation = Invocation::new(name, self.next_number());
        self.cloud.started(&invocation);
        self.cloud
            .record("start", invocation.to_string(), trace_event(&event));
        let timeout = definition
            .options
            .timeout
            .min(self.cloud.options.functions.timeout_max);
        let work = AssertUnwindSafe(definition.handler.handle_with(permit, event)).catch_unwind();
        let ended = tokio::select! {
            biased;
            () = invocation.has_ended() => Ended::Died,
            result = invocation.scope(work) => match result {
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
            .record("end", invocation.to_string(), trace_end(&ended));
        ended
    }

    fn next_number(&self) -> u64 {
        let mut count = lock(&self.invocation_count);
        *count += 1;
        *count
    }
}

fn trace_event(event: &Event) -> String {
    match event {
        Event::Call { payload, .. } => format!("call with {} bytes", payload.len()),
        Event::Messages { deliveries, .. } => {
            crate::queue::trace_deliveries(deliveries).into_owned()
        }
        Event::Timer => "timer".to_owned(),
        Event::Failed {
            function, reason, ..
        } => format!("{function} failed: {reason}"),
    }
}

fn trace_end(ended: &Ended) -> String {
    match ended {
        Ended::Done(_) => "done".to_owned(),
        Ended::Failed(failure) => format!("failed after {}: {failure}", failure.completed),
        Ended::Died => "died".to_owned(),
        Ended::TimedOut => "ran past its timeout".to_owned(),
    }
}
