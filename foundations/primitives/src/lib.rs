//! The synchronisation primitives that functions share, one storage round trip each.
//!
//! Functions share no memory, so what threads do with atomics they do with conditional writes to one item:
//! a lock that expires ([`TimedLock`]), a counter ([`AtomicCounter`]), a list ([`AtomicList`]). Who must be
//! sure that its predecessor writes no more takes over a [`FencedLog`]. [`Backoff`] says how to wait for
//! any of them.
//!
//! Promises
//! - **S1** While the clocks of those who use a lock differ by at most two seconds, nobody takes it within
//!   `hold_ms_max` of its acquisition.
//! - **S2** Each holder of a lock has a higher [`Token`] than every holder before it, whatever the clocks say.
//! - **S3** A guarded update is applied only while its token is the lock's: who was paused cannot write after
//!   its successor took the lock, or after its own release.
//! - **S4** A lock whose holder died can be taken once `hold_ms_max`, two seconds and the difference of the
//!   clocks have passed.
//! - **S5** Who repeats an acquisition whose outcome is unknown, as the same owner, holds the lock or hears
//!   who does; so do repeats after that.
//! - **S6** Every addition to a counter counts, once; no two [`AtomicCounter::add`] of one are given the same
//!   value.
//! - **S7** An addition with an operation id counts once, however often it is repeated.
//! - **S8** List operations are atomic; a list never grows beyond its bound.
//! - **S9** What a reader was given for a slot of a log stays the same until it is trimmed, and is given to
//!   every reader.
//! - **S10** Once [`FencedLog::take_over`] returned, no append of an earlier writer succeeds, and every append
//!   that had succeeded is among what it replays.
//! - **S11** Successful appends stand in the log in the order of their slots, each once, also those whose
//!   answer was lost and was settled.
//! - **S12** A writer that outlives a crash of the store never adds behind a slot which that crash took.
//! - **S13** Trimming a log lets no earlier writer back in.
//! - **S14** Delays of a backoff are bounded in length and number.
//! - **S15** An operation whose outcome is unknown is repeated only by [`retry_repeatable`].
//! - **S16** Changes that were appended with a slot are made with that slot or never, and never after it was filled without
//!   them.
//!
//! From `faaskeeper.txt`, section 2.2; tokens, owners and the log are ours.

mod atomic_counter;
mod atomic_list;
mod backoff;
mod fenced_log;
mod timed_lock;

pub use atomic_counter::{AtomicCounter, Counted};
pub use atomic_list::{AtomicList, Listed};
pub use backoff::{Backoff, Delays, retry, retry_repeatable};
pub use fenced_log::{Appended, Cursor, Epoch, FencedLog, Slot, SlotIndex, Slots, Writer};
pub use timed_lock::{Acquired, DRIFT_MS_MAX, Guarded, Held, Holder, TimedLock, Token};
