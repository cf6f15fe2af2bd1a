//! Runs of volumes: clients that read, propose and repeat proposals while the node dies and the
//! store loses what was not durable, and checks of V1 to V7.
//!
//! Clients may have read [`leased`] memory. A read from there has no slot of its own: it counts as
//! one at the last slot that any client had seen before.
//!
//! A [`client`] writes a [`history`] of what it was told. When the faults have ended, [`scenario`]
//! repeats every proposal, which tells what has committed and in which slot. [`checks`] executes
//! that in the order of slots, and compares it with all answers that the store has not lost. It
//! reads no row of the engine.

pub mod checks;
pub mod client;
pub mod history;
pub mod leased;
pub mod scenario;
