//! Requests that wait.
//!
//! A request is polled once on the thread that read it. Where the volume answers at once, that is all
//! and no other thread wakes. Otherwise a task takes it over, so that the reader can go on.

use std::{
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, FutureExt as _, select};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use super::answer::{self, Outcome};
use crate::{handler::Responder, wire::Errno};

/// How long a call goes on after an interrupt, before it fails with `EINTR`.
const PATIENCE: Duration = Duration::from_secs(1);

/// A started request.
pub(super) enum Work {
    /// It is answered.
    Done(Outcome),
    /// It may have to wait.
    Later(Patience, BoxFuture<'static, Outcome>),
}

/// The effect of an interrupt on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It ends at once: it waits for a lock.
    None,
    /// It ends after [`PATIENCE`].
    Short,
    /// It goes on.
    Endless,
}

/// The requests that wait, each with the channel that interrupts it.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<BTreeMap<u64, oneshot::Sender<()>>>);

impl InFlight {
    pub(super) fn run(
        self: &Arc<Self>,
        runtime: &Handle,
        patience: Patience,
        mut work: BoxFuture<'static, Outcome>,
        responder: Responder,
    ) {
        {
            let _entered = runtime.enter();
            let context = &mut Context::from_waker(Waker::noop());
            // A wake-up that this poll misses is no loss: the task polls again.
            if let Poll::Ready(outcome) = work.poll_unpin(context) {
                return answer::send(outcome, responder);
            }
        }
        let unique = responder.unique();
        let (interrupt, interrupted) = oneshot::channel();
        {
            let mut waiting = self.0.lock();
            if responder.is_interrupted() {
                let _ = interrupt.send(());
            } else {
                waiting.insert(unique, interrupt);
            }
        }
        let in_flight = Arc::clone(self);
        runtime.spawn(async move {
            let interrupted = Box::pin(until_given_up(interrupted, patience));
            let outcome = match select(work, interrupted).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right(((), _)) => Err(Errno::EINTR),
            };
            // Before the reply: the kernel may then give the number to another request.
            in_flight.0.lock().remove(&unique);
            answer::send(outcome, responder);
        });
    }

    pub(super) fn interrupt(&self, unique: u64) {
        if let Some(interrupt) = self.0.lock().remove(&unique) {
            let _ = interrupt.send(());
        }
    }
}

async fn until_given_up(interrupted: oneshot::Receiver<()>, patience: Patience) {
    let is_interrupted = interrupted.await.is_ok();
    match patience {
        Patience::None if is_interrupted => {}
        Patience::Short if is_interrupted => tokio::time::sleep(PATIENCE).await,
        _ => std::future::pending().await,
    }
}
