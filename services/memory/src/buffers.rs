//! Reused buffers for stripes, with a bound on all of them together.
//!
//! The first touch of fresh memory costs more than all other work on a byte, so buffers are used
//! again. A buffer that becomes [`Bytes`] returns when the last reader of its bytes has gone.

use std::{mem, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The buffers that are kept for the next users. Those beyond are freed.
const KEPT_MAX: usize = 32;

/// Buffers of one size.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    permits: Arc<Semaphore>,
    bytes: usize,
}

impl Buffers {
    /// At most `count` buffers of `bytes` are in use at a time.
    pub(crate) fn new(count: usize, bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            permits: Arc::new(Semaphore::new(count)),
            bytes,
        })
    }

    /// A buffer with arbitrary content; waits for one.
    pub(crate) async fn take(self: &Arc<Self>) -> Buffer {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let bytes = self.free.lock().pop();
        Buffer {
            bytes: bytes.unwrap_or_else(|| vec![0; self.bytes]),
            pool: Some(Arc::clone(self)),
            _permit: Some(permit.expect("the semaphore is never closed")),
        }
    }

    /// A buffer of at least `length` bytes, without waiting: one of the pool's if one is free and not
    /// far too large, otherwise one that is freed after use.
    pub(crate) fn take_now(self: &Arc<Self>, length: usize) -> Buffer {
        let is_large = length * 4 >= self.bytes;
        let permits = is_large.then(|| Arc::clone(&self.permits));
        let permit = permits.and_then(|permits| permits.try_acquire_owned().ok());
        let pool = permit.is_some().then(|| Arc::clone(self));
        let free = pool.as_ref().and_then(|pool| pool.free.lock().pop());
        let fresh = if pool.is_some() { self.bytes } else { length };
        Buffer {
            bytes: free.unwrap_or_else(|| vec![0; fresh]),
            pool,
            _permit: permit,
        }
    }
}

/// A buffer that returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// None: it belongs to no pool.
    pool: Option<Arc<Buffers>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Buffer {
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Its first `length` bytes, to be shared.
    pub(crate) fn freeze(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        let mut free = pool.free.lock();
        if free.len() < KEPT_MAX {
            free.push(mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_buffer_returns_when_its_last_reader_has_gone() {
        let pool = Buffers::new(1, 8);
        let mut buffer = pool.take().await;
        buffer.as_mut().fill(7);
        let bytes = buffer.freeze(3);
        let part = bytes.slice(1..2);
        drop(bytes);
        assert!(pool.take().now_or_never().is_none());
        assert_eq!(part, &[7][..]);
        drop(part);
        assert_eq!(pool.take().await.as_ref(), [7; 8]);
    }

    #[tokio::test]
    async fn a_buffer_that_must_not_wait_is_made_if_none_is_free() {
        let pool = Buffers::new(1, 8);
        let taken = pool.take_now(8);
        assert_eq!(pool.take_now(5).as_ref().len(), 5);
        drop(taken);
        assert_eq!(pool.take_now(5).as_ref().len(), 8);
        assert_eq!(pool.take_now(1).as_ref().len(), 1, "far too large");
    }
}
