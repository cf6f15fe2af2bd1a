//! Runs of volumes: clients that read, propose and repeat proposals while the node dies and the
//! store loses what was not durable, and checks of V1 to V6.
//!
//! A [`client`] writes a [`history`] of what it was told. When the faults have ended, [`scenario`]
//! repeats every proposal, which tells what has committed and in which slot. [`checks`] executes
//! that in the order of slots, and compares it with all answers that the store has not lost. It
//! reads no row of the engine.

pub mod checks;
pub mod client;
pub mod history;
pub mod scenario;
