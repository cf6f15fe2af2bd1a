//! The progress of housekeeping in one log: how far it is collected, and how far it is retained.

use ports::Monotonic;
use primitives::{Cursor, FencedLog};

use crate::{model::NodeId, storage::frontier::Frontier};

#[derive(Debug)]
pub(crate) struct Tended {
    pub(crate) node: NodeId,
    pub(crate) log: FencedLog,
    /// The last slot of a log that is sealed.
    pub(crate) last: Option<u64>,
    /// Versions superseded before this position are collected.
    pub(crate) collected: Cursor,
    /// The last of those cursors that was noted in the store.
    pub(crate) noted: u64,
    /// Nothing before this position is kept.
    pub(crate) retained: Cursor,
    /// For the log of an earlier start: when its next slot is old enough.
    pub(crate) young_until: Option<Monotonic>,
    /// The last attempt for which it was noted that rows may be gone.
    pub(crate) dropped: u64,
    /// When the log became immutable, as far as this node knows; for the own log, when this node
    /// began to serve.
    pub(crate) since: Monotonic,
    /// The frontier common to all nodes at the last look, among several nodes.
    pub(crate) looked: Frontier,
}

impl Tended {
    /// The own log, or, with [`Tended::last`], a sealed one that begins at `start`.
    pub(crate) fn new(node: NodeId, log: FencedLog, start: Cursor, since: Monotonic) -> Self {
        Self {
            node,
            log,
            last: None,
            collected: start,
            noted: 0,
            retained: start,
            young_until: None,
            dropped: 0,
            since,
            looked: Frontier::default(),
        }
    }
}

/// The slot up to which a log can be collected.
///
/// Once the others hold the own log for sealed, its successor collects it: this node stops.
pub(crate) fn collectable(tended: &Tended, horizon: &Frontier) -> u64 {
    let last = match tended.last {
        Some(last) => last,
        None if horizon.is_whole(tended.node) => 0,
        None => u64::MAX,
    };
    last.min(horizon.through(tended.node))
}
