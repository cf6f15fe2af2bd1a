//! Timers: one task each (N4).
//!
//! A timer's task decides to fire, and the function starts a moment later, perhaps on another
//! thread than a call that disarms the timer. The task holds a lock from the decision until the
//! function was polled once. Disarming therefore takes that lock: it waits for a pending start.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use ports::functions::{Definition, Event};
use tokio::{
    sync::{MutexGuard, Notify},
    time::Instant,
};

use super::invocation::Invocation;

/// Held while a function is about to start.
type Starting = Arc<tokio::sync::Mutex<()>>;

/// The timers of all functions, each with the lock that all timers of its function share.
#[derive(Debug, Default)]
pub(super) struct Timers(HashMap<String, (Option<Arc<Timer>>, Starting)>);

impl Timers {
    /// The timer of `function`, if the caller must start its task. A timer that runs already has
    /// its period changed.
    pub(super) fn arm(&mut self, function: &str, period: Duration) -> Option<Arc<Timer>> {
        let (armed, starting) = self.0.entry(function.to_owned()).or_default();
        if let Some(armed) = armed {
            *armed.period.lock() = period;
            armed.changed.notify_one();
            return None;
        }
        let timer = Arc::new(Timer {
            period: Mutex::new(period),
            is_armed: AtomicBool::new(true),
            changed: Notify::new(),
            starting: Arc::clone(starting),
        });
        Some(Arc::clone(armed.insert(timer)))
    }

    /// Disarms the timer of `function`: it does not fire again. A pending start is over once the
    /// caller has had the lock.
    pub(super) fn disarm(&mut self, function: &str) -> Option<Starting> {
        let (armed, starting) = self.0.get_mut(function)?;
        if let Some(timer) = armed.take() {
            timer.stop();
        }
        Some(Arc::clone(starting))
    }

    /// Stops all timers: none fires again.
    pub(super) fn stop(&mut self) {
        for (_, (armed, _)) in self.0.drain() {
            if let Some(timer) = armed {
                timer.stop();
            }
        }
    }
}

/// An armed timer. Its period is read before each tick.
#[derive(Debug)]
pub(super) struct Timer {
    period: Mutex<Duration>,
    is_armed: AtomicBool,
    changed: Notify,
    starting: Starting,
}

impl Timer {
    /// Prevents all further ticks.
    fn stop(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Sleeps until a period after `last`. Returns the lock to hold until the function has started;
    /// none: the timer was disarmed.
    async fn wait_for_tick(&self, last: Instant) -> Option<MutexGuard<'_, ()>> {
        while self.is_armed.load(Ordering::SeqCst) {
            let next = last + *self.period.lock();
            let slept = tokio::time::timeout_at(next, self.changed.notified()).await;
            if slept.is_err() {
                let starting = self.starting.lock().await;
                return self.is_armed.load(Ordering::SeqCst).then_some(starting);
            }
        }
        None
    }
}

/// Fires until disarmed. A run that exceeds the period delays the next tick; runs never overlap.
pub(super) async fn run(
    timer: Arc<Timer>,
    definition: impl Fn() -> Option<Arc<Definition>> + Send,
    function: String,
) {
    let mut last = Instant::now();
    while let Some(starting) = timer.wait_for_tick(last).await {
        last = Instant::now();
        let Some(definition) = definition() else {
            return;
        };
        let mut invocation = pin!(Invocation::new(definition, Event::Timer));
        let begun =
            std::future::poll_fn(|context| Poll::Ready(invocation.as_mut().poll(context))).await;
        drop(starting);
        let ran = match begun {
            Poll::Ready(ran) => ran,
            Poll::Pending => invocation.await,
        };
        if let Err(failure) = ran {
            tracing::warn!(
                function,
                reason = failure.reason,
                "a scheduled function failed"
            );
        }
    }
}
