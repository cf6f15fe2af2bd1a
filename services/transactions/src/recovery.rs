//! The start and the end of a node, and recovery from dead nodes.
//!
//! Recovery of a node is always the same: its log is sealed, and then each entry is decided by its
//! row.

mod fault_manager;
mod join;
mod leave;
mod resolve;
mod start;

use std::sync::Arc;

use crate::calls::Calls;

/// Starts and ends the nodes of this process.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) calls: Arc<Calls>,
}
