//! The functions' events: how they reach a function, and what becomes of those that fail.

pub(crate) mod context;
pub(crate) mod dead_letters;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod handler;
pub(crate) mod outgoing;
pub(crate) mod timers;
