//! The synchronisation primitives that functions share, one storage round trip each.
//!
//! Functions share no memory. Where threads use atomics, functions use conditional writes to one
//! item: a lock that expires ([`TimedLock`]), a counter ([`AtomicCounter`]), a list
//! ([`AtomicList`]). A writer that must exclude its predecessor takes over a [`FencedLog`].
//! [`Backoff`] says how to wait for any of them.
//!
//! Promises
//! - **S1** While the clocks of a lock's users differ by at most two seconds, no other owner takes
//!   the lock within `hold_ms_max` of its acquisition.
//! - **S2** Each holder of a lock has a higher [`Token`] than every holder before it, whatever the
//!   clocks say.
//! - **S3** A guarded update is applied only while its token is the lock's. A paused holder cannot
//!   write after its successor took the lock, nor after its own release.
//! - **S4** A lock whose holder died can be taken once `hold_ms_max`, two seconds and the
//!   difference of the clocks have passed.
//! - **S5** An owner that repeats an acquisition whose outcome is unknown holds the lock or is
//!   given its holder. Later repeats are answered in the same way.
//! - **S6** Every addition to a counter counts, once. No two [`AtomicCounter::add`] of one counter
//!   return the same value.
//! - **S7** An addition with an operation id counts once, however often it is repeated.
//! - **S8** List operations are atomic. A list never grows beyond its bound.
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
//! From `faaskeeper.txt`, section 2.2. Tokens, owners and the log are ours.

mod atomic_counter;
mod atomic_list;
mod backoff;
mod fenced_log;
mod mutant;
mod record;
mod timed_lock;

pub use atomic_counter::{AtomicCounter, Counted};
pub use atomic_list::{AtomicList, Listed};
pub use backoff::{Backoff, Delays, retry, retry_repeatable};
pub use fenced_log::{Appended, Cursor, Epoch, FencedLog, Slot, SlotIndex, Slots, Writer};
pub use mutant::Mutant;
pub use record::RecordFormat;
pub use timed_lock::{Acquired, DRIFT_MS_MAX, Guarded, Held, Holder, TimedLock, Token};
