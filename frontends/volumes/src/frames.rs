//! Splits the byte stream of a connection into frames.
//!
//! A frame is a length of four bytes, a number of eight, both big-endian, and a body. The length
//! counts the bytes after it. An answer repeats the number of its request; zero is a push.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Serialize;

use crate::wire::FORMAT;

/// The longest request, in bytes after its length.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// The longest answer, in bytes after its length.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Reserved for frames that a server sends without a request. There are none yet.
pub const PUSH: u64 = 0;

const LENGTH_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;
/// The least free space of the buffer before a read, in bytes.
const READ_BYTES: usize = 64 << 10;
/// An empty buffer that is larger is given back, in bytes. One that has grown to an answer of 1 MiB
/// of data is kept.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// The peer does not speak this protocol. The connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The frame is longer than any message.
    #[error("a frame of {bytes} bytes; at most {bytes_max} are accepted")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The frame has no number.
    #[error("a frame of {0} bytes has no number")]
    TooShort(usize),
}

/// A message with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The number of the request, or [`PUSH`].
    pub number: u64,
    /// The encoded message.
    pub body: Bytes,
}

/// The received bytes of a connection.
#[derive(Debug)]
pub struct Frames {
    received: BytesMut,
    bytes_max: usize,
}

impl Frames {
    /// No bytes yet. Frames have at most `bytes_max` bytes after their length.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            received: BytesMut::new(),
            bytes_max,
        }
    }

    /// The buffer to read into. It grows with the bytes that arrive, not with announced lengths.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.received.is_empty() && self.received.capacity() > KEPT_BYTES_MAX {
            self.received = BytesMut::new();
        }
        self.received.reserve(READ_BYTES);
        &mut self.received
    }

    /// The next whole frame. Errors: the stream cannot be split any further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Fault> {
        let Some((length, _)) = self.received.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let (bytes, bytes_max) = (u32::from_be_bytes(*length) as usize, self.bytes_max);
        if bytes > bytes_max {
            return Err(Fault::TooLong { bytes, bytes_max });
        }
        if bytes < NUMBER_BYTES {
            return Err(Fault::TooShort(bytes));
        }
        if self.received.len() < LENGTH_BYTES + bytes {
            return Ok(None);
        }
        self.received.advance(LENGTH_BYTES);
        let number = self.received.get_u64();
        let body = self.received.split_to(bytes - NUMBER_BYTES).freeze();
        Ok(Some(Frame { number, body }))
    }
}

/// Appends a frame with `message` to `out`. If it has more than `bytes_max` bytes after its length,
/// nothing is appended, and the result is false.
#[must_use]
pub fn put<T: Serialize>(out: &mut BytesMut, number: u64, message: &T, bytes_max: usize) -> bool {
    let start = out.len();
    out.put_u32(0);
    out.put_u64(number);
    FORMAT.encode_at_end(out, message);
    let bytes = out.len() - start - LENGTH_BYTES;
    if bytes > bytes_max {
        out.truncate(start);
        return false;
    }
    out[start..start + LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_be_bytes());
    true
}
