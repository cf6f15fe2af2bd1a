//! The synchronisation primitives that functions share, one storage round trip each.
//!
//! Functions share no memory. Where threads use atomics, functions use conditional writes to one
//! item, for example a counter ([`AtomicCounter`]). A writer that must exclude its predecessor
//! takes over a [`FencedLog`]. [`Backoff`] says how to wait for any of them.
//!
//! Promises
//! - **S6** Every addition to a counter counts, once. No two [`AtomicCounter::add`] of one counter
//!   return the same value.
//! - **S7** An addition with an operation id counts once, however often it is repeated.
//! - **S9** The content of a log's slot, once read, is the same for every reader until the slot is
//!   trimmed.
//! - **S10** Once [`FencedLog::take_over`] returned, no append of an earlier writer succeeds. The
//!   takeover replays every append that had succeeded.
//! - **S11** Successful appends stand in the log in the order of their slots, each once. This
//!   includes appends whose response was lost and that were settled later.
//! - **S12** A writer that outlives a crash of the store never appends after a slot that the crash
//!   took.
//! - **S13** Trimming a log lets no earlier writer back in.
//! - **S14** Delays of a backoff are bounded in length and number.
//! - **S15** Only [`retry_repeatable`] repeats an operation whose outcome is unknown.
//! - **S16** Changes that were appended with a slot are made with that slot or never. Once the slot
//!   is filled without them, they are never made.
//! - **S17** A [`RecordFormat`] decodes a record to the value that was encoded. Bytes of another
//!   version, and bytes that do not decode, are `Corrupt`.
//!
//! From `faaskeeper.txt`, section 2.2. The log is ours. The paper's timed lock and list are in the
//! benchmark of its table 9a alone, because our services write their locks into their own rows.

mod atomic_counter;
mod backoff;
mod fenced_log;
mod mutant;
mod record;

pub use atomic_counter::{AtomicCounter, Counted};
pub use backoff::{Backoff, Delays, retry, retry_repeatable};
pub use fenced_log::{Appended, Cursor, Epoch, FencedLog, Slot, SlotIndex, Slots, Writer};
pub use mutant::Mutant;
pub use record::RecordFormat;
