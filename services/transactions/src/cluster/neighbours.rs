//! The other nodes as this one knows them: their frontiers, horizons and clocks.
//!
//! Agreement on collection needs a bound from every node that must be counted: each one whose log
//! is not resolved, even if it is no longer a member. A node without a known bound blocks the
//! agreement.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ports::{LogThrottle, Monotonic};
use primitives::Mutant;

use crate::{
    broken::Broken,
    model::NodeId,
    storage::{frontier::Frontier, node_registry::NodeRow},
};

/// The last known state of another node.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its applied frontier; `None` if it has not sent one yet.
    pub(crate) applied: Option<Frontier>,
    /// The oldest frontier of its open transactions; `None` as above.
    pub(crate) horizon: Option<Frontier>,
    /// The deletions that it knows may be gone.
    pub(crate) told_dropped: Frontier,
    /// When its own announcements last brought this node up to date with them.
    pub(crate) announced: Monotonic,
    /// When it last sent its state, and whether the silence since was logged.
    pub(crate) stood: Monotonic,
    pub(crate) silence: LogThrottle,
    /// How far its wall clock is ahead of this node's, in milliseconds.
    pub(crate) ahead_ms: i64,
    /// The slot up to which it has decided, if more slots follow, and since when.
    pub(crate) undecided: Option<(u64, Monotonic)>,
    /// How often it had noted dead values in others' packs.
    pub(crate) noted: u64,
    pub(crate) is_being_told: bool,
    /// Whether it was seen as a member.
    pub(crate) was_member: bool,
}

/// The other nodes, as this one knows them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// The nodes whose logs are not resolved, by the last registry read.
    pub(crate) live: BTreeSet<NodeId>,
    /// The first node from which the registry must be listed: all before have ended. A node that
    /// has an id and no row yet may still put the row.
    pub(crate) first_uncounted: NodeId,
    /// Logs to read in the store: they are silent, or others have applied more of them.
    pub(crate) behind: BTreeSet<NodeId>,
    /// Whether the clock check failed and was logged: this machine's clock is too far ahead.
    pub(crate) is_refused: bool,
}

impl Neighbours {
    pub(super) fn peer(&mut self, node: NodeId, now: Monotonic) -> &mut Peer {
        self.peers.entry(node).or_insert_with(|| Peer {
            applied: None,
            horizon: None,
            told_dropped: Frontier::default(),
            announced: now,
            stood: now,
            silence: LogThrottle::default(),
            ahead_ms: 0,
            undecided: None,
            noted: 0,
            is_being_told: false,
            was_member: false,
        })
    }

    /// Whether `node`, whose log is not resolved, has been a member: if it is no longer, it is
    /// gone.
    pub(crate) fn was_member(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.was_member)
    }

    /// The number of members without a recent state. Until they send one, nothing is collected that
    /// they may need.
    pub(crate) fn silent_members(&self) -> u64 {
        self.peers
            .values()
            .filter(|peer| peer.silence.reason().is_some())
            .count() as u64
    }

    /// The minimum frontier of all open transactions on counted nodes, which are all live ones
    /// except `own`. `None` if the state of one is unknown.
    pub(crate) fn minimum(&self, own: NodeId, mutant: Mutant<Broken>) -> Option<Frontier> {
        self.minimum_of(self.live.iter().filter(|live| **live != own), mutant)
    }

    /// The same minimum over these nodes.
    pub(crate) fn minimum_of<'node>(
        &self,
        nodes: impl Iterator<Item = &'node NodeId>,
        mutant: Mutant<Broken>,
    ) -> Option<Frontier> {
        let mut minimum: Option<Frontier> = None;
        for live in nodes {
            let horizon = self.peers.get(live).and_then(|peer| peer.horizon.as_ref());
            let Some(horizon) = horizon else {
                if mutant.breaks(Broken::JoinsUncounted) {
                    continue;
                }
                return None;
            };
            minimum =
                Some(minimum.map_or_else(|| horizon.clone(), |minimum| minimum.minimum(horizon)));
        }
        Some(minimum.unwrap_or_else(Frontier::everything))
    }

    /// Takes in the registry's rows from the first uncounted node on.
    pub(crate) fn count(&mut self, rows: &[NodeRow]) {
        self.live = rows
            .iter()
            .filter(|row| !row.is_resolved)
            .map(|row| row.node)
            .collect();
        for row in rows {
            if row.node.0 > self.first_uncounted.0.max(1) || !row.is_resolved {
                break;
            }
            self.first_uncounted = NodeId(row.node.0 + 1);
        }
    }

    /// The slot up to which all nodes know that `log` may have lost deletions.
    pub(crate) fn told_dropped(&self, own: NodeId, log: NodeId) -> u64 {
        let others = self.live.iter().filter(|live| **live != own);
        let told = others.map(|live| {
            self.peers
                .get(live)
                .map_or(0, |peer| peer.told_dropped.through(log))
        });
        told.min().unwrap_or(u64::MAX)
    }

    /// Notes that `log` was read in the store.
    pub(crate) fn caught_up(&mut self, log: NodeId, now: Monotonic) {
        if let Some(peer) = self.peers.get_mut(&log) {
            peer.announced = now;
        }
    }

    /// Members whose logs have not advanced for `age`, and the slot where each is stuck.
    pub(crate) fn hanging(&self, now: Monotonic, age: Duration) -> Vec<(NodeId, u64)> {
        let hanging = self.peers.iter().filter_map(|(node, peer)| {
            let (slot, since) = peer.undecided?;
            (now.since(since) >= age).then_some((*node, slot))
        });
        hanging.collect()
    }

    /// How far this node's wall clock is ahead of the median of all.
    pub(crate) fn ahead(&self) -> Duration {
        let mut others: Vec<i64> = self.peers.values().map(|peer| peer.ahead_ms).collect();
        others.push(0);
        others.sort_unstable();
        // With an even number, the higher one: of two clocks, either may be right.
        let median = others[others.len() / 2];
        Duration::from_millis(u64::try_from(-median).unwrap_or(0))
    }
}
