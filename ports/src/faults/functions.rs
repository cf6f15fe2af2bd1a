//! Functions with faults on the way to them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{FaultSchedule, Lost, Trouble};
use crate::{
    Clock, Functions, Receipt, Result, decorate::FunctionsDecorator, functions::QueueTrigger,
};

/// Fails as its schedule says, and asks the functions it wraps otherwise.
#[derive(Debug, Clone)]
pub struct FaultyFunctions {
    inner: Arc<dyn Functions>,
    trouble: Trouble,
}

impl FaultyFunctions {
    /// Puts `schedule` between callers and `inner`.
    pub fn new(
        inner: Arc<dyn Functions>,
        schedule: Arc<dyn FaultSchedule>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner,
            trouble: Trouble { schedule, clock },
        }
    }
}

impl FunctionsDecorator for FaultyFunctions {
    fn inner(&self) -> &dyn Functions {
        &*self.inner
    }

    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        let call = self.inner.invoke(function, payload);
        self.trouble
            .with("functions.invoke", Lost::Unknown, call)
            .await
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        let call = self.inner.send(function, id, payload);
        self.trouble
            .with("functions.send", Lost::Unknown, call)
            .await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        self.trouble
            .with(
                "functions.knows",
                Lost::TryAgain,
                self.inner.knows(function),
            )
            .await
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        self.trouble
            .with(
                "functions.arm_queue",
                Lost::TryAgain,
                self.inner.arm_queue(trigger),
            )
            .await
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        self.trouble
            .with(
                "functions.disarm_queue",
                Lost::TryAgain,
                self.inner.disarm_queue(queue),
            )
            .await
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        let call = self.inner.arm_timer(function, period);
        self.trouble
            .with("functions.arm_timer", Lost::TryAgain, call)
            .await
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let call = self.inner.disarm_timer(function);
        self.trouble
            .with("functions.disarm_timer", Lost::TryAgain, call)
            .await
    }
}
