//! The functions port: code registered in this process, run in place.
//!
//! A call is a call; nothing is spawned for it. Queue triggers and timers are one task each
//! ([`trigger`], [`timer`]); a trigger drives all its invocations itself, one per message group. Events
//! ([`Functions::send`](ports::Functions::send)) travel through a queue per function with a trigger of its
//! own, so that they survive a crash (N2).
//!
//! Invariants
//! - A timeout costs nothing unless an invocation waits: its timer is armed at the first wait
//!   ([`invocation`]).
//! - A handler that panics has failed; nobody else notices.
//! - Triggers and timers are not remembered over a restart: who wants them arms them after opening.
//! - Nothing that a trigger waits for holds up the invocations it has started: queues may be far away.

mod event;
mod invocation;
mod registry;
mod timer;
mod trigger;

pub use registry::Functions;
