//! Worlds, workloads, fault schedules and checkers for seeded runs of the whole house.
//!
//! A run is one seed: [`house`] puts the services on a simulated cloud, on several machines whose clocks
//! disagree; [`actor`]s work on it while [`faults`] strike; then the world is healed, and [`checks`] compare
//! what every client was shown with the one order that the log gives. Workload, faults and checks are
//! separate, so that they combine. A failure names its seed and the command that replays it.

// The runtime's clock is virtual here: sleeping moves it.
#![allow(clippy::disallowed_methods)]

pub mod actor;
pub mod budget;
pub mod checks;
pub mod faults;
pub mod history;
pub mod house;
pub mod processes;
pub mod scenario;
pub mod timeline;
pub mod transactions;
mod watching;
pub mod workflows;
