//! Timers: one task each (N4).
//!
//! Whether a timer is armed is decided when it goes off, and its function begins a moment later, on another thread than
//! whoever disarms it. So disarming waits until what was decided has begun: until the function was polled once. Who disarms
//! beside another, or after one who gave up waiting, finds the timer disarmed, and waits for the same.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use ports::functions::Event;
use tokio::{sync::Notify, task, time::Instant};

use super::{invocation::Invocation, registry::Inner};

/// The timers of all functions.
#[derive(Debug, Default)]
pub(super) struct Timers {
    armed: HashMap<String, Arc<Timer>>,
    /// Those of them disarmed whose functions may be about to begin.
    disarmed: Vec<(String, Arc<Timer>)>,
}

impl Timers {
    /// The timer of `function`, if that has to be started; else its period is changed.
    pub(super) fn arm(&mut self, function: &str, period: Duration) -> Option<Arc<Timer>> {
        if let Some(armed) = self.armed.get(function) {
            armed.change_period(period);
            return None;
        }
        let timer = Arc::new(Timer::new(period));
        self.armed.insert(function.to_owned(), Arc::clone(&timer));
        Some(timer)
    }

    /// Nothing is decided to start for `function` from now on. Answers whom to wait for ([`Timer::disarmed`]).
    pub(super) fn disarm(&mut self, function: &str) -> Vec<Arc<Timer>> {
        if let Some(timer) = self.armed.remove(function) {
            timer.stop();
            self.disarmed.push((function.to_owned(), timer));
        }
        self.disarmed.retain(|(_, timer)| timer.is_starting());
        let mine = self.disarmed.iter().filter(|(of, _)| of == function);
        mine.map(|(_, timer)| Arc::clone(timer)).collect()
    }

    /// Nothing is decided to start from now on.
    pub(super) fn stop(&mut self) {
        self.armed.drain().for_each(|(_, timer)| timer.stop());
    }
}

/// An armed timer. Its period is read at each turn.
#[derive(Debug)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Notify,
    /// What was decided to start has.
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

    /// Nothing is decided to start from now on.
    fn stop(&self) {
        self.state.lock().armed = false;
        self.changed.notify_one();
    }

    fn is_starting(&self) -> bool {
        self.state.lock().is_starting
    }

    /// It was disarmed; nothing starts any more once this returns. A function that disarms its own timer has started.
    pub(super) async fn disarmed(&self) {
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

    /// Sleeps until a period after `last`; answers whether it is still armed then, and starts.
    async fn turn(&self, last: Instant) -> bool {
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

/// Fires until disarmed. A run that takes longer than a period delays the next; none run at once.
pub(super) async fn run(functions: Arc<Inner>, function: String, timer: Arc<Timer>) {
    let mut last = Instant::now();
    let _ = timer.task.set(task::id());
    while timer.turn(last).await {
        last = Instant::now();
        let Some(definition) = functions.definition(&function) else {
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
