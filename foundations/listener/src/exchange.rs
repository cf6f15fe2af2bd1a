//! How far the current request and its response are. The socket wrapper, the request body and the
//! response body of one connection share this.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Shared by the parts of one connection, which all run in one task.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    begun: AtomicUsize,
    ended: AtomicUsize,
    is_body_unread: AtomicBool,
}

impl Exchange {
    /// The service gets a request. The exchange ends when the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InProgress {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    /// The connection speaks another protocol from now on, which bounds its own time.
    pub(crate) fn begin_other_protocol(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// How many exchanges have ended so far.
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the service works on a request, or its response is being sent.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != self.ended()
    }

    /// Records whether bytes of the current request's body may still arrive.
    pub(crate) fn set_body_unread(&self, is_unread: bool) {
        self.is_body_unread.store(is_unread, Ordering::Relaxed);
    }

    /// Whether bytes of the last request's body may still arrive.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }
}

/// An exchange that has not ended.
#[derive(Debug)]
pub(crate) struct InProgress(Arc<Exchange>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
