//! The watches of one client, as ZooKeeper's client library keeps them to set them again after a
//! reconnect.

use std::collections::{BTreeMap, BTreeSet};

use coordination::model::{EventKind, Output, Request, Watching as Asked, Zxid};

/// The watches that are set and have not fired.
#[derive(Debug, Default)]
pub(crate) struct ClientWatches {
    data: BTreeSet<String>,
    exists: BTreeSet<String>,
    children: BTreeSet<String>,
    /// Unanswered reads that leave a watch if they succeed.
    asked: BTreeMap<i32, Request>,
}

impl ClientWatches {
    /// Records the request under `tag`.
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

    /// Updates the watches by an output.
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

    /// The first request of a new connection, if there are watches.
    pub(crate) fn set_again(&mut self, relative: Zxid) -> Option<Request> {
        // Unanswered requests of the last connection left no watch that the client knows.
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
