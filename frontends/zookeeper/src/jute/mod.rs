//! The jute codec: the bytes of ZooKeeper's records, without I/O.
//!
//! Jute is big-endian. A string or buffer is an `int32` length, -1 for null, and its bytes. A
//! vector is an `int32` count, -1 for null, and its items. A bool is one byte. Bytes after the last
//! field of a record are ignored, as in ZooKeeper, because later versions append fields.
//!
//! Invariants
//! - A reader never leaves its frame. A count is accepted only if the remaining bytes could hold
//!   that many items. Decoding therefore allocates at most a small multiple of the frame: an empty
//!   string is four bytes on the wire and a `String` here.
//! - Decoding is total: for any bytes it returns a value or a [`Malformed`].

pub mod connect;
mod operation;
mod reader;
pub mod reply;
pub mod request;
mod writer;

pub use operation::Operation;
pub use reader::{Malformed, Reader};
pub use writer::FrameWriter;
