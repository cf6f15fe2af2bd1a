//! The start and the end of a node, and what nodes leave that are gone.

pub(crate) mod fault_manager;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod start;
