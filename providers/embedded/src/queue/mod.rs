//! The queue port on the engine.
//!
//! A message is a record like any other, so sending and acknowledging share the journal, the order and the
//! durability points of the key-value port (Q7), and a message that is sent and acknowledged within one
//! group commit is never written. Beside the records stands an index in memory ([`group`]): which messages
//! each group has, in order, and who is with a consumer. It is rebuilt at open.
//!
//! Invariants
//! - Sequences grow over groups, queues and incarnations: the incarnation is their upper part, so a number
//!   that was given and lost is never given again.
//! - Deliveries are not records: after a crash every message that was not acknowledged is visible again.
//!   Failures are records, so a message that fails for good also does so across restarts (rule P1).
//! - Handles of a delivery from before a return to the durable state are stale: a message that came back may be given
//!   under the same attempt again, but never in the same incarnation.

mod group;
mod index;
mod letters;
mod port;
mod rebuild;

pub(crate) use index::Queues;
pub(crate) use port::LIMITS;

#[cfg(test)]
mod tests;
