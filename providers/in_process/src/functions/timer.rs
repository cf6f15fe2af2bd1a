//! Timers: one task each (N4).

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use ports::functions::Event;
use tokio::{sync::Notify, time::Instant};

use super::{invocation::Invocation, registry::Inner};

/// An armed timer. Its period is read at each turn.
#[derive(Debug)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    period: Duration,
    armed: bool,
}

impl Timer {
    pub(super) fn new(period: Duration) -> Self {
        Self { state: Mutex::new(State { period, armed: true }), changed: Notify::new() }
    }

    pub(super) fn change_period(&self, period: Duration) {
        self.state.lock().period = period;
        self.changed.notify_one();
    }

    pub(super) fn disarm(&self) {
        self.state.lock().armed = false;
        self.changed.notify_one();
    }

    /// Sleeps until a period after `last`; answers whether it is still armed then.
    async fn turn(&self, last: Instant) -> bool {
        loop {
            let State { period, armed } = *self.state.lock();
            if !armed {
                return false;
            }
            let slept = tokio::time::timeout_at(last + period, self.changed.notified()).await;
            if slept.is_err() {
                return self.state.lock().armed;
            }
        }
    }
}

/// Fires until disarmed. A run that takes longer than a period delays the next; none run at once.
pub(super) async fn run(functions: Arc<Inner>, function: String, timer: Arc<Timer>) {
    let mut last = Instant::now();
    while timer.turn(last).await {
        last = Instant::now();
        let Some(definition) = functions.definition(&function) else { return };
        if let Err(failure) = Invocation::new(definition, Event::Timer).await {
            tracing::warn!(function, reason = failure.reason, "a scheduled function failed");
        }
    }
}
