//! Forwards the calls of queues and of their administration.

use std::future::Future;

use async_trait::async_trait;

use super::Decorator;
use crate::{
    Queue, QueueAdmin, Receipt, Result,
    queue::{Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions},
};

/// Queues around other ones. Each call does what [`Queue`] says of it.
#[expect(missing_docs, reason = "the port documents its calls")]
pub trait QueueDecorator: Decorator<Port: Queue> {
    fn create(
        &self,
        queue: &str,
        options: QueueOptions,
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().create(queue, options).await }
    }

    fn send(
        &self,
        queue: &str,
        messages: Vec<Message>,
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().send(queue, messages).await }
    }

    fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> impl Future<Output = Result<Vec<Delivery>>> + Send {
        async move {
            self.inner()
                .receive_hidden(queue, messages_max, hidden_ms)
                .await
        }
    }

    fn ready(&self, queue: &str) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().ready(queue).await }
    }

    fn acknowledge(
        &self,
        queue: &str,
        handles: &[Handle],
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().acknowledge(queue, handles).await }
    }

    fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().release(queue, handle, delay_ms, reason).await }
    }

    fn give_up(
        &self,
        queue: &str,
        handle: &Handle,
        reason: &str,
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().give_up(queue, handle, reason).await }
    }

    fn extend(
        &self,
        queue: &str,
        handle: &Handle,
        timeout_ms: u64,
    ) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().extend(queue, handle, timeout_ms).await }
    }

    fn limits(&self) -> &QueueLimits {
        self.inner().limits()
    }
}

#[async_trait]
impl<D: QueueDecorator> Queue for D {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        QueueDecorator::create(self, queue, options).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        QueueDecorator::send(self, queue, messages).await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        QueueDecorator::receive_hidden(self, queue, messages_max, hidden_ms).await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        QueueDecorator::ready(self, queue).await
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        QueueDecorator::acknowledge(self, queue, handles).await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        QueueDecorator::release(self, queue, handle, delay_ms, reason).await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        QueueDecorator::give_up(self, queue, handle, reason).await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        QueueDecorator::extend(self, queue, handle, timeout_ms).await
    }

    fn limits(&self) -> &QueueLimits {
        QueueDecorator::limits(self)
    }
}

/// Administration around another one. Each call does what [`QueueAdmin`] says of it.
#[expect(missing_docs, reason = "the port documents its calls")]
pub trait QueueAdminDecorator: Decorator<Port: QueueAdmin> {
    fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send {
        async move { self.inner().dead_letters(queue, after, letters_max).await }
    }

    fn redrive(
        &self,
        queue: &str,
        letters: &[LetterId],
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().redrive(queue, letters).await }
    }

    fn purge(
        &self,
        queue: &str,
        letters: &[LetterId],
    ) -> impl Future<Output = Result<Receipt>> + Send {
        async move { self.inner().purge(queue, letters).await }
    }

    fn blocked(&self, queue: &str) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send {
        async move { self.inner().blocked(queue).await }
    }

    fn backlog(&self, queue: &str) -> impl Future<Output = Result<Backlog>> + Send {
        async move { self.inner().backlog(queue).await }
    }
}

#[async_trait]
impl<D: QueueAdminDecorator> QueueAdmin for D {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        QueueAdminDecorator::dead_letters(self, queue, after, letters_max).await
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        QueueAdminDecorator::redrive(self, queue, letters).await
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        QueueAdminDecorator::purge(self, queue, letters).await
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        QueueAdminDecorator::blocked(self, queue).await
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        QueueAdminDecorator::backlog(self, queue).await
    }
}
