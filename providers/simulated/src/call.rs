//! The way of every port call: counted, delayed, refused, performed, recorded, answered or not.
//!
//! Here, and only here, faults strike. A caller that dies does so in its call: the call never returns, the
//! invocation is told that it has ended, and whoever runs it drops it.

use std::{borrow::Cow, future::pending, sync::Arc, time::Duration};

use ports::{Error, ErrorKind, Result};

use crate::{
    cloud::{Cloud, Kept},
    faults::{Fate, draw_within},
    functions::Invocation,
    store::Store,
};

/// Whether a call may change something: decides what a lost answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Changes,
}

/// A call that has arrived and will leave.
#[derive(Debug)]
pub(crate) struct Passage {
    operation: &'static str,
    subject: String,
    fate: Fate,
}

/// How a call ended, as the trace says it.
pub(crate) type Said = Cow<'static, str>;

/// Other tasks run first up to this often on a delay too short for a timer.
const YIELDS_MAX: u32 = 3;

impl Cloud {
    /// A call that is performed on the store in one step.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        subject: String,
        kind: Kind,
        perform: impl FnOnce(&mut Store, Duration) -> Result<T>,
        say: impl FnOnce(&T) -> Said,
    ) -> Result<T> {
        let passage = self.arrive(operation, subject).await?;
        let now = self.elapsed();
        let result = perform(&mut self.store(), now);
        self.leave(passage, kind, result, say).await
    }

    /// A call arrives, unless it is refused or its caller dies on the way.
    pub(crate) async fn arrive(&self, operation: &'static str, subject: String) -> Result<Passage> {
        self.trace().count_port_call();
        let caller = Invocation::current();
        let step = caller
            .as_ref()
            .map(|caller| (caller.function.as_str(), caller.next_call()));
        let fate = self.faults.draw(&mut self.random(), step);
        self.travel(&fate, fate.delay_before).await;
        if fate.caller_dies_before
            && let Some(caller) = &caller
        {
            self.record(operation, subject, "caller died before it");
            return die(caller).await;
        }
        if fate.store_crashes {
            self.crash(Kept::Durable);
            if let Some(caller) = &caller {
                return die(caller).await;
            }
        }
        if fate.refused || fate.store_crashes {
            let error = Error::unavailable(format!("{operation} {subject} in the simulated cloud"));
            self.record(operation, subject, "refused");
            return Err(error);
        }
        Ok(Passage {
            operation,
            subject,
            fate,
        })
    }

    /// A call has been performed with `result`; its answer leaves, unless it is lost or its caller is dead.
    pub(crate) async fn leave<T>(
        &self,
        passage: Passage,
        kind: Kind,
        result: Result<T>,
        say: impl FnOnce(&T) -> Said,
    ) -> Result<T> {
        let Passage {
            operation,
            subject,
            fate,
        } = passage;
        let mut said = match &result {
            Ok(value) => say(value),
            Err(error) => error.kind().to_string().into(),
        };
        let lost = fate.answer_lost && result.is_ok();
        let caller = Invocation::current().filter(|_| fate.caller_dies_after);
        match &caller {
            Some(_) => said = format!("{said}, caller died after it").into(),
            None if lost => said = format!("{said}, answer lost").into(),
            None => {}
        }
        self.record(operation, subject.as_str(), said);
        if let Some(caller) = &caller {
            return die(caller).await;
        }
        self.travel(&fate, fate.delay_after).await;
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

    /// Lets virtual time pass for one way of a call; nothing at all in a calm world without latency.
    async fn travel(&self, fate: &Fate, delay: Option<Duration>) {
        let Some((delay, yields)) = self.draw_travel(fate, delay) else {
            return;
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if delay >= Duration::from_millis(1) {
            tokio::time::sleep(delay).await;
        }
    }

    fn draw_travel(&self, fate: &Fate, delay: Option<Duration>) -> Option<(Duration, u32)> {
        if !fate.stormy && self.options.latency.is_none() {
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

    /// What the cloud does by itself takes a moment as well.
    pub(crate) async fn dawdle(&self) {
        let fate = Fate {
            stormy: !self.faults.are_calm(),
            ..Fate::default()
        };
        self.travel(&fate, None).await;
    }
}

/// Ends `caller` and never returns; whoever runs it drops this.
async fn die<T>(caller: &Arc<Invocation>) -> T {
    caller.end();
    pending().await
}
