//! Announcements: every second, each node sends every other one its new commits and its own state.
//!
//! ```text
//!  every second, to each member ──▶ the commits of own slots after its frontier, and this node's state
//!                               ◀── its state: its applied frontier by now
//! ```
//!
//! The answer tells where the next announcement begins. Lost commits are therefore sent again, and
//! messages that arrive twice, late or reordered merge to the same state. A receiver may find a
//! gap, because memory of old commits is bounded, or receive nothing from a member for
//! [`SILENCE_MAX`]. It then reads that log in the store ([`follow`](crate::cluster::follow)).
//!
//! **Pruning.** A commit is omitted if every key that it wrote has a newer version that this
//! receiver applies no later than this message: one in the message's own range, or one within its
//! frontier. The paper omits what is superseded at the sender. The receiver would then pass over
//! both, and claim a frontier that it cannot show.
//!
//! Invariants
//! - Only durable commits are announced (P5).
//! - Every commit between `from` and `through` is decided, and in the message or superseded there.
//!   A receiver that has not applied everything before `from` does not advance over it.
//! - The frontier of a peer's log only grows, in any order of its messages.
//!
//! From AFT, section 4.1.

use std::{sync::Arc, time::Duration};

use ports::DurabilityPoint;

use crate::{
    Error, Result,
    broken::Broken,
    cluster::{
        AHEAD_MAX, Cluster,
        announcement_batch::{Received, prune},
        messages::{Announcement, Answer, Message, NodeState},
    },
    model::{Address, NodeId},
    node::Node,
    storage::records::{ANNOUNCED_MEMORY_MAX, CommitRecord},
};

#[cfg(test)]
mod tests;

/// The interval between two announcements to a node that is up to date.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// After this long without an announcement, a member's log is read in the store.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A member that has not sent its state for this long is logged. A dead node is no longer a member
/// by then.
const SILENT_LOGGED_AFTER: Duration = Duration::from_secs(10);
/// The approximate memory of one message's commits.
const ANNOUNCED_BYTES_MAX: usize = 1 << 20;

impl Cluster {
    /// Starts to announce `node` to the others.
    pub(crate) fn announce_for_ever(self: &Arc<Self>, node: &Arc<Node>) {
        let (this, node) = (Arc::clone(self), Arc::clone(node));
        self.context.spawn(async move {
            while this.may_answer(&node).is_ok() {
                this.announce_to_all(&node);
                this.tell_of_clock();
                this.context.clock.sleep(ANNOUNCE_EVERY).await;
            }
        });
    }

    /// Logs when the clock stops begins and commits here, and when they resume.
    fn tell_of_clock(&self) {
        let mut cluster = self.lock();
        let ahead = cluster.neighbours.ahead();
        let is_refused = ahead > AHEAD_MAX;
        if std::mem::replace(&mut cluster.neighbours.is_refused, is_refused) == is_refused {
            return;
        }
        drop(cluster);
        if is_refused {
            tracing::error!(
                ?ahead,
                most = ?AHEAD_MAX,
                "this machine's clock is ahead of the other nodes': transactions and writes are refused here until it is corrected"
            );
        } else {
            tracing::info!(
                ?ahead,
                "this machine's clock agrees with the other nodes': transactions continue"
            );
        }
    }

    fn announce_to_all(self: &Arc<Self>, node: &Arc<Node>) {
        let others = self.others(node);
        let now = self.context.clock.monotonic();
        let (mut free, mut silent) = (Vec::new(), Vec::new());
        {
            let mut cluster = self.lock();
            let neighbours = &mut cluster.neighbours;
            neighbours
                .peers
                .retain(|id, _| others.contains_key(id) || neighbours.live.contains(id));
            for (id, address) in others {
                let peer = neighbours.peer(id, now);
                peer.was_member = true;
                let is_silent = now.since(peer.announced) >= SILENCE_MAX;
                if now.since(peer.stood) >= SILENT_LOGGED_AFTER
                    && let Some(lasts) = peer.silence.failed(now, "it does not send its state")
                {
                    silent.push((id, address.clone(), lasts));
                }
                if !std::mem::replace(&mut peer.is_being_told, true) {
                    free.push((id, address));
                }
                if is_silent {
                    neighbours.behind.insert(id);
                }
            }
        }
        node.following.notify_one();
        for (id, address, lasts) in silent {
            let lasts = SILENT_LOGGED_AFTER + lasts;
            tracing::warn!(
                node = id.0,
                ?address,
                ?lasts,
                "a member does not announce itself: until it does, or is presumed dead, overwritten versions are kept and the store grows; \
                 is its address right, and can the two nodes reach each other?"
            );
        }
        for (id, address) in free {
            let (this, node) = (Arc::clone(self), Arc::clone(node));
            self.context.spawn(async move {
                if let Err(error) = this.announce_to(&node, id, &address).await {
                    tracing::debug!(%error, node = id.0, "an announcement failed");
                }
                this.lock().neighbours.peer(id, now).is_being_told = false;
            });
        }
    }

    /// Sends a node everything after its frontier.
    async fn announce_to(&self, node: &Arc<Node>, to: NodeId, address: &Address) -> Result<()> {
        loop {
            let (announcement, point) = self.announcement(node, to);
            if !self.context.key_value.is_durable(point) {
                node.store.externalize(point).await?;
            }
            let (dropped, through) = (announcement.state.dropped.clone(), announcement.through);
            let message = Message::Announce(announcement);
            let Answer::NodeState(state) = self.ask(node, to, address, &message).await? else {
                return Err(Error::unavailable("unexpected kind of answer"));
            };
            let has_applied = state.applied.through(node.id) >= through;
            let all = {
                let mut cluster = self.lock();
                let now = self.context.clock.monotonic();
                let peer = cluster.neighbours.peer(to, now);
                let is_first = peer.applied.is_none();
                peer.told_dropped.merge(&dropped);
                drop(cluster);
                let all = !is_first && (!has_applied || through >= node.log.decided_through());
                self.receive_state(node, to, &state);
                all
            };
            if all {
                return Ok(());
            }
        }
    }

    /// The commits of the own log after `to`'s frontier, and the point that they depend on.
    fn announcement(&self, node: &Node, to: NodeId) -> (Announcement, DurabilityPoint) {
        let state = self.own_state(node);
        let (decided, last) = (node.log.decided_through(), node.log.last());
        let now = self.context.clock.monotonic();
        let applied = self.lock().neighbours.peer(to, now).applied.clone();
        let cache = self.cache.lock();
        // For a node that has not sent its frontier, only its absence is known.
        let from = applied
            .as_ref()
            .map_or(decided, |applied| applied.through(node.id))
            .saturating_add(1);
        let from = from.max(cache.recent.complete_from());
        let mut announcement = Announcement {
            state,
            from,
            through: decided.max(from - 1),
            last,
            records: Vec::new(),
        };
        if from > decided {
            return (announcement, DurabilityPoint::DURABLE);
        }
        let (commits, through) = cache.recent.commits(from, decided, ANNOUNCED_BYTES_MAX);
        let mut records: Vec<_> = commits.into_iter().map(|(_, record)| record).collect();
        let bytes: usize = records.iter().map(|record| record.bytes_len()).sum();
        announcement.through = through;
        if bytes > ANNOUNCED_MEMORY_MAX {
            // The receiver finds a gap, and reads these commits in the store.
            announcement.from = through + 1;
            return (announcement, DurabilityPoint::DURABLE);
        }
        let point = records
            .iter()
            .map(|record| record.point)
            .max()
            .unwrap_or(DurabilityPoint::DURABLE);
        let will_hear = |record: &CommitRecord| {
            let position = record.position;
            let is_in_range = position.log == node.id && position.slot <= through;
            let is_known = applied
                .as_ref()
                .is_some_and(|applied| applied.contains(position));
            is_in_range || is_known || self.context.breaks(Broken::PrunesByItself)
        };
        records = prune(records, |key, version| {
            let entry = cache.index.peek(key);
            let mut versions = entry
                .into_iter()
                .flat_map(|entry| entry.versions.iter().rev());
            versions.any(|record| record.version > version && will_hear(record))
        });
        announcement.records = records.into_iter().map(Arc::unwrap_or_clone).collect();
        (announcement, point)
    }

    /// The state of this node.
    pub(crate) fn own_state(&self, node: &Node) -> NodeState {
        let horizon = self.own_horizon(node);
        let cluster = self.lock();
        let cache = self.cache.lock();
        let mut received = (*cache.applied).clone();
        for (log, slot) in cluster.batch.through() {
            received.advance(log, slot);
        }
        NodeState {
            wall_ms: self.context.clock.now().0,
            timestamp: node.log.highest(),
            applied: received,
            horizon,
            dropped: (*cache.dropped).clone(),
            noted: node.packs.noted(),
        }
    }

    /// Receives the state of another node.
    pub(crate) fn receive_state(&self, node: &Node, from: NodeId, state: &NodeState) {
        node.log.observe(state.timestamp);
        let (now, wall) = (self.context.clock.monotonic(), self.context.clock.now());
        let members = self.membership.members().nodes;
        let Some(mut cluster) = self.of(node.id) else {
            return;
        };
        let mut cache = self.cache.lock();
        Arc::make_mut(&mut cache.dropped).merge(&state.dropped);
        // Members announce their own logs, so what others have applied of those is on its way.
        let behind = cache.applied.behind(&state.applied);
        drop(cache);
        let neighbours = &mut cluster.neighbours;
        for log in behind {
            if log != node.id && !members.contains_key(&log) {
                neighbours.behind.insert(log);
            }
        }
        let peer = neighbours.peer(from, now);
        peer.ahead_ms = state.wall_ms as i64 - wall.0 as i64;
        peer.applied.get_or_insert_default().merge(&state.applied);
        peer.horizon.get_or_insert_default().merge(&state.horizon);
        if state.noted > peer.noted {
            peer.noted = state.noted;
            node.packs.more_is_noted();
        }
        peer.stood = now;
        let heard_again = peer.silence.ended(now);
        let is_behind = !neighbours.behind.is_empty();
        drop(cluster);
        if let Some(lasted) = heard_again {
            let lasted = SILENT_LOGGED_AFTER + lasted;
            tracing::info!(node = from.0, ?lasted, "a member announces again");
        }
        node.work.notify_one();
        if is_behind {
            node.following.notify_one();
        }
    }

    /// Receives another node's announcement.
    pub(crate) fn receive_announcement(
        self: &Arc<Self>,
        node: &Arc<Node>,
        from: NodeId,
        announcement: Announcement,
    ) {
        let Announcement {
            state,
            from: first,
            through,
            last,
            records,
        } = announcement;
        self.receive_state(node, from, &state);
        let records: Vec<_> = records.into_iter().map(Arc::new).collect();
        // Later commits here get higher timestamps (T-1), even before the announcement is merged.
        for record in &records {
            node.log.observe(record.version.timed());
        }
        let now = self.context.clock.monotonic();
        let (is_next, is_news) = {
            let Some(mut cluster) = self.of(node.id) else {
                return;
            };
            let received = cluster.received(&self.cache.lock().applied, from);
            let is_next = first <= received.saturating_add(1)
                || self.context.breaks(Broken::AdvancesOverGaps);
            if is_next {
                let peer = cluster.neighbours.peer(from, now);
                peer.announced = now;
                let hangs = through < last;
                peer.undecided = match peer.undecided {
                    Some((slot, since)) if hangs && slot == through => Some((slot, since)),
                    _ => hangs.then_some((through, now)),
                };
                if self.context.breaks(Broken::HearsBeforeMerging) {
                    self.cache.lock().advance(from, through);
                }
            } else {
                cluster.neighbours.behind.insert(from);
            }
            (is_next, through > received || !records.is_empty())
        };
        let told = Received {
            from,
            through: is_next.then_some(through),
            records,
        };
        self.add_to_batch(node, from, is_news.then_some(told));
        if !is_next {
            node.following.notify_one();
        }
    }
}
