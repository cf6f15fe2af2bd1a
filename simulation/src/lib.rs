//! Worlds, workloads, fault schedules and checkers for seeded runs of all services.
//!
//! A run is one seed. [`cluster`] starts the services on a simulated cloud, on several machines
//! whose clocks disagree. [`actor`]s work on it while [`faults`] strike. Then the faults end, and
//! [`checks`] compare the outputs of every client with the order in the log. Workload, faults and
//! checks are separate, so that they combine. A failure names its seed and the command that replays
//! it.

// The runtime's clock is virtual here: sleeping moves it.
#![allow(clippy::disallowed_methods)]

pub mod actor;
pub mod budget;
pub mod checks;
mod client_watches;
pub mod cluster;
pub mod faults;
pub mod history;
pub mod processes;
pub mod scenario;
pub mod timeline;
pub mod transactions;
pub mod workflows;
