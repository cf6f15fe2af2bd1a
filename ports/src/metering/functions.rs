//! Functions that count their calls, and their runs with the memory and time they took.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Carried, Count, Meter, Operation};
use crate::{
    Clock, Event, Functions, Handler, Monotonic, Receipt, Result,
    decorate::FunctionsDecorator,
    functions::{Definition, Failure, Permit, QueueTrigger},
};

/// Counts calls and bytes of the functions it wraps.
#[derive(Debug, Clone)]
pub struct MeteredFunctions {
    inner: Arc<dyn Functions>,
    meter: Arc<Meter>,
}

impl MeteredFunctions {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: Arc<dyn Functions>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }

    /// Wraps a function so that `meter` counts its runs, and `memory_mb` times their duration.
    ///
    /// Runs are counted here instead of at the caller, because queues and timers cause them too.
    pub fn metered(
        definition: Definition,
        memory_mb: u32,
        meter: Arc<Meter>,
        clock: Arc<dyn Clock>,
    ) -> Definition {
        let handler = MeteredHandler {
            inner: definition.handler,
            memory_mb,
            meter,
            clock,
        };
        Definition {
            handler: Arc::new(handler),
            ..definition
        }
    }

    fn ended<T>(&self, operation: Operation, result: &Result<T>, bytes: usize) {
        self.meter.ended(operation, result, |_| Carried {
            items: 0,
            bytes: bytes as u64,
            units: 1,
        });
    }
}

impl FunctionsDecorator for MeteredFunctions {
    fn inner(&self) -> &dyn Functions {
        &*self.inner
    }

    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        self.meter.call(Operation::FunctionInvoke);
        let asked = payload.len();
        let result = self.inner.invoke(function, payload).await;
        let answered = result.as_ref().map_or(0, Bytes::len);
        self.ended(Operation::FunctionInvoke, &result, asked + answered);
        result
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        self.meter.call(Operation::FunctionSend);
        let bytes = payload.len();
        let result = self.inner.send(function, id, payload).await;
        self.ended(Operation::FunctionSend, &result, bytes);
        result
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        self.meter.call(Operation::FunctionArm);
        let result = self.inner.arm_queue(trigger).await;
        self.ended(Operation::FunctionArm, &result, 0);
        result
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        self.meter.call(Operation::FunctionDisarm);
        let result = self.inner.disarm_queue(queue).await;
        self.ended(Operation::FunctionDisarm, &result, 0);
        result
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        self.meter.call(Operation::FunctionArm);
        let result = self.inner.arm_timer(function, period).await;
        self.ended(Operation::FunctionArm, &result, 0);
        result
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        self.meter.call(Operation::FunctionDisarm);
        let result = self.inner.disarm_timer(function).await;
        self.ended(Operation::FunctionDisarm, &result, 0);
        result
    }
}

#[derive(Debug)]
struct MeteredHandler {
    inner: Arc<dyn Handler>,
    memory_mb: u32,
    meter: Arc<Meter>,
    clock: Arc<dyn Clock>,
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
        self.meter.count(
            Operation::FunctionRun,
            Count {
                calls: 1,
                units: 1,
                ..Count::default()
            },
        );
        // Counted when dropped, so that a run that its timeout ends is counted too.
        let _run = Run {
            handler: self,
            started: self.clock.monotonic(),
        };
        let result = self.inner.handle_with(permit, event).await;
        self.meter
            .ended(Operation::FunctionRun, &result, |_| Carried::default());
        result
    }
}

struct Run<'handler> {
    handler: &'handler MeteredHandler,
    started: Monotonic,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let took = self.handler.clock.monotonic().since(self.started);
        // Clouds bill whole milliseconds, and no run is free.
        let ms = took.as_nanos().div_ceil(1_000_000).max(1) as u64;
        self.handler
            .meter
            .computed(ms * u64::from(self.handler.memory_mb));
    }
}
