//! Forwards the calls of functions.

use std::{fmt::Debug, future::Future, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Functions, Receipt, Result,
    functions::{FunctionLimits, QueueTrigger},
};

/// Functions around other ones. Each call does what [`Functions`] says of it.
#[expect(missing_docs, reason = "the port documents its calls")]
pub trait FunctionsDecorator: Debug + Send + Sync {
    /// The implementation that calls are forwarded to.
    fn inner(&self) -> &dyn Functions;

    fn invoke(&self, function: &str, payload: Bytes) -> impl Future<Output = Result<Bytes>> + Send {
        async move { self.inner().invoke(function, payload).await }
    }

    fn send(
        &self,
        function: &str,
        id: Option<Bytes>,
        payload: Bytes,
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().send(function, id, payload).await }
    }

    fn knows(&self, function: &str) -> impl Future<Output = Result<bool>> + Send {
        async move { self.inner().knows(function).await }
    }

    fn arm_queue(&self, trigger: QueueTrigger) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().arm_queue(trigger).await }
    }

    fn disarm_queue(&self, queue: &str) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().disarm_queue(queue).await }
    }

    fn arm_timer(
        &self,
        function: &str,
        period: Duration,
    ) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().arm_timer(function, period).await }
    }

    fn disarm_timer(&self, function: &str) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().disarm_timer(function).await }
    }

    fn limits(&self) -> &FunctionLimits {
        self.inner().limits()
    }
}

#[async_trait]
impl<D: FunctionsDecorator> Functions for D {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        FunctionsDecorator::invoke(self, function, payload).await
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        FunctionsDecorator::send(self, function, id, payload).await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        FunctionsDecorator::knows(self, function).await
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        FunctionsDecorator::arm_queue(self, trigger).await
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        FunctionsDecorator::disarm_queue(self, queue).await
    }

    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        FunctionsDecorator::arm_timer(self, function, period).await
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        FunctionsDecorator::disarm_timer(self, function).await
    }

    fn limits(&self) -> &FunctionLimits {
        FunctionsDecorator::limits(self)
    }
}
