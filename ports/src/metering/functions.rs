//! Functions that count their calls and their runs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Meter, MeteredFunctions, Operation};
use crate::{
    Event, Functions, Handler, Receipt, Result,
    decorate::FunctionsDecorator,
    functions::{Definition, Failure, Permit, QueueTrigger},
};

impl MeteredFunctions {
    /// Wraps a function so that `meter` counts its runs. They are counted here instead of at the
    /// caller, because queues and timers cause them too.
    pub fn metered(definition: Definition, meter: Arc<Meter>) -> Definition {
        let inner = definition.handler;
        Definition {
            handler: Arc::new(MeteredHandler { inner, meter }),
            ..definition
        }
    }
}

impl FunctionsDecorator for MeteredFunctions {
    fn inner(&self) -> &dyn Functions {
        &*self.inner
    }

    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        let asked = payload.len();
        let call = self.inner.invoke(function, payload);
        self.meter
            .measure(Operation::FunctionInvoke, call, |answer| {
                (0, asked + answer.len())
            })
            .await
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        let bytes = payload.len();
        let call = self.inner.send(function, id, payload);
        self.meter
            .measure(Operation::FunctionSend, call, |_| (0, bytes))
            .await
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        let call = self.inner.arm_queue(trigger);
        self.meter.count(Operation::FunctionArm, call).await
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        let call = self.inner.disarm_queue(queue);
        self.meter.count(Operation::FunctionDisarm, call).await
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        let call = self.inner.arm_timer(function, period);
        self.meter.count(Operation::FunctionArm, call).await
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        let call = self.inner.disarm_timer(function);
        self.meter.count(Operation::FunctionDisarm, call).await
    }
}

#[derive(Debug)]
struct MeteredHandler {
    inner: Arc<dyn Handler>,
    meter: Arc<Meter>,
}

#[async_trait]
impl Handler for MeteredHandler {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.handle_with(Permit::default(), event).await
    }

    async fn permit(&self) -> Permit {
        self.inner.permit().await
    }

    async fn handle_with(&self, permit: Permit, event: Event) -> Result<Bytes, Failure> {
        let run = self.inner.handle_with(permit, event);
        self.meter.count(Operation::FunctionRun, run).await
    }
}
