//! Watches: which client waits for which changes, and [firing](Watches::fire) them.
//!
//! A watch is state of the process that its client is connected to, and ends with the connection,
//! as in ZooKeeper. The [tail](crate::tail) reads the distributor's log in order, fires the watches
//! of each change, and queues the events for their clients. The distributor knows no watches.
//!
//! A one-shot watch ends when it fires. A persistent watch stays until its client removes it. A
//! change is looked up at its own path, and in the recursive watches at each ancestor, so its cost
//! does not depend on the number of other watches.
//!
//! In this we depart from FaaSKeeper (sections 3.3 and 4.4). Its watches are rows that the
//! distributor reads on every change, and its epoch counter tells clients of deliveries under way.
//! Here the log is the epoch: the slots between a tail's position and the cursor are under way.

use std::collections::{BTreeMap, BTreeSet};

use primitives::Mutant;

use crate::{
    broken::Broken,
    model::{EventKind, SessionId, WatchKind, WatchMode},
    path,
};

/// The aspect of a znode that a one-shot watch observes.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Watch {
    OneShot(Aspect),
    Lasting(WatchMode),
}

impl Watch {
    /// What a client means by a kind. ZooKeeper finds one-shot watches alone under the first two.
    fn of(kind: WatchKind) -> &'static [Self] {
        const ALL: [Watch; 4] = [
            Watch::OneShot(Aspect::Children),
            Watch::OneShot(Aspect::Data),
            Watch::Lasting(WatchMode::Persistent),
            Watch::Lasting(WatchMode::Recursive),
        ];
        match kind {
            WatchKind::Children => &ALL[..1],
            WatchKind::Data => &ALL[1..2],
            WatchKind::Persistent => &ALL[2..3],
            WatchKind::Recursive => &ALL[3..],
            WatchKind::Any => &ALL,
        }
    }

    /// ZooKeeper keeps a table of data watches and one of child watches.
    fn tables(self) -> usize {
        match self {
            Self::Lasting(WatchMode::Persistent) => 2,
            _ => 1,
        }
    }
}

type ByPath = BTreeMap<String, BTreeSet<SessionId>>;

/// The watches of one process's clients.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    data: ByPath,
    children: ByPath,
    persistent: ByPath,
    recursive: ByPath,
    by_session: BTreeMap<SessionId, BTreeSet<(Watch, String)>>,
    mutant: Mutant<Broken>,
}

impl Watches {
    pub(crate) fn new(mutant: Mutant<Broken>) -> Self {
        Self {
            mutant,
            ..Self::default()
        }
    }

    /// The number of watches. As in ZooKeeper, a persistent one counts twice, because it watches
    /// data and children.
    pub(crate) fn count(&self) -> usize {
        let watches = self.by_session.values().flatten();
        watches.map(|(watch, _)| watch.tables()).sum()
    }

    /// The paths that each session watches other than for children alone.
    pub(crate) fn by_session(&self) -> BTreeMap<SessionId, BTreeSet<&str>> {
        let mut by_session: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for (session, watches) in &self.by_session {
            for (watch, path) in watches {
                if *watch != Watch::OneShot(Aspect::Children) {
                    by_session.entry(*session).or_default().insert(path);
                }
            }
        }
        by_session
    }

    /// Arms a one-shot watch. Arming it twice has no effect.
    pub(crate) fn arm(&mut self, session: SessionId, aspect: Aspect, path: &str) {
        self.add(session, Watch::OneShot(aspect), path);
    }

    /// Adds a persistent watch. Adding it twice has no effect.
    pub(crate) fn add_lasting(&mut self, session: SessionId, mode: WatchMode, path: &str) {
        self.add(session, Watch::Lasting(mode), path);
    }

    fn add(&mut self, session: SessionId, watch: Watch, path: &str) {
        let watches = self.by_session.entry(session).or_default();
        if watches.insert((watch, path.to_owned())) {
            let sessions = self.by_path(watch).entry(path.to_owned()).or_default();
            sessions.insert(session);
        }
    }

    /// Whether the session has a watch of this kind at `path`.
    pub(crate) fn has(&self, session: SessionId, kind: WatchKind, path: &str) -> bool {
        let watches = self.by_session.get(&session);
        let has =
            |watch: &Watch| watches.is_some_and(|all| all.contains(&(*watch, path.to_owned())));
        Watch::of(kind).iter().any(has)
    }

    /// Removes the session's watches of this kind at `path`. Returns whether there was any.
    pub(crate) fn remove(&mut self, session: SessionId, kind: WatchKind, path: &str) -> bool {
        let mut is_removed = false;
        for watch in Watch::of(kind) {
            let watched = (*watch, path.to_owned());
            if self.forget(session, &watched) {
                self.remove_from_path(session, &watched);
                is_removed = true;
            }
        }
        is_removed
    }

    /// Fires the watches of this change, and disarms those that fire once. Returns their sessions,
    /// each once.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str) -> BTreeSet<SessionId> {
        if self.by_session.is_empty() {
            return BTreeSet::new();
        }
        let mut fired = BTreeSet::new();
        for aspect in Aspect::changed_by(kind) {
            let watch = Watch::OneShot(*aspect);
            let Some(sessions) = self.by_path(watch).remove(path) else {
                continue;
            };
            let watched = (watch, path.to_owned());
            for session in &sessions {
                self.forget(*session, &watched);
            }
            fired.extend(sessions);
        }
        if let Some(sessions) = self.persistent.get(path) {
            fired.extend(sessions);
            if self.mutant.breaks(Broken::FiresPersistentWatchesOnce) {
                for session in fired.clone() {
                    self.remove(session, WatchKind::Persistent, path);
                }
            }
        }
        self.fire_recursive(kind, path, &mut fired);
        fired
    }

    fn fire_recursive(&self, kind: EventKind, path: &str, fired: &mut BTreeSet<SessionId>) {
        // A recursive watch learns of the child itself.
        if self.recursive.is_empty() || kind == EventKind::NodeChildrenChanged {
            return;
        }
        let mut above = Some(path);
        if self.mutant.breaks(Broken::MissesNewDescendants) && kind == EventKind::NodeCreated {
            above = None;
        }
        while let Some(at) = above {
            if let Some(sessions) = self.recursive.get(at) {
                fired.extend(sessions);
            }
            above = path::split(at).map(|(parent, _)| parent);
        }
    }

    /// Disarms all watches of a client that disconnected.
    pub(crate) fn disarm_all(&mut self, session: SessionId) {
        for watched in self.by_session.remove(&session).unwrap_or_default() {
            self.remove_from_path(session, &watched);
        }
    }

    fn by_path(&mut self, watch: Watch) -> &mut ByPath {
        match watch {
            Watch::OneShot(Aspect::Data) => &mut self.data,
            Watch::OneShot(Aspect::Children) => &mut self.children,
            Watch::Lasting(WatchMode::Persistent) => &mut self.persistent,
            Watch::Lasting(WatchMode::Recursive) => &mut self.recursive,
        }
    }

    fn remove_from_path(&mut self, session: SessionId, (watch, path): &(Watch, String)) {
        let by_path = self.by_path(*watch);
        if let Some(sessions) = by_path.get_mut(path) {
            sessions.remove(&session);
            if sessions.is_empty() {
                by_path.remove(path);
            }
        }
    }

    /// Returns whether the session had the watch.
    fn forget(&mut self, session: SessionId, watched: &(Watch, String)) -> bool {
        let Some(of_session) = self.by_session.get_mut(&session) else {
            return false;
        };
        let had = of_session.remove(watched);
        if of_session.is_empty() {
            self.by_session.remove(&session);
        }
        had
    }
}

#[cfg(test)]
mod tests;
