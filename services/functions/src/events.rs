//! The functions' events: their delivery to a function, retries, failure notices and dead letters.

pub(crate) mod context;
pub(crate) mod dead_letters;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod handler;
pub(crate) mod object;
pub(crate) mod outgoing;
pub(crate) mod queues;
pub(crate) mod timers;
