//! The rows of the system store and of the user stores, and every conditional write to them.

pub mod ephemerals;
mod keys;
pub mod node;
pub mod session;
pub mod temporary;
pub mod user_store;
