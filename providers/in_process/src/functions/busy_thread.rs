//! A thread for triggers that keep the program's runtime busy.
//!
//! A message is handled soonest by the thread that received it, because a hand-over to another one
//! takes tens of microseconds. Many messages are handled fastest beside the program's connections,
//! on another core. So a trigger that takes more than [`BUSY_PART`] of a thread's time moves to the
//! thread here, and one that takes less than [`CALM_PART`] returns.
//!
//! A trigger moves only between two batches.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinError, JoinHandle},
};

/// How long a trigger is watched before it moves away, and before it returns.
const BUSY_WINDOW: Duration = Duration::from_millis(10);
const CALM_WINDOW: Duration = Duration::from_millis(50);

/// The part of the time that a busy trigger takes at least, and a calm one at most, in percent.
const BUSY_PART: u32 = 40;
const CALM_PART: u32 = 30;

/// The runtime with the one thread, made when the first trigger needs it.
#[derive(Debug, Default)]
pub(super) struct BusyThread(OnceLock<Option<Runtime>>);

impl BusyThread {
    /// Runs `work` on the thread. None if there is no core or no thread for it. Dropping the result
    /// stops the work.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<Elsewhere<T>> {
        let runtime = self.0.get_or_init(|| {
            thread::available_parallelism()
                .ok()
                .filter(|cores| cores.get() > 1)?;
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).thread_name("functions");
            let runtime = builder.enable_all().build();
            runtime
                .inspect_err(
                    |error| tracing::warn!(%error, "functions share the threads of connections"),
                )
                .ok()
        });
        Some(Elsewhere(runtime.as_ref()?.spawn(work)))
    }
}

impl Drop for BusyThread {
    fn drop(&mut self) {
        if let Some(Some(runtime)) = self.0.take() {
            // A runtime may not be dropped within another, because that would wait for its thread.
            runtime.shutdown_background();
        }
    }
}

/// Work on the other thread.
pub(super) struct Elsewhere<T>(JoinHandle<T>);

impl<T> Future for Elsewhere<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a trigger runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Among the tasks of the program.
    Here,
    /// On the thread for busy triggers.
    Elsewhere,
}

/// Whether a trigger should move to the other place.
#[derive(Debug, Default)]
pub(super) struct Load(AtomicBool);

impl Load {
    pub(super) fn should_move(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A future that measures the part of the time that it takes.
pub(super) struct Watched<'load, F> {
    inner: Pin<Box<F>>,
    place: Place,
    load: &'load Load,
    since: Instant,
    busy: Duration,
}

impl<'load, F: Future> Watched<'load, F> {
    pub(super) fn new(place: Place, load: &'load Load, inner: F) -> Self {
        Self {
            inner: Box::pin(inner),
            place,
            load,
            since: Instant::now(),
            busy: Duration::ZERO,
        }
    }

    fn account(&mut self, begun: Instant) {
        let now = Instant::now();
        self.busy += now - begun;
        let window = match self.place {
            Place::Here => BUSY_WINDOW,
            Place::Elsewhere => CALM_WINDOW,
        };
        let elapsed = now - self.since;
        if elapsed < window {
            return;
        }
        let should_move = match self.place {
            Place::Here => self.busy * 100 > elapsed * BUSY_PART,
            Place::Elsewhere => self.busy * 100 < elapsed * CALM_PART,
        };
        self.load.0.store(should_move, Ordering::Relaxed);
        (self.since, self.busy) = (now, Duration::ZERO);
    }
}

impl<F: Future> Future for Watched<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let begun = Instant::now();
        let polled = self.inner.as_mut().poll(context);
        self.account(begun);
        polled
    }
}
