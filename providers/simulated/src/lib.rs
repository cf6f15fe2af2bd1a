//! Every port in memory, in virtual time, with faults from a seed.
//!
//! A [`World`] is one cloud: a store that holds key-value items and queues in one order, functions,
//! objects, clocks and randomness. Its seed decides everything that happens in it. The same seed
//! gives the same [`Trace`], so a failure is reproduced by its number alone. A world is calm by
//! default and serves as the in-memory reference of the ports. With [`Faults`] it delays and
//! refuses calls, loses answers, delivers twice, and ends functions between any two of their steps.
//!
//! A run is reproducible because of the following rules; each violation alone breaks replay:
//! - One thread, and no blocking threads.
//! - A paused clock, which moves only when no task can run.
//! - Ordered maps, and `biased;` in every `select!`.
//! - A seed for the runtime's own draws, such as the order in which it wakes the waiters of one
//!   `watch`.
//!
//! Delays are whole milliseconds, the resolution of the runtime's timers. Shorter ones yield to
//! other tasks a few times instead.
//!
//! Invariants
//! - All mutations of one store have one order of positions. The durable ones are a prefix of it
//!   (D2).
//! - A [`World::crash`] undoes exactly the mutations after that prefix, deliveries included.
//! - An ended invocation makes no further step; its completed steps remain.
//!
//! Deliberately absent: real time, threads, and a network. Calls are reordered where the ports
//! promise no order: between calls of different tasks, between message groups, between timers.

// Virtual time and seeded randomness originate here: the runtime's clock is paused and its
// generator seeded.
#![allow(clippy::disallowed_methods)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "a seed reproduces its run only where the runtime's draws are seeded: add `--cfg tokio_unstable` to RUSTFLAGS, \
     which replaces what .cargo/config.toml says"
);

mod armed;
mod call;
mod clock;
mod cloud;
mod code_store;
mod config;
mod durability;
mod faults;
mod functions;
pub mod instances;
mod invocation;
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
