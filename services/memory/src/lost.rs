//! The functions that miss chunks, until their recovery has ended.
//!
//! A function is queued when its instance dies, and when a fragment is stored without one of its
//! chunks. The queue says only *that* chunks may be missing. The recovery looks for them itself, so
//! that no chunk depends on the order of a death and a seal.
//!
//! Invariant: one recovery of a function runs at a time. A function that is queued meanwhile is
//! recovered once more.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::window::FunctionId;

/// The queue. It never has more entries than there are functions.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeSet<FunctionId>,
    in_work: BTreeSet<FunctionId>,
}

impl Lost {
    /// Queues a function.
    pub(crate) fn add(&self, function: FunctionId) {
        self.state.lock().waiting.insert(function);
        self.changed.notify_one();
    }

    /// Waits for a function to recover.
    pub(crate) async fn next(self: &Arc<Self>) -> Recovering {
        loop {
            if let Some(function) = self.take() {
                return Recovering {
                    function,
                    lost: Arc::clone(self),
                };
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<FunctionId> {
        let mut state = self.state.lock();
        let next = state.waiting.difference(&state.in_work).next().copied()?;
        state.waiting.remove(&next);
        state.in_work.insert(next);
        Some(next)
    }
}

/// A recovery of a function. Dropping it allows the next one.
#[derive(Debug)]
pub(crate) struct Recovering {
    pub(crate) function: FunctionId,
    lost: Arc<Lost>,
}

impl Drop for Recovering {
    fn drop(&mut self) {
        self.lost.state.lock().in_work.remove(&self.function);
        self.lost.changed.notify_one();
    }
}
