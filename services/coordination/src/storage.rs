//! Stored state: the rows of the system store and of the user store, and every conditional write
//! to them.
//!
//! - [`session`], [`node`] and [`ephemerals`] are the rows of the system store: sessions with their
//!   outboxes, znodes with their locks, and the index of each session's ephemerals.
//! - [`expiring`] is the index of the containers and znodes with a time to live that may end.
//! - [`user_store`] is the state that clients read.
//! - [`recent`] are znodes that a process wrote last.
//! - [`temporary`] are objects with data that is too large for a message.

pub mod decided;
pub mod ephemerals;
pub mod expiring;
mod keys;
pub mod node;
pub mod recent;
pub mod session;
pub mod temporary;
pub mod user_store;
