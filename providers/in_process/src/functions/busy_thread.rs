//! A thread for triggers that keep the program's runtime busy.
//!
//! A message is handled soonest by the thread that received it, because a hand-over to another one
//! takes tens of microseconds. Many messages are handled fastest beside the program's connections,
//! on another core. So a trigger that takes more than [`BUSY_PART`] of a thread's time moves to the
//! thread here, and one that takes less than [`CALM_PART`] returns.
//!
//! A trigger moves only between two batches, and only one is there at a time: two of them would each
//! take the other's time. Everything else that functions start belongs to the program's runtime.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinError, JoinHandle},
};

/// How long a trigger is watched before it moves away, and before it returns.
const BUSY_WINDOW: Duration = Duration::from_millis(10);
const CALM_WINDOW: Duration = Duration::from_millis(50);

/// The part of the time that a busy trigger takes at least, and a calm one at most, in percent.
const BUSY_PART: u32 = 40;
const CALM_PART: u32 = 30;

/// The thread for a busy trigger, and the program's runtime.
#[derive(Debug)]
pub(super) struct BusyThread {
    /// Made when the first trigger needs it.
    runtime: OnceLock<Option<Runtime>>,
    is_taken: Arc<AtomicBool>,
    program: Handle,
    now: fn() -> Instant,
}

/// A trigger's right to the thread.
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl BusyThread {
    /// # Panics
    /// Outside of the program's runtime.
    pub(super) fn new(now: fn() -> Instant) -> Self {
        Self {
            runtime: OnceLock::new(),
            is_taken: Arc::default(),
            program: Handle::current(),
            now,
        }
    }

    /// The clock by which loads are measured.
    pub(super) fn clock(&self) -> fn() -> Instant {
        self.now
    }

    /// Runs `work` among the tasks of the program, also if the caller is on this thread.
    pub(super) fn spawn_in_program(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.program.spawn(work);
    }

    /// Runs `work` on the thread. None if another trigger has it, or if there is no core or no thread
    /// for it. Dropping the result stops the work.
    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<Elsewhere> {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let taken = Taken(Arc::clone(&self.is_taken));
        let runtime = self.runtime.get_or_init(|| {
            let cores = thread::available_parallelism().ok()?;
            if cores.get() == 1 {
                return None;
            }
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).thread_name("functions");
            let runtime = builder.enable_all().build();
            runtime
                .inspect_err(|error| {
                    tracing::warn!(%error, "functions share the threads of connections");
                })
                .ok()
        });
        Some(Elsewhere(runtime.as_ref()?.spawn(async move {
            work.await;
            drop(taken);
        })))
    }
}

impl Drop for BusyThread {
    fn drop(&mut self) {
        if let Some(Some(runtime)) = self.runtime.take() {
            // A runtime may not be dropped within another, because that would wait for its thread.
            runtime.shutdown_background();
        }
    }
}

/// Work on the other thread.
pub(super) struct Elsewhere(JoinHandle<()>);

impl Future for Elsewhere {
    type Output = Result<(), JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for Elsewhere {
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

/// The part of a thread's time that a trigger takes.
#[derive(Debug)]
struct Share {
    place: Place,
    /// The start of the window, unless there was no turn yet.
    since: Option<Instant>,
    busy: Duration,
}

impl Share {
    fn at(place: Place) -> Self {
        Self {
            place,
            since: None,
            busy: Duration::ZERO,
        }
    }

    /// Adds a turn of the trigger. At the end of a window, answers whether the trigger should move.
    fn add(&mut self, begun: Instant, ended: Instant) -> Option<bool> {
        self.busy += ended - begun;
        let (window, part) = match self.place {
            Place::Here => (BUSY_WINDOW, BUSY_PART),
            Place::Elsewhere => (CALM_WINDOW, CALM_PART),
        };
        let elapsed = ended - *self.since.get_or_insert(begun);
        if elapsed < window {
            return None;
        }
        let is_busy = self.busy * 100 > elapsed * part;
        (self.since, self.busy) = (Some(ended), Duration::ZERO);
        Some(is_busy == (self.place == Place::Here))
    }
}

/// A future whose share is watched.
pub(super) struct Watched<'load, F> {
    inner: Pin<Box<F>>,
    share: Share,
    load: &'load Load,
    now: fn() -> Instant,
}

impl<'load, F: Future> Watched<'load, F> {
    /// `inner` at `place`, with its load measured by `now`.
    pub(super) fn new(place: Place, now: fn() -> Instant, load: &'load Load, inner: F) -> Self {
        Self {
            inner: Box::pin(inner),
            share: Share::at(place),
            load,
            now,
        }
    }
}

impl<F: Future> Future for Watched<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let begun = (self.now)();
        let polled = self.inner.as_mut().poll(context);
        let ended = (self.now)();
        if let Some(should_move) = self.share.add(begun, ended) {
            self.load.0.store(should_move, Ordering::Relaxed);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a trigger moves that takes `percent` of the time, in turns of a millisecond.
    fn moves(place: Place, percent: u32) -> bool {
        let (since, turn) = (Instant::now(), Duration::from_millis(1));
        let mut share = Share::at(place);
        let idle = turn * (100 - percent) / 100;
        let mut begins = (0..).map(|number| since + turn * number + idle);
        let moves = begins.find_map(|begun| share.add(begun, begun + turn * percent / 100));
        moves.expect("the window ends")
    }

    #[test]
    fn a_busy_trigger_moves_and_a_calm_one_returns() {
        assert!(moves(Place::Here, BUSY_PART + 10));
        assert!(!moves(Place::Here, BUSY_PART - 10));
        assert!(moves(Place::Elsewhere, CALM_PART - 10));
        assert!(!moves(Place::Elsewhere, CALM_PART + 10));
    }
}
