//! The watches of one client as ZooKeeper's client library keeps them: what it sets again after a reconnect.

use std::collections::{BTreeMap, BTreeSet};

use coordination::model::{EventKind, Output, Request, Watching as Asked, Zxid};

/// Watches that are set and have not fired.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    data: BTreeSet<String>,
    exists: BTreeSet<String>,
    children: BTreeSet<String>,
    /// Reads that are not answered yet and leave a watch if they succeed.
    asked: BTreeMap<i32, Request>,
}

impl Watching {
    /// Notes what was asked for under `tag`.
    pub(crate) fn asked(&mut self, tag: i32, request: &Request) {
        if let Request::Exists {
            watching: Asked::Yes,
            ..
        }
        | Request::GetData {
            watching: Asked::Yes,
            ..
        }
        | Request::GetChildren {
            watching: Asked::Yes,
            ..
        } = request
        {
            self.asked.insert(tag, request.clone());
        }
    }

    /// Learns from what was shown.
    pub(crate) fn shown(&mut self, output: &Output) {
        match output {
            Output::Reply { tag, result, .. } => match (self.asked.remove(tag), result.is_ok()) {
                (Some(Request::Exists { path, .. }), false) => drop(self.exists.insert(path)),
                (Some(Request::Exists { path, .. } | Request::GetData { path, .. }), true) => {
                    self.data.insert(path);
                }
                (Some(Request::GetChildren { path, .. }), true) => drop(self.children.insert(path)),
                _ => {}
            },
            Output::Event { kind, path, .. } => {
                if *kind != EventKind::NodeChildrenChanged {
                    self.data.remove(path);
                    self.exists.remove(path);
                }
                if matches!(
                    kind,
                    EventKind::NodeChildrenChanged | EventKind::NodeDeleted
                ) {
                    self.children.remove(path);
                }
            }
        }
    }

    /// What a new connection asks for first, if there is anything to watch.
    pub(crate) fn set_again(&mut self, relative: Zxid) -> Option<Request> {
        // What the last connection left unanswered has set nothing that its client knows of.
        self.asked.clear();
        let all = |paths: &BTreeSet<String>| paths.iter().cloned().collect::<Vec<_>>();
        let (data, exists, children) = (all(&self.data), all(&self.exists), all(&self.children));
        let is_needed = data.len() + exists.len() + children.len() > 0;
        is_needed.then_some(Request::SetWatches {
            relative,
            data,
            exists,
            children,
        })
    }
}
