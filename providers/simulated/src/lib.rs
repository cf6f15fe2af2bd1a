//! Every port in memory, in virtual time, with faults from a seed.
//!
//! A [`World`] is one cloud: one store that holds key-value items and queues under one order, functions that
//! run on it, objects, clocks and chance. Everything that happens in it is decided by its seed: the same
//! seed gives the same [`Trace`], so that a failure is reproduced by its number alone. Calm by default, it
//! is the in-memory reference of the ports; with [`Faults`] raised it delays, refuses, loses answers,
//! delivers twice, and ends functions between any two of their steps.
//!
//! What keeps a run reproducible: one thread, a paused clock that moves only when nothing can run, ordered
//! maps, `biased;` in every `select!`, no blocking threads, and a seed for what the runtime draws itself, such as in which
//! order those are woken who wait for one `watch` (each lapse alone loses replay). Delays are
//! whole milliseconds, which is the grain of the runtime's timers; shorter ones let other tasks run first a
//! few times instead.
//!
//! Invariants
//! - All mutations of one store stand in one order of positions; what is durable is a prefix of it (D2).
//! - A [`World::crash`] undoes exactly what lies behind that prefix, deliveries included.
//! - An invocation that was ended never makes another step; what it had done stays done.
//!
//! Deliberately absent: real time, threads, and a network. Reordering happens where the ports promise no
//! order: between calls of different tasks, between message groups, between timers.

// The runtime's clock is paused and its generator seeded: here is where virtual time and chance come from.
#![allow(clippy::disallowed_methods)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "a seed reproduces its run only where the runtime's draws are seeded: add `--cfg tokio_unstable` to RUSTFLAGS, \
     which replaces what .cargo/config.toml says"
);

mod call;
mod clock;
mod cloud;
mod code_store;
mod config;
mod durability;
mod faults;
mod functions;
pub mod instances;
mod key_value;
mod logs;
mod objects;
mod queue;
mod run;
pub mod runtime;
mod seeds;
mod store;
mod trace;
mod world;

pub use clock::{SimulatedClock, SimulatedEntropy};
pub use code_store::SimulatedCodeStore;
pub use config::Options;
pub use durability::SimulatedStore;
pub use faults::{Chance, Faults, percent};
pub use functions::Functions;
pub use logs::SimulatedLogs;
pub use objects::SimulatedObjects;
pub use run::{VIRTUAL_DAYS_MAX, run};
pub use seeds::{number, seeds};
pub use trace::{Entry, Trace};
pub use world::World;
