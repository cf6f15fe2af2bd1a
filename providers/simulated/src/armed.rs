//! The armed triggers and timers of a world. A crash may disarm them all.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ports::functions::QueueTrigger;
use tokio::{sync::watch, task::AbortHandle};

/// The armed triggers and timers.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) queues: BTreeMap<String, (QueueTrigger, AbortHandle)>,
    pub(crate) timers: BTreeMap<String, Timer>,
}

/// The task of a timer, and its period.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) period: watch::Sender<Duration>,
    /// An invocation checks it just before it starts, because its task may have been queued before
    /// (N4).
    pub(crate) is_armed: Arc<AtomicBool>,
    pub(crate) task: AbortHandle,
}

impl Armed {
    pub(crate) fn disarm_queue(&mut self, queue: &str) {
        if let Some((_, task)) = self.queues.remove(queue) {
            task.abort();
        }
    }

    pub(crate) fn disarm_timer(&mut self, function: &str) {
        if let Some(timer) = self.timers.remove(function) {
            timer.is_armed.store(false, Ordering::Relaxed);
            timer.task.abort();
        }
    }

    pub(crate) fn disarm_all(&mut self) {
        let (queues, timers): (Vec<_>, Vec<_>) = (
            self.queues.keys().cloned().collect(),
            self.timers.keys().cloned().collect(),
        );
        for queue in &queues {
            self.disarm_queue(queue);
        }
        for timer in &timers {
            self.disarm_timer(timer);
        }
    }
}
