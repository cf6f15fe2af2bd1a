//! The other nodes, as this one knows them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ports::{Monotonic, Outage};

use crate::{
    broken::Broken,
    model::NodeId,
    storage::{frontier::Heard, node_registry::NodeRow},
};

/// What is known of another node.
#[derive(Debug)]
pub(super) struct Peer {
    /// What it has heard; none: it has not said so yet.
    pub(crate) heard: Option<Heard>,
    /// What everybody who runs there had heard at the begin; none as before.
    pub(crate) horizon: Option<Heard>,
    /// Which deletions it knows that may be gone.
    pub(crate) told_dropped: Heard,
    /// When its own announcements last brought this node up to what they tell.
    pub(crate) announced: Monotonic,
    /// When it last said how it stands, and what was complained of since.
    pub(crate) stood: Monotonic,
    pub(crate) unheard: Outage,
    /// By how much its wall clock is ahead of this node's, in milliseconds.
    pub(crate) ahead_ms: i64,
    /// What it has not decided, and since when: it is decided up to here, and there is more.
    pub(crate) undecided: Option<(u64, Monotonic)>,
    /// How often it had noted what died in others' packs.
    pub(crate) noted: u64,
    pub(crate) is_being_told: bool,
    /// Whether it was seen to be a member.
    pub(crate) was_member: bool,
}

/// The other nodes, as this one knows them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// The nodes whose logs nobody has sealed, as the registry last said.
    pub(crate) live: BTreeSet<NodeId>,
    pub(super) first_uncounted: NodeId,
    /// Logs of which others have heard more, or that are silent.
    pub(crate) behind: BTreeSet<NodeId>,
    /// The log says that this machine's clock is too far ahead.
    pub(crate) is_refused: bool,
}

impl Neighbours {
    pub(super) fn peer(&mut self, node: NodeId, now: Monotonic) -> &mut Peer {
        self.peers.entry(node).or_insert_with(|| Peer {
            heard: None,
            horizon: None,
            told_dropped: Heard::default(),
            announced: now,
            stood: now,
            unheard: Outage::default(),
            ahead_ms: 0,
            undecided: None,
            noted: 0,
            is_being_told: false,
            was_member: false,
        })
    }

    /// Whether `node`, of which nobody has resolved the log, has been a member: if it is none now, it is gone.
    pub(crate) fn was_member(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.was_member)
    }

    /// Of how many it has not been heard for too long how they stand: until it is, nothing is collected that they may need.
    pub(crate) fn unheard(&self) -> u64 {
        self.peers
            .values()
            .filter(|peer| peer.unheard.reason().is_some())
            .count() as u64
    }

    /// What all who must be counted have heard, whoever runs there: each that lives, but for `own`; none: of some
    /// nothing is known.
    pub(crate) fn minimum(&self, own: NodeId, broken: Option<Broken>) -> Option<Heard> {
        self.minimum_of(self.live.iter().filter(|live| **live != own), broken)
    }

    /// The same of these nodes.
    pub(crate) fn minimum_of<'node>(
        &self,
        nodes: impl Iterator<Item = &'node NodeId>,
        broken: Option<Broken>,
    ) -> Option<Heard> {
        let mut minimum: Option<Heard> = None;
        for live in nodes {
            let horizon = self.peers.get(live).and_then(|peer| peer.horizon.as_ref());
            let Some(horizon) = horizon else {
                if broken == Some(Broken::JoinsUncounted) {
                    continue;
                }
                return None;
            };
            minimum =
                Some(minimum.map_or_else(|| horizon.clone(), |minimum| minimum.minimum(horizon)));
        }
        Some(minimum.unwrap_or_else(Heard::everything))
    }

    /// From which node on the registry has to be listed: all before have ended. One that has an id and no row as yet may
    /// still put it.
    pub(crate) fn first_uncounted(&self) -> NodeId {
        self.first_uncounted
    }

    /// What the registry says of the nodes from the first uncounted one on.
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

    /// Up to where `log` is known everywhere to have lost deletions.
    pub(crate) fn told_dropped(&self, own: NodeId, log: NodeId) -> u64 {
        let others = self.live.iter().filter(|live| **live != own);
        let told = others.map(|live| {
            self.peers
                .get(live)
                .map_or(0, |peer| peer.told_dropped.through(log))
        });
        told.min().unwrap_or(u64::MAX)
    }

    /// `log` is to be read in the store.
    pub(crate) fn fall_behind(&mut self, log: NodeId) {
        self.behind.insert(log);
    }

    /// The logs to be read in the store.
    pub(crate) fn take_behind(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.behind)
    }

    /// `log` was read in the store.
    pub(crate) fn caught_up(&mut self, log: NodeId, now: Monotonic) {
        if let Some(peer) = self.peers.get_mut(&log) {
            peer.announced = now;
        }
    }

    /// Members whose logs have not moved for `age`, and the slot behind which they do not.
    pub(crate) fn hanging(&self, now: Monotonic, age: Duration) -> Vec<(NodeId, u64)> {
        let hanging = self.peers.iter().filter_map(|(node, peer)| {
            let (slot, since) = peer.undecided?;
            (now.since(since) >= age).then_some((*node, slot))
        });
        hanging.collect()
    }

    /// By how much this node's wall clock is ahead of the median of all.
    pub(crate) fn ahead(&self) -> Duration {
        let mut others: Vec<i64> = self.peers.values().map(|peer| peer.ahead_ms).collect();
        others.push(0);
        others.sort_unstable();
        // Of an even number the higher one: of two nobody knows whose is right.
        let median = others[others.len() / 2];
        Duration::from_millis(u64::try_from(-median).unwrap_or(0))
    }
}
