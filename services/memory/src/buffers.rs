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
            pool: Arc::clone(self),
            _permit: permit.expect("the semaphore is never closed"),
        }
    }
}

/// A buffer that returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Buffers>,
    _permit: OwnedSemaphorePermit,
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
        let mut free = self.pool.free.lock();
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
}
