//! Functions with faults on the way to them.

use std::time::Duration;

use bytes::Bytes;

use super::FaultyFunctions;
use crate::{Functions, Receipt, Result, decorate::FunctionsDecorator, functions::QueueTrigger};

impl FunctionsDecorator for FaultyFunctions {
    fn inner(&self) -> &dyn Functions {
        &*self.inner
    }

    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        let call = self.inner.invoke(function, payload);
        self.change("functions.invoke", call).await
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        let call = self.inner.send(function, id, payload);
        self.change("functions.send", call).await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        let call = self.inner.knows(function);
        self.repeatable("functions.knows", call).await
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        let call = self.inner.arm_queue(trigger);
        self.repeatable("functions.arm_queue", call).await
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        let call = self.inner.disarm_queue(queue);
        self.repeatable("functions.disarm_queue", call).await
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        let call = self.inner.arm_timer(function, period);
        self.repeatable("functions.arm_timer", call).await
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let call = self.inner.disarm_timer(function);
        self.repeatable("functions.disarm_timer", call).await
    }
}
