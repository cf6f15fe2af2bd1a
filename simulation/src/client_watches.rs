//! The watches of one client, as ZooKeeper's client library keeps them to set them again after a
//! reconnect.

use std::collections::{BTreeMap, BTreeSet};

use coordination::model::{
    EventKind, Output, Request, WatchKind, WatchMode, Watched, Watching as Asked, Zxid,
};

/// The watches that are set and have not fired.
#[derive(Debug, Default)]
pub(crate) struct ClientWatches {
    data: BTreeSet<String>,
    exists: BTreeSet<String>,
    children: BTreeSet<String>,
    lasting: BTreeSet<(WatchMode, String)>,
    /// Unanswered requests that change the watches if they succeed.
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
        }
        | Request::AddWatch { .. }
        | Request::RemoveWatches {
            only_checks: false, ..
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
                (Some(Request::AddWatch { path, mode }), true) => {
                    self.lasting.insert((mode, path));
                }
                (Some(Request::RemoveWatches { path, kind, .. }), true) => self.remove(&path, kind),
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

    fn remove(&mut self, path: &str, kind: WatchKind) {
        let (mut one_shot, mut lasting) = (Vec::new(), Vec::new());
        match kind {
            WatchKind::Children => one_shot = vec![&mut self.children],
            WatchKind::Data => one_shot = vec![&mut self.data, &mut self.exists],
            WatchKind::Persistent => lasting = vec![WatchMode::Persistent],
            WatchKind::Recursive => lasting = vec![WatchMode::Recursive],
            WatchKind::Any => {
                one_shot = vec![&mut self.children, &mut self.data, &mut self.exists];
                lasting = vec![WatchMode::Persistent, WatchMode::Recursive];
            }
        }
        for paths in one_shot {
            paths.remove(path);
        }
        for mode in lasting {
            self.lasting.remove(&(mode, path.to_owned()));
        }
    }

    /// The first request of a new connection, if there are watches.
    pub(crate) fn set_again(&mut self, relative: Zxid) -> Option<Request> {
        // Unanswered requests of the last connection left no watch that the client knows.
        self.asked.clear();
        let one_shot = [
            (Watched::Data, &self.data),
            (Watched::Existence, &self.exists),
            (Watched::Children, &self.children),
        ];
        let one_shot = one_shot
            .into_iter()
            .flat_map(|(watched, paths)| paths.iter().map(move |path| (watched, path.clone())));
        let lasting = self.lasting.iter();
        let lasting = lasting.map(|(mode, path)| (Watched::Lasting(*mode), path.clone()));
        let watches: Vec<_> = one_shot.chain(lasting).collect();
        let is_needed = !watches.is_empty();
        is_needed.then_some(Request::SetWatches { relative, watches })
    }
}
