//! Timers: one task each (N4).
//!
//! A timer's task decides under a lock to fire, and the function starts a moment later, perhaps on
//! another thread than a call that disarms the timer. Disarming therefore waits until the function
//! was polled once. A second disarming call, beside the first or after its caller gave up, waits
//! for the same start.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use ports::functions::{Definition, Event};
use tokio::{sync::Notify, task, time::Instant};

use super::invocation::Invocation;

/// The timers of all functions.
#[derive(Debug, Default)]
pub(super) struct Timers {
    armed: HashMap<String, Arc<Timer>>,
    /// Disarmed timers whose functions may be about to start.
    disarmed: Vec<(String, Arc<Timer>)>,
}

impl Timers {
    /// The timer of `function`, if the caller must start its task. A timer that runs already has
    /// its period changed.
    pub(super) fn arm(&mut self, function: &str, period: Duration) -> Option<Arc<Timer>> {
        if let Some(armed) = self.armed.get(function) {
            armed.change_period(period);
            return None;
        }
        let timer = Arc::new(Timer::new(period));
        self.armed.insert(function.to_owned(), Arc::clone(&timer));
        Some(timer)
    }

    /// Disarms the timer of `function`: it does not fire again. Returns the timers whose start the
    /// caller must await ([`Timer::wait_until_started`]).
    pub(super) fn disarm(&mut self, function: &str) -> Vec<Arc<Timer>> {
        if let Some(timer) = self.armed.remove(function) {
            timer.stop();
            self.disarmed.push((function.to_owned(), timer));
        }
        self.disarmed.retain(|(_, timer)| timer.is_starting());
        let own = self.disarmed.iter().filter(|(of, _)| of == function);
        own.map(|(_, timer)| Arc::clone(timer)).collect()
    }

    /// Stops all timers: none fires again.
    pub(super) fn stop(&mut self) {
        self.armed.drain().for_each(|(_, timer)| timer.stop());
    }
}

/// An armed timer. Its period is read before each tick.
#[derive(Debug)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Notify,
    /// Notified when a function that was about to start has started.
    started: Notify,
    /// The task that runs the function.
    task: OnceLock<task::Id>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    period: Duration,
    armed: bool,
    is_starting: bool,
}

impl Timer {
    fn new(period: Duration) -> Self {
        let state = State {
            period,
            armed: true,
            is_starting: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            started: Notify::new(),
            task: OnceLock::new(),
        }
    }

    fn change_period(&self, period: Duration) {
        self.state.lock().period = period;
        self.changed.notify_one();
    }

    /// Prevents all further ticks.
    fn stop(&self) {
        self.state.lock().armed = false;
        self.changed.notify_one();
    }

    fn is_starting(&self) -> bool {
        self.state.lock().is_starting
    }

    /// Waits until no start is pending. To be called on a disarmed timer. Returns at once in a
    /// function that disarms its own timer, because it has started.
    pub(super) async fn wait_until_started(&self) {
        if task::try_id().is_some_and(|id| self.task.get() == Some(&id)) {
            return;
        }
        loop {
            let started = self.started.notified();
            if !self.is_starting() {
                return;
            }
            started.await;
        }
    }

    fn has_started(&self) {
        self.state.lock().is_starting = false;
        self.started.notify_waiters();
    }

    /// Sleeps until a period after `last`. Returns whether the timer is still armed then; if so,
    /// the function must start.
    async fn wait_for_tick(&self, last: Instant) -> bool {
        loop {
            let State { period, armed, .. } = *self.state.lock();
            if !armed {
                return false;
            }
            let slept = tokio::time::timeout_at(last + period, self.changed.notified()).await;
            if slept.is_err() {
                let mut state = self.state.lock();
                state.is_starting = state.armed;
                return state.armed;
            }
        }
    }
}

/// Fires until disarmed. A run that exceeds the period delays the next tick; runs never overlap.
pub(super) async fn run(
    timer: Arc<Timer>,
    definition: impl Fn() -> Option<Arc<Definition>> + Send,
    function: String,
) {
    let mut last = Instant::now();
    let _ = timer.task.set(task::id());
    while timer.wait_for_tick(last).await {
        last = Instant::now();
        let Some(definition) = definition() else {
            return timer.has_started();
        };
        let mut invocation = pin!(Invocation::new(definition, Event::Timer));
        let begun =
            std::future::poll_fn(|context| Poll::Ready(invocation.as_mut().poll(context))).await;
        timer.has_started();
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
