//! The path of every port call: counted, delayed, refused, performed, recorded, answered or not.
//!
//! Faults strike here and nowhere else. A caller that dies does so in its call: the call never
//! returns, the invocation is marked as ended, and its runner drops it.

use std::{borrow::Cow, future::pending, sync::Arc, time::Duration};

use ports::{Error, ErrorKind, Result};

use crate::{
    cloud::{Cloud, Kept},
    faults::{CallFaults, draw_within},
    invocation::Invocation,
    store::Store,
};

/// Whether a call may change something. This decides the error of a lost answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Changes,
}

/// A call between its arrival and its answer.
#[derive(Debug)]
pub(crate) struct CallInProgress {
    operation: &'static str,
    subject: String,
    faults: CallFaults,
}

/// The outcome of a call in the trace.
pub(crate) type TraceText = Cow<'static, str>;

/// The most yields to other tasks on a delay too short for a timer.
const YIELDS_MAX: u32 = 3;

impl Cloud {
    /// A call that the store performs in one step.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        subject: String,
        kind: Kind,
        perform: impl FnOnce(&mut Store, Duration) -> Result<T>,
        trace_text: impl FnOnce(&T) -> TraceText,
    ) -> Result<T> {
        let call = self.begin_call(operation, subject).await?;
        let now = self.elapsed();
        let result = perform(&mut self.store(), now);
        self.end_call(call, kind, result, trace_text).await
    }

    /// The first half of a call: the faults before it is performed. It may be refused, or its
    /// caller may die.
    pub(crate) async fn begin_call(
        &self,
        operation: &'static str,
        subject: String,
    ) -> Result<CallInProgress> {
        self.trace().count_port_call();
        let caller = Invocation::current();
        let step = caller
            .as_ref()
            .map(|caller| (caller.function.as_str(), caller.next_call()));
        let faults = self.faults.draw(&mut self.random(), step);
        self.travel(&faults, faults.delay_before).await;
        if faults.caller_dies_before
            && let Some(caller) = &caller
        {
            self.record(operation, subject, "caller died before it");
            return die(caller).await;
        }
        if faults.store_crashes {
            self.crash(Kept::Durable);
            if let Some(caller) = &caller {
                return die(caller).await;
            }
        }
        if faults.refused || faults.store_crashes {
            let error = Error::unavailable(format!("{operation} {subject} in the simulated cloud"));
            self.record(operation, subject, "refused");
            return Err(error);
        }
        Ok(CallInProgress {
            operation,
            subject,
            faults,
        })
    }

    /// The second half of a call, which was performed with `result`: the faults after it. Its
    /// answer may be lost, or its caller may die.
    pub(crate) async fn end_call<T>(
        &self,
        call: CallInProgress,
        kind: Kind,
        result: Result<T>,
        trace_text: impl FnOnce(&T) -> TraceText,
    ) -> Result<T> {
        let CallInProgress {
            operation,
            subject,
            faults,
        } = call;
        let mut text = match &result {
            Ok(value) => trace_text(value),
            Err(error) => error.kind().to_string().into(),
        };
        let lost = faults.answer_lost && result.is_ok();
        let caller = Invocation::current().filter(|_| faults.caller_dies_after);
        match &caller {
            Some(_) => text = format!("{text}, caller died after it").into(),
            None if lost => text = format!("{text}, answer lost").into(),
            None => {}
        }
        self.record(operation, subject.as_str(), text);
        if let Some(caller) = &caller {
            return die(caller).await;
        }
        self.travel(&faults, faults.delay_after).await;
        if lost {
            let kind = match kind {
                Kind::Changes => ErrorKind::OutcomeUnknown,
                Kind::Reads => ErrorKind::Unavailable {
                    retry_after_ms: None,
                },
            };
            return Err(Error::new(
                kind,
                format!("{operation} {subject} in the simulated cloud"),
            ));
        }
        result
    }

    /// Delays one direction of a call. Returns at once in a calm world without latency.
    async fn travel(&self, faults: &CallFaults, delay: Option<Duration>) {
        let Some((delay, yields)) = self.draw_travel(faults, delay) else {
            return;
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if delay >= Duration::from_millis(1) {
            tokio::time::sleep(delay).await;
        }
    }

    fn draw_travel(&self, faults: &CallFaults, delay: Option<Duration>) -> Option<(Duration, u32)> {
        if !faults.any_enabled && self.options.latency.is_none() {
            return None;
        }
        let mut random = self.random();
        let latency = self
            .options
            .latency
            .as_ref()
            .map(|range| draw_within(range, &mut random));
        Some((
            delay.unwrap_or_default() + latency.unwrap_or_default(),
            random.u32(0..=YIELDS_MAX),
        ))
    }

    /// A short delay of the cloud's own steps while faults are possible.
    pub(crate) async fn pause_briefly(&self) {
        let faults = CallFaults {
            any_enabled: !self.faults.are_calm(),
            ..CallFaults::default()
        };
        self.travel(&faults, None).await;
    }
}

/// Ends `caller` and never returns; the runner of the invocation drops this future.
async fn die<T>(caller: &Arc<Invocation>) -> T {
    caller.end();
    pending().await
}
