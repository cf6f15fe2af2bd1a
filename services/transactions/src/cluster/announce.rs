//! What nodes tell each other: every second, what has committed since the receiver last heard, and how they stand.
//!
//! ```text
//!  every second, to each member ──▶ the commits of own slots behind what it has heard, and how this node stands
//!                               ◀── how that one stands: what it has heard by now
//! ```
//!
//! The answer says where the next announcement begins, so what was lost is told again, and what comes twice, late or in
//! another order merges to the same. Where a receiver finds a gap (memory of old commits is bounded), or hears nothing of a
//! member for [`SILENCE_MAX`], it reads that log in the store ([`follower`](crate::cluster::follow)).
//!
//! **Pruning.** A commit is left out if for every key it wrote there is a newer version that this receiver will have heard
//! of no later than this message: one in the message's own range, or one at a position it has heard. The paper leaves out
//! what is superseded at the sender: the receiver would pass over both, and say that it has heard what it cannot show.
//!
//! Invariants
//! - Only what is durable is announced (P5).
//! - Everything between `from` and `through` is decided, and in the message or superseded there; a receiver that has not
//!   heard all before `from` does not pass over it.
//! - What is heard of a peer only grows, in whatever order its messages come.
//!
//! From AFT, section 4.1.

use std::{sync::Arc, time::Duration};

use ports::DurabilityPoint;

use crate::{
    Error, Result,
    broken::Broken,
    cluster::{
        Cluster,
        announcement_batch::{Told, prune},
        lease::AHEAD_MAX,
        messages::{Announced, Announcement, Answer, Message, Standing},
    },
    model::{Address, NodeId},
    node::Node,
    storage::records::CommitRecord,
};

#[cfg(test)]
mod tests;

/// Between two announcements to a node that has heard all.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// After so long without an announcement of a member its log is read in the store.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A member that has not said for so long how it stands is complained of: a dead one is none any more by then.
const UNHEARD_MAX: Duration = Duration::from_secs(10);
/// About how much memory the commits of one message take.
const ANNOUNCED_BYTES_MAX: usize = 1 << 20;
/// A commit that takes more than this is left to the receiver, who reads it in the store.
const RECORD_BYTES_MAX: usize = 16 << 20;

impl Cluster {
    /// Begins to tell the others about `node`.
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

    /// Logs that nothing begins or commits here any more, or that it does again.
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
                "this machine's clock is ahead of those of the other nodes: transactions and writes are refused here until it is set right"
            );
        } else {
            tracing::info!(
                ?ahead,
                "this machine's clock agrees with the other nodes': transactions go on"
            );
        }
    }

    fn announce_to_all(self: &Arc<Self>, node: &Arc<Node>) {
        let others = self.others(node);
        let now = self.context.clock.monotonic();
        let (mut free, mut unheard) = (Vec::new(), Vec::new());
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
                if now.since(peer.stood) >= UNHEARD_MAX
                    && let Some(lasts) = peer.unheard.failed(now, "it does not say how it stands")
                {
                    unheard.push((id, address.clone(), lasts));
                }
                if !std::mem::replace(&mut peer.is_being_told, true) {
                    free.push((id, address));
                }
                if is_silent {
                    neighbours.fall_behind(id);
                }
            }
        }
        node.following.notify_one();
        for (id, address, lasts) in unheard {
            let lasts = UNHEARD_MAX + lasts;
            tracing::warn!(
                node = id.0,
                ?address,
                ?lasts,
                "a member is not heard: until it is, or is gone, all is kept that was overwritten, and the store grows; is its address right, \
                 and do these two reach each other?"
            );
        }
        for (id, address) in free {
            let (this, node) = (Arc::clone(self), Arc::clone(node));
            self.context.spawn(async move {
                if let Err(error) = this.announce_to(&node, id, &address).await {
                    tracing::debug!(%error, node = id.0, "a node does not hear");
                }
                this.lock().neighbours.peer(id, now).is_being_told = false;
            });
        }
    }

    /// Tells a node all that it has not heard.
    async fn announce_to(&self, node: &Arc<Node>, to: NodeId, address: &Address) -> Result<()> {
        loop {
            let (announcement, point) = self.announcement(node, to);
            if !self.context.key_value.is_durable(point) {
                node.store.externalize(point).await?;
            }
            let (dropped, through) = (announcement.standing.dropped.clone(), announcement.through);
            let message = Message::Announce(announcement);
            let Answer::Standing(standing) = self.ask(node, to, address, &message).await? else {
                return Err(Error::unavailable("a node answers what was not asked"));
            };
            let has_heard = standing.heard.through(node.id) >= through;
            let all = {
                let mut cluster = self.lock();
                let now = self.context.clock.monotonic();
                let peer = cluster.neighbours.peer(to, now);
                let is_first = peer.heard.is_none();
                peer.told_dropped.merge(&dropped);
                drop(cluster);
                let all = !is_first && (!has_heard || through >= node.log.decided_through());
                self.hear_standing(node, to, &standing);
                all
            };
            if all {
                return Ok(());
            }
        }
    }

    /// What `to` has not heard of the own log, and the point that rests on.
    fn announcement(&self, node: &Node, to: NodeId) -> (Announcement, DurabilityPoint) {
        let standing = self.standing(node);
        let (decided, last) = (node.log.decided_through(), node.log.last());
        let now = self.context.clock.monotonic();
        let heard = self.lock().neighbours.peer(to, now).heard.clone();
        let cache = self.cache.lock();
        // Of one that has not said what it has heard nothing is known but that.
        let from = heard
            .as_ref()
            .map_or(decided, |heard| heard.through(node.id))
            .saturating_add(1);
        let from = from.max(cache.recent.complete_from());
        if from > decided {
            let through = decided.max(from - 1);
            let nothing = Announcement {
                standing,
                from,
                through,
                last,
                records: Vec::new(),
            };
            return (nothing, DurabilityPoint::DURABLE);
        }
        let (commits, through) = cache.recent.commits(from, decided, ANNOUNCED_BYTES_MAX);
        let mut records: Vec<_> = commits.into_iter().map(|(_, record)| record).collect();
        let is_too_large = records
            .iter()
            .any(|record| record.bytes_len() > RECORD_BYTES_MAX);
        if is_too_large {
            // The receiver finds a gap, and reads it in the store.
            let nothing = Announcement {
                standing,
                from: through + 1,
                through,
                last,
                records: Vec::new(),
            };
            return (nothing, DurabilityPoint::DURABLE);
        }
        let point = records
            .iter()
            .map(|record| record.point)
            .max()
            .unwrap_or(DurabilityPoint::DURABLE);
        let will_hear = |record: &CommitRecord| {
            let position = record.position;
            let is_in_range = position.log == node.id && position.slot <= through;
            let is_known = heard.as_ref().is_some_and(|heard| heard.contains(position));
            is_in_range || is_known || self.context.config.is_broken(Broken::PrunesByItself)
        };
        records = prune(records, |key, version| {
            let entry = cache.index.peek(key);
            let mut versions = entry
                .into_iter()
                .flat_map(|entry| entry.versions.iter().rev());
            versions.any(|record| record.version > version && will_hear(record))
        });
        let records = records
            .iter()
            .map(|record| Announced::from(&**record))
            .collect();
        (
            Announcement {
                standing,
                from,
                through,
                last,
                records,
            },
            point,
        )
    }

    /// How this node stands.
    pub(crate) fn standing(&self, node: &Node) -> Standing {
        let horizon = self.own_horizon(node);
        let cluster = self.lock();
        let cache = self.cache.lock();
        let mut received = (*cache.heard).clone();
        for (log, slot) in cluster.gathered.through() {
            received.advance(log, slot);
        }
        Standing {
            wall_ms: self.context.clock.now().0,
            timestamp: node.log.highest(),
            heard: received,
            horizon,
            dropped: (*cache.dropped).clone(),
            noted: node.packs.noted(),
        }
    }

    /// Another node says how it stands.
    pub(crate) fn hear_standing(&self, node: &Node, from: NodeId, standing: &Standing) {
        node.log.observe(standing.timestamp);
        let (now, wall) = (self.context.clock.monotonic(), self.context.clock.now());
        let members = self.membership.members().nodes;
        let Some(mut cluster) = self.of(node.id) else {
            return;
        };
        let mut cache = self.cache.lock();
        Arc::make_mut(&mut cache.dropped).merge(&standing.dropped);
        // Members tell of their own logs; what others have heard of those is on its way.
        let behind = cache.heard.behind(&standing.heard);
        drop(cache);
        let neighbours = &mut cluster.neighbours;
        for log in behind {
            if log != node.id && !members.contains_key(&log) {
                neighbours.fall_behind(log);
            }
        }
        let peer = neighbours.peer(from, now);
        peer.ahead_ms = standing.wall_ms as i64 - wall.0 as i64;
        peer.heard.get_or_insert_default().merge(&standing.heard);
        peer.horizon
            .get_or_insert_default()
            .merge(&standing.horizon);
        if standing.noted > peer.noted {
            peer.noted = standing.noted;
            node.packs.more_is_noted();
        }
        peer.stood = now;
        let heard_again = peer.unheard.ended(now);
        let is_behind = !neighbours.behind.is_empty();
        drop(cluster);
        if let Some(lasted) = heard_again {
            let lasted = UNHEARD_MAX + lasted;
            tracing::info!(node = from.0, ?lasted, "a member is heard again");
        }
        node.work.notify_one();
        if is_behind {
            node.following.notify_one();
        }
    }

    /// Another node says what has happened there.
    pub(crate) fn hear_announced(
        self: &Arc<Self>,
        node: &Arc<Node>,
        from: NodeId,
        announcement: Announcement,
    ) {
        let Announcement {
            standing,
            from: first,
            through,
            last,
            records,
        } = announcement;
        self.hear_standing(node, from, &standing);
        let records: Vec<_> = records
            .into_iter()
            .map(|record| Arc::new(CommitRecord::from(record)))
            .collect();
        // Whatever commits here from now on comes above it (T-1), also before it is merged.
        for record in &records {
            node.log.observe(record.version.timed());
        }
        let now = self.context.clock.monotonic();
        let (is_next, is_news) = {
            let Some(mut cluster) = self.of(node.id) else {
                return;
            };
            let received = cluster.received(&self.cache.lock().heard, from);
            let is_next = first <= received.saturating_add(1)
                || self.context.config.is_broken(Broken::AdvancesOverGaps);
            if is_next {
                let peer = cluster.neighbours.peer(from, now);
                peer.announced = now;
                let hangs = through < last;
                peer.undecided = match peer.undecided {
                    Some((slot, since)) if hangs && slot == through => Some((slot, since)),
                    _ => hangs.then_some((through, now)),
                };
                if self.context.config.is_broken(Broken::HearsBeforeMerging) {
                    self.cache.lock().advance(from, through);
                }
            } else {
                cluster.neighbours.fall_behind(from);
            }
            (is_next, through > received || !records.is_empty())
        };
        let told = Told {
            from,
            through: is_next.then_some(through),
            records,
        };
        self.gather(node, from, is_news.then_some(told));
        if !is_next {
            node.following.notify_one();
        }
    }
}
