//! The functions port: handlers registered in this process, run in place.
//!
//! An invocation runs in the caller's task. Each queue trigger and each timer is one task
//! ([`trigger`], [`timer`]). A trigger drives all its invocations itself, one per message group.
//! Each function has an event queue with a trigger, through which
//! [`Functions::send`](ports::Functions::send) delivers, so that events survive a crash (N2).
//!
//! Invariants
//! - A timeout costs nothing unless an invocation waits: its timer is armed at the first wait
//!   ([`invocation`]).
//! - A panic of a handler fails its invocation and affects nothing else.
//! - Triggers and timers do not survive a restart; their owners arm them again.
//! - Nothing that a trigger waits for delays the invocations that it has started: queues may be far
//!   away.

mod event;
mod invocation;
mod registry;
mod timer;
mod trigger;

pub use registry::Functions;
