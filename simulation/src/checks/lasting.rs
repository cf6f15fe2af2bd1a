//! Persistent watches of one connection: every change that one of them reports is shown once, and
//! before anything newer.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included},
};

use coordination::{
    model::{EventKind, WatchKind, WatchMode, Zxid},
    path::is_below,
};

use crate::timeline::Timeline;

/// The persistent watches of a connection, and the events that it was shown.
#[derive(Debug, Default)]
pub(super) struct LastingWatches {
    set: Vec<Lasting>,
    shown: BTreeMap<(Zxid, EventKind, String), usize>,
    /// The changes up to here are checked.
    checked: Zxid,
}

#[derive(Debug)]
struct Lasting {
    path: String,
    mode: WatchMode,
    /// It was set at some zxid between these.
    since: (Zxid, Zxid),
}

impl Lasting {
    fn reports(&self, kind: EventKind, path: &str) -> bool {
        match self.mode {
            WatchMode::Persistent => self.path == path,
            WatchMode::Recursive => {
                let is_in = self.path == path || self.path == "/" || is_below(path, &self.path);
                is_in && kind != EventKind::NodeChildrenChanged
            }
        }
    }

    fn is_of(&self, kind: WatchKind) -> bool {
        match self.mode {
            WatchMode::Persistent => matches!(kind, WatchKind::Persistent | WatchKind::Any),
            WatchMode::Recursive => matches!(kind, WatchKind::Recursive | WatchKind::Any),
        }
    }
}

impl LastingWatches {
    /// A reply said that this watch is set, or set again, since a zxid between these.
    pub(super) fn set(&mut self, path: &str, mode: WatchMode, since: (Zxid, Zxid)) {
        let is_it = |lasting: &&mut Lasting| lasting.path == path && lasting.mode == mode;
        if let Some(lasting) = self.set.iter_mut().find(is_it) {
            lasting.since.1 = lasting.since.1.min(since.1);
            return;
        }
        let path = path.to_owned();
        self.set.push(Lasting { path, mode, since });
    }

    /// A reply said that these watches are removed. Returns whether there was one.
    pub(super) fn remove(&mut self, path: &str, kind: WatchKind) -> bool {
        let before = self.set.len();
        self.set
            .retain(|lasting| lasting.path != path || !lasting.is_of(kind));
        self.set.len() < before
    }

    /// Whether one of them reports this event.
    pub(super) fn reports(&self, zxid: Zxid, kind: EventKind, path: &str) -> bool {
        let reports = |lasting: &Lasting| zxid > lasting.since.0 && lasting.reports(kind, path);
        self.set.iter().any(reports)
    }

    /// Records that an event was shown.
    pub(super) fn shown(&mut self, zxid: Zxid, kind: EventKind, path: &str) {
        *self.shown.entry((zxid, kind, path.to_owned())).or_default() += 1;
    }

    /// The changes up to `zxid` that were not shown as often as they happened.
    pub(super) fn check_through(&mut self, timeline: &Timeline, zxid: Zxid) -> Vec<String> {
        let mut violations = Vec::new();
        if zxid <= self.checked {
            return violations;
        }
        let news = (Excluded(self.checked), Included(zxid));
        for (at, entry) in timeline.entries.range(news) {
            let mut happened = BTreeMap::<_, usize>::new();
            for change in &entry.events {
                *happened.entry((change.kind, &change.path)).or_default() += 1;
            }
            for ((kind, path), times) in happened {
                let reports =
                    |lasting: &Lasting| *at > lasting.since.1 && lasting.reports(kind, path);
                let shown = self.shown.get(&(*at, kind, path.clone()));
                let shown = shown.copied().unwrap_or_default();
                if self.set.iter().any(reports) && shown != times {
                    violations.push(format!(
                        "{zxid:?} was shown after {shown} events of {times} {kind:?} of {path} at {at:?}"
                    ));
                }
            }
        }
        self.checked = zxid;
        violations
    }
}
