//! One run of a handler, with its timeout (N5).

use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use ports::functions::{Definition, Event, Failure, Permit};
use tokio::time::Sleep;

type Running =
    Pin<Box<dyn Future<Output = Result<Result<Bytes, Failure>, Box<dyn Any + Send>>> + Send>>;

/// A run of a handler. Dropping it drops the run.
pub(super) struct Invocation {
    running: Running,
    timeout: Duration,
    /// Armed when the run first waits: most never do.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Invocation {
    pub(super) fn new(definition: Arc<Definition>, event: Event) -> Self {
        Self::within(Permit::default(), definition, event)
    }

    /// One with the permit that was reserved for it (N7).
    pub(super) fn within(permit: Permit, definition: Arc<Definition>, event: Event) -> Self {
        let timeout = definition.options.timeout;
        let run = async move { definition.handler.handle_with(permit, event).await };
        Self {
            running: Box::pin(AssertUnwindSafe(run).catch_unwind()),
            timeout,
            timer: None,
        }
    }
}

impl Future for Invocation {
    type Output = Result<Bytes, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.running.as_mut().poll(context) {
            Poll::Ready(Ok(result)) => return Poll::Ready(result),
            Poll::Ready(Err(panic)) => {
                return Poll::Ready(Err(Failure::new(format!("panicked: {}", message(&*panic)))));
            }
            Poll::Pending => {}
        }
        let timeout = self.timeout;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                Poll::Ready(Err(Failure::new(format!("ran longer than {timeout:?}"))))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
