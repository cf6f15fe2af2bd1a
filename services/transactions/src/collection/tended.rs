//! A log under the care of housekeeping.

use ports::Monotonic;
use primitives::{Cursor, FencedLog};

use crate::{model::NodeId, storage::frontier::Heard};

/// A log under its care.
#[derive(Debug)]
pub(crate) struct Tended {
    pub(crate) node: NodeId,
    pub(crate) log: FencedLog,
    /// The last slot, of a log to which nothing is added.
    pub(crate) last: Option<u64>,
    /// Versions that anything before it superseded are collected.
    pub(crate) collected: Cursor,
    /// The last cursor of those that was noted.
    pub(crate) noted: u64,
    /// Nothing is kept of what stands before it.
    pub(crate) retained: Cursor,
    /// Of an earlier start's log: when its next slot is old enough.
    pub(crate) young_until: Option<Monotonic>,
    /// Up to which attempt it was noted that rows may be gone.
    pub(crate) dropped: u64,
    /// Since when nothing can be added to it, as far as this node knows; of the own log, since when it serves.
    pub(crate) since: Monotonic,
    /// What had been heard everywhere when it was last looked at, among several nodes.
    pub(crate) looked: Heard,
}

/// Up to which slot a log can be collected.
pub(crate) fn collectable(tended: &Tended, horizon: &Heard) -> u64 {
    tended
        .last
        .unwrap_or(u64::MAX)
        .min(horizon.through(tended.node))
}
