use proptest::{prelude::*, strategy::ValueTree as _};

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
    for session in [ONE, TWO] {
        watches.arm(session, Aspect::Data, "/a");
        watches.add_lasting(session, WatchMode::Persistent, "/a");
        watches.add_lasting(session, WatchMode::Recursive, "/");
    }
    watches.disarm_all(ONE);
    assert_eq!(
        watches.fire(EventKind::NodeDataChanged, "/a"),
        BTreeSet::from([TWO])
    );
    watches.disarm_all(TWO);
    assert_eq!(watches.count(), 0);
    let tables = [
        watches.data,
        watches.children,
        watches.persistent,
        watches.recursive,
    ];
    assert!(tables.iter().all(BTreeMap::is_empty));
}

/// As in ZooKeeper's `wchs`: a persistent watch is in both tables, and each path counts once.
#[test]
fn a_summary_names_each_path_once() {
    let mut watches = Watches::default();
    watches.arm(ONE, Aspect::Data, "/a");
    watches.arm(ONE, Aspect::Children, "/b");
    watches.add_lasting(ONE, WatchMode::Persistent, "/a");
    watches.add_lasting(ONE, WatchMode::Recursive, "/c");
    assert_eq!(watches.count(), 5);
    let expected = BTreeMap::from([(ONE, BTreeSet::from(["/a", "/c"]))]);
    assert_eq!(watches.by_session(), expected);
}

const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a/c"];
const EVENTS: [EventKind; 4] = [
    EventKind::NodeCreated,
    EventKind::NodeDeleted,
    EventKind::NodeDataChanged,
    EventKind::NodeChildrenChanged,
];
const KINDS: [WatchKind; 5] = [
    WatchKind::Children,
    WatchKind::Data,
    WatchKind::Any,
    WatchKind::Persistent,
    WatchKind::Recursive,
];

/// ZooKeeper's rules, written down one by one over a plain list.
#[derive(Debug, Default)]
struct Naive(Vec<(SessionId, Watch, &'static str)>);

impl Naive {
    fn add(&mut self, session: SessionId, watch: Watch, path: &'static str) {
        if !self.0.contains(&(session, watch, path)) {
            self.0.push((session, watch, path));
        }
    }

    fn is_of(watch: Watch, kind: WatchKind) -> bool {
        match kind {
            WatchKind::Any => true,
            WatchKind::Data => watch == Watch::OneShot(Aspect::Data),
            WatchKind::Children => watch == Watch::OneShot(Aspect::Children),
            WatchKind::Persistent => watch == Watch::Lasting(WatchMode::Persistent),
            WatchKind::Recursive => watch == Watch::Lasting(WatchMode::Recursive),
        }
    }

    fn has(&self, session: SessionId, kind: WatchKind, path: &str) -> bool {
        let is_it = |(of, watch, at): &(SessionId, Watch, &str)| {
            *of == session && *at == path && Self::is_of(*watch, kind)
        };
        self.0.iter().any(is_it)
    }

    fn remove(&mut self, session: SessionId, kind: WatchKind, path: &str) -> bool {
        let had = self.has(session, kind, path);
        self.0
            .retain(|(of, watch, at)| *of != session || *at != path || !Self::is_of(*watch, kind));
        had
    }

    fn fire(&mut self, kind: EventKind, path: &str) -> BTreeSet<SessionId> {
        let fires = |watch: Watch, at: &str| match watch {
            Watch::OneShot(Aspect::Data) => at == path && kind != EventKind::NodeChildrenChanged,
            Watch::OneShot(Aspect::Children) => {
                let is_its = [EventKind::NodeChildrenChanged, EventKind::NodeDeleted];
                at == path && is_its.contains(&kind)
            }
            Watch::Lasting(WatchMode::Persistent) => at == path,
            Watch::Lasting(WatchMode::Recursive) => {
                let is_below = at == "/" || at == path || path.starts_with(&format!("{at}/"));
                is_below && kind != EventKind::NodeChildrenChanged
            }
        };
        let fired = self.0.iter().filter(|(_, watch, at)| fires(*watch, at));
        let fired = fired.map(|(session, ..)| *session).collect();
        self.0
            .retain(|(_, watch, at)| matches!(watch, Watch::Lasting(_)) || !fires(*watch, at));
        fired
    }
}

/// Steps on both the watches and the plain list. Returns the first step whose results differ.
fn first_difference(mutant: Mutant<Broken>, steps: &[(u8, u8, u8, u8)]) -> Option<usize> {
    let (mut watches, mut naive) = (Watches::new(mutant), Naive::default());
    let is_different = |(step, session, path, choice): &(u8, u8, u8, u8)| {
        let session = SessionId(i64::from(session % 3) + 1);
        let path = PATHS[usize::from(*path) % PATHS.len()];
        let kind = KINDS[usize::from(*choice) % KINDS.len()];
        match step % 8 {
            0 | 1 => {
                let aspect = [Aspect::Data, Aspect::Children][usize::from(choice % 2)];
                watches.arm(session, aspect, path);
                naive.add(session, Watch::OneShot(aspect), path);
            }
            2 | 3 => {
                let mode = [WatchMode::Persistent, WatchMode::Recursive][usize::from(choice % 2)];
                watches.add_lasting(session, mode, path);
                naive.add(session, Watch::Lasting(mode), path);
            }
            4 => {
                let removed = watches.remove(session, kind, path);
                return removed != naive.remove(session, kind, path);
            }
            5 if choice % 8 == 0 => {
                watches.disarm_all(session);
                naive.0.retain(|(of, ..)| *of != session);
            }
            _ => {
                let event = EVENTS[usize::from(*choice) % EVENTS.len()];
                return watches.fire(event, path) != naive.fire(event, path);
            }
        }
        let tables: usize = naive.0.iter().map(|(_, watch, _)| watch.tables()).sum();
        watches.has(session, kind, path) != naive.has(session, kind, path)
            || watches.count() != tables
    };
    steps.iter().position(is_different)
}

proptest! {
    /// C4: any sequence of steps fires the watches that ZooKeeper's rules name, and no others.
    #[test]
    fn watches_fire_as_a_plain_list_says(
        steps in proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 0..60),
    ) {
        prop_assert_eq!(first_difference(Mutant::NONE, &steps), None);
    }
}

/// C4, broken.
#[test]
fn the_plain_list_catches_watches_that_miss_changes() {
    let mut rng = proptest::test_runner::TestRunner::deterministic();
    let steps = proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 60);
    for rule in [
        Broken::FiresPersistentWatchesOnce,
        Broken::MissesNewDescendants,
    ] {
        let is_caught = (0..100).any(|_| {
            let drawn = steps.new_tree(&mut rng).expect("steps").current();
            first_difference(rule.into(), &drawn).is_some()
        });
        assert!(is_caught, "{rule:?}");
    }
}
