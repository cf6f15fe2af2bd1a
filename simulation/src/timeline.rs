//! The order of all changes: the distributor's log as a history of every znode.
//!
//! Building it checks the log against the rules of the tree. Zxids have no repeats and no gaps, and
//! no request is numbered twice. Every create finds its path free and its parent present. Every
//! stat follows from the changes before it.

use std::collections::{BTreeMap, BTreeSet};

use coordination::{
    model::{EventKind, SessionId, Stat, Zxid},
    path,
    queue_names::LOG_PARTITION,
    records::{Change, LogEntry, Slot, UpdateAnswer, decode},
};
use ports::KeyValue;
use primitives::{Cursor, FencedLog};
use std::sync::Arc;

/// The contents of the log.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Every entry by its zxid.
    pub entries: BTreeMap<Zxid, LogEntry>,
    /// Every znode's states, each with the zxid that made it; none: deleted.
    nodes: BTreeMap<String, Vec<(Zxid, Option<Stat>)>>,
    /// The violations of the rules of the tree.
    pub violations: Vec<String>,
}

impl Timeline {
    /// Reads the whole log of `system`.
    pub async fn read(system: Arc<dyn KeyValue>) -> Self {
        let log = FencedLog::new(system, LOG_PARTITION);
        let mut slots = Vec::new();
        let mut cursor = Cursor::START;
        loop {
            let page = log
                .read(cursor, usize::MAX)
                .await
                .expect("the world is healed");
            slots.extend(page.slots);
            cursor = page.cursor;
            if page.is_tail {
                break;
            }
        }
        let mut timeline = Self::default();
        for (path, children) in [
            ("/", 1),
            ("/zookeeper", 2),
            ("/zookeeper/config", 0),
            ("/zookeeper/quota", 0),
        ] {
            let stat = Stat {
                num_children: children,
                cversion: -children,
                ..Stat::default()
            };
            timeline
                .nodes
                .insert(path.into(), vec![(Zxid(0), Some(stat))]);
        }
        let mut requests = BTreeSet::new();
        for logged in slots {
            let slot: Slot = decode(&logged.payload, "a slot").expect("the log decodes");
            for (zxid, entry) in slot.numbered() {
                timeline.take(zxid, &entry, &mut requests);
            }
        }
        timeline
    }

    /// The stat of `path` at `zxid`.
    pub fn stat(&self, path: &str, zxid: Zxid) -> Option<Stat> {
        let states = self.nodes.get(path)?;
        states.iter().rev().find(|(changed, _)| *changed <= zxid)?.1
    }

    /// The names of the children of `path` at `zxid`.
    pub fn children(&self, path: &str, zxid: Zxid) -> Vec<String> {
        let is_child =
            |candidate: &&String| path::split(candidate).is_some_and(|(parent, _)| parent == path);
        let present = self
            .nodes
            .keys()
            .filter(is_child)
            .filter(|child| self.stat(child, zxid).is_some());
        present
            .filter_map(|child| path::split(child))
            .map(|(_, name)| name.to_owned())
            .collect()
    }

    /// All paths that ever existed.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// The last zxid.
    pub fn last(&self) -> Zxid {
        self.entries.keys().next_back().copied().unwrap_or_default()
    }

    /// The first event after `since` that fires a watch of `path` for one of `kinds`.
    pub fn first_event(
        &self,
        path: &str,
        kinds: &[EventKind],
        since: Zxid,
    ) -> Option<(Zxid, EventKind)> {
        let later = self.entries.range(Zxid(since.0 + 1)..);
        later
            .flat_map(|(zxid, entry)| {
                entry
                    .events
                    .iter()
                    .map(move |change| (*zxid, change.kind, &change.path))
            })
            .find(|(_, kind, changed)| *changed == path && kinds.contains(kind))
            .map(|(zxid, kind, _)| (zxid, kind))
    }

    fn take(
        &mut self,
        zxid: Zxid,
        entry: &LogEntry,
        requests: &mut BTreeSet<(SessionId, u64, u64)>,
    ) {
        if zxid.0 != self.last().0 + 1 {
            self.violations
                .push(format!("{zxid:?} follows {:?}", self.last()));
        }
        let request = (entry.id.session, entry.attach, entry.request);
        if entry.request > 0 && !requests.insert(request) {
            self.violations.push(format!(
                "request {request:?} was decided twice, again at {zxid:?}"
            ));
        }
        self.check_session_order(zxid, entry);
        match &entry.answer {
            Ok(UpdateAnswer::Multi(answers)) => {
                let mut events = entry.events.as_slice();
                for answer in answers {
                    let (its, others) = events.split_at(event_count(answer).min(events.len()));
                    self.apply(zxid, answer, its);
                    events = others;
                }
            }
            Ok(answer) => self.apply(zxid, answer, &entry.events),
            Err(_) => {}
        }
        self.entries.insert(zxid, entry.clone());
    }

    fn apply(&mut self, zxid: Zxid, answer: &UpdateAnswer, events: &[Change]) {
        match answer {
            UpdateAnswer::Created { path, stat } => self.create(zxid, path, *stat),
            UpdateAnswer::Set(stat) => self.set(zxid, events, *stat),
            UpdateAnswer::Deleted | UpdateAnswer::Closed => self.delete(zxid, events),
            UpdateAnswer::Attached
            | UpdateAnswer::Checked
            | UpdateAnswer::Multi(_)
            | UpdateAnswer::MultiFailed { .. } => {}
        }
    }

    /// Appendix A, linearized writes: a session's updates are in the order of its requests.
    fn check_session_order(&mut self, zxid: Zxid, entry: &LogEntry) {
        let of_session = self
            .entries
            .values()
            .rev()
            .find(|earlier| earlier.id.session == entry.id.session);
        if let Some(earlier) = of_session
            && (earlier.attach, earlier.request) >= (entry.attach, entry.request)
            && entry.request > 0
        {
            self.violations.push(format!(
                "{zxid:?} takes {:?} behind {:?}",
                entry.id, earlier.id
            ));
        }
    }

    fn create(&mut self, zxid: Zxid, path: &str, stat: Stat) {
        if self.stat(path, zxid).is_some() {
            self.violations
                .push(format!("{zxid:?} creates {path}, which is there"));
        }
        let expected = Stat {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            version: 0,
            cversion: 0,
            num_children: 0,
            ..stat
        };
        if stat != expected {
            self.violations
                .push(format!("{zxid:?} creates {path} as {stat:?}"));
        }
        self.nodes
            .entry(path.to_owned())
            .or_default()
            .push((zxid, Some(stat)));
        self.change_children(zxid, path, 1);
    }

    fn set(&mut self, zxid: Zxid, events: &[Change], stat: Stat) {
        let Some(Change { path, .. }) = events.first() else {
            return;
        };
        match self.stat(path, zxid) {
            Some(before) => {
                let (mtime, data_length) = (stat.mtime, stat.data_length);
                let expected = Stat {
                    mzxid: zxid,
                    mtime,
                    data_length,
                    version: before.version + 1,
                    ..before
                };
                if stat != expected {
                    self.violations.push(format!(
                        "{zxid:?} sets {path} to {stat:?} instead of {expected:?}"
                    ));
                }
            }
            None => self
                .violations
                .push(format!("{zxid:?} sets {path}, which is not there")),
        }
        self.nodes
            .entry(path.clone())
            .or_default()
            .push((zxid, Some(stat)));
    }

    fn delete(&mut self, zxid: Zxid, events: &[Change]) {
        for Change { kind, path, .. } in events {
            if *kind != EventKind::NodeDeleted {
                continue;
            }
            match self.stat(path, zxid) {
                None => self
                    .violations
                    .push(format!("{zxid:?} deletes {path}, which is not there")),
                Some(stat) if stat.num_children > 0 => {
                    self.violations
                        .push(format!("{zxid:?} deletes {path}, which has children"));
                }
                Some(_) => {}
            }
            self.nodes
                .entry(path.clone())
                .or_default()
                .push((zxid, None));
            self.change_children(zxid, path, -1);
        }
    }

    fn change_children(&mut self, zxid: Zxid, path: &str, by: i32) {
        let Some((parent, _)) = path::split(path) else {
            return;
        };
        match self.stat(parent, zxid) {
            Some(before) => {
                let stat = Stat {
                    pzxid: zxid,
                    cversion: before.cversion + 1,
                    num_children: before.num_children + by,
                    ..before
                };
                self.nodes
                    .entry(parent.to_owned())
                    .or_default()
                    .push((zxid, Some(stat)));
            }
            None => {
                self.violations.push(format!(
                    "{zxid:?} changes the children of {parent}, which is not there"
                ));
            }
        }
    }
}

/// The number of events of one part of a multi.
fn event_count(answer: &UpdateAnswer) -> usize {
    match answer {
        UpdateAnswer::Created { .. } | UpdateAnswer::Deleted => 2,
        UpdateAnswer::Set(_) => 1,
        _ => 0,
    }
}
