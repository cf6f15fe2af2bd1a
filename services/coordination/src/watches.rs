//! One-shot watches: which client waits for which change, and [firing](Watches::fire) them.
//!
//! A watch is state of the process that its client is connected to, and ends with the connection,
//! as in ZooKeeper. The [tail](crate::tail) reads the distributor's log in order, fires the watches
//! of each change, and queues the events for their clients. The distributor knows no watches.
//!
//! In this we depart from FaaSKeeper (sections 3.3 and 4.4). Its watches are rows that the
//! distributor reads on every change, and its epoch counter tells clients of deliveries under way.
//! Here the log is the epoch: the slots between a tail's position and the cursor are under way.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{EventKind, SessionId};

/// The aspect of a znode that a watch observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Aspect {
    /// Its data and existence: armed by get data and exists.
    Data,
    /// Its children: armed by get children.
    Children,
}

impl Aspect {
    /// The aspects whose watches a change of this kind fires.
    pub(crate) fn changed_by(kind: EventKind) -> &'static [Self] {
        match kind {
            EventKind::NodeCreated | EventKind::NodeDataChanged => &[Self::Data],
            EventKind::NodeChildrenChanged => &[Self::Children],
            EventKind::NodeDeleted => &[Self::Data, Self::Children],
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: BTreeMap<(Aspect, String), BTreeSet<SessionId>>,
    by_session: BTreeMap<SessionId, BTreeSet<(Aspect, String)>>,
}

impl Watches {
    pub(crate) fn count(&self) -> usize {
        self.by_session.values().map(BTreeSet::len).sum()
    }

    /// Arms a watch. Arming it twice has no effect.
    pub(crate) fn arm(&mut self, session: SessionId, aspect: Aspect, path: &str) {
        let watched = (aspect, path.to_owned());
        if self
            .by_session
            .entry(session)
            .or_default()
            .insert(watched.clone())
        {
            self.by_path.entry(watched).or_default().insert(session);
        }
    }

    /// Disarms the watches that this change fires. Returns their sessions, each once.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> BTreeSet<SessionId> {
        if self.by_path.is_empty() {
            return BTreeSet::new();
        }
        let mut fired = BTreeSet::new();
        for aspect in Aspect::changed_by(kind) {
            let watched = (*aspect, path.to_owned());
            let Some(sessions) = self.by_path.remove(&watched) else {
                continue;
            };
            for session in &sessions {
                self.forget(*session, &watched);
            }
            fired.extend(sessions);
        }
        fired
    }

    /// Disarms all watches of a client that disconnected.
    pub(crate) fn disarm_all(&mut self, session: SessionId) {
        for watched in self.by_session.remove(&session).unwrap_or_default() {
            if let Some(sessions) = self.by_path.get_mut(&watched) {
                sessions.remove(&session);
                if sessions.is_empty() {
                    self.by_path.remove(&watched);
                }
            }
        }
    }

    fn forget(&mut self, session: SessionId, watched: &(Aspect, String)) {
        if let Some(of_session) = self.by_session.get_mut(&session) {
            of_session.remove(watched);
            if of_session.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    /// Notes, points 36 and 38: one-shot, and one event for a client that watches both data and
    /// children.
    #[test]
    fn a_deletion_fires_once_for_a_client_that_watches_data_and_children() {
        let mut watches = Watches::default();
        watches.arm(ONE, Aspect::Data, "/a");
        watches.arm(ONE, Aspect::Data, "/a");
        watches.arm(ONE, Aspect::Children, "/a");
        watches.arm(TWO, Aspect::Children, "/a");
        assert_eq!(watches.count(), 3);
        assert_eq!(
            watches.fire(EventKind::NodeDeleted, "/a"),
            BTreeSet::from([ONE, TWO])
        );
        assert_eq!(watches.fire(EventKind::NodeDeleted, "/a"), BTreeSet::new());
        assert_eq!(watches.count(), 0);
    }

    #[test]
    fn watches_end_with_their_connection() {
        let mut watches = Watches::default();
        watches.arm(ONE, Aspect::Data, "/a");
        watches.arm(TWO, Aspect::Data, "/a");
        watches.disarm_all(ONE);
        assert_eq!(
            watches.fire(EventKind::NodeDataChanged, "/a"),
            BTreeSet::from([TWO])
        );
    }
}
