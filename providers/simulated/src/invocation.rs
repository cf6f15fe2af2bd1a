//! One invocation, as its port calls see it. It may be ended between any two of them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::sync::Notify;

tokio::task_local! {
    /// The invocation whose code is running. Tasks that a handler spawns do not belong to it.
    static CURRENT: Arc<Invocation>;
}

/// One running invocation, as its port calls see it.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) function: String,
    pub(crate) number: u64,
    calls: AtomicU32,
    ended: Notify,
}

impl Invocation {
    pub(crate) fn new(function: String, number: u64) -> Arc<Self> {
        Arc::new(Self {
            function,
            number,
            calls: AtomicU32::new(0),
            ended: Notify::new(),
        })
    }

    /// Runs `work` as the code of this invocation.
    pub(crate) fn scope<F: Future>(self: &Arc<Self>, work: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(Arc::clone(self), work)
    }

    /// The invocation whose code is calling.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// The number of its next port call, from zero.
    pub(crate) fn next_call(&self) -> u32 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends it: it makes no further step.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
    }

    pub(crate) async fn has_ended(&self) {
        self.ended.notified().await;
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.function, self.number)
    }
}
