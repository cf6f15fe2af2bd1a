//! The system's buffer for bytes that a connection has sent and its peer has not read.

use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt::SndBuf};

/// The bytes of the buffer that we ask for. An answer with 1 MiB of data fits, so its sender need
/// not wait for the peer in the middle. The system may have a lower bound (`net.core.wmem_max`).
const SEND_BYTES: usize = 2 << 20;

/// Asks the system for a buffer of [`SEND_BYTES`].
pub(crate) fn enlarge(socket: &impl AsFd) {
    // A smaller buffer costs time, and nothing else.
    let _ = setsockopt(socket, SndBuf, &SEND_BYTES);
}
