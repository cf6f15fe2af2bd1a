//! The synchronisation primitives that functions share, one storage round trip each.

pub mod backoff;
pub mod fenced_log;

pub use backoff::Backoff;
pub use fenced_log::{Appended, FencedLog, SlotIndex};
