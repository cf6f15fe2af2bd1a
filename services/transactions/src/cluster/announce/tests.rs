use ports::Monotonic;
use primitives::Mutant;

use crate::{
    cluster::Neighbours,
    model::{Attempt, Key, Position, Timestamp, TransactionId, Version},
    storage::{
        frontier::Frontier,
        node_registry::NodeRow,
        records::{Place, Write},
    },
};

use super::*;

fn key(name: &str) -> Key {
    Key::new(name.to_owned()).expect("short")
}

fn record(version: u64, keys: &[&str]) -> Arc<CommitRecord> {
    let node = NodeId(1);
    let write = |name: &&str| Write {
        key: key(name),
        write: 1,
        place: Place::Gone,
    };
    Arc::new(CommitRecord {
        id: TransactionId::new(format!("{version}")).expect("a name"),
        attempt: Attempt {
            node,
            sequence: version,
        },
        version: Version {
            timestamp: Timestamp(version),
            node,
        },
        position: Position {
            log: node,
            slot: version,
        },
        writes: keys.iter().map(write).collect(),
        parts: 0,
        point: DurabilityPoint::DURABLE,
    })
}

fn left(records: &[Arc<CommitRecord>], known: &[(&str, u64)]) -> Vec<u64> {
    let is_superseded = |asked: &Key, version: Version| {
        known
            .iter()
            .any(|(name, newer)| key(name) == *asked && *newer > version.timestamp.0)
    };
    let needed = prune(records.to_vec(), is_superseded);
    needed
        .iter()
        .map(|record| record.version.timestamp.0)
        .collect()
}

/// 10.2: every omitted commit is superseded in each key by one that the receiver applies.
#[test]
fn a_commit_is_left_out_if_all_its_keys_are_superseded() {
    let records = [
        record(1, &["a", "b"]),
        record(2, &["a"]),
        record(3, &["b", "c"]),
    ];
    assert_eq!(
        left(&records, &[]),
        [2, 3],
        "the first is superseded by both others together"
    );
    assert_eq!(left(&records, &[("a", 9)]), [3]);
    assert_eq!(left(&records, &[("b", 9)]), [2, 3], "c is not");
    assert_eq!(left(&records[..1], &[("a", 9)]), [1]);
}

fn applied(log: u32, slot: u64) -> Frontier {
    let mut applied = Frontier::default();
    applied.advance(NodeId(log), slot);
    applied
}

fn row(node: u32, is_resolved: bool) -> NodeRow {
    let row = NodeRow::new(NodeId(node), primitives::Cursor::START, Timestamp(0));
    NodeRow { is_resolved, ..row }
}

fn tell(neighbours: &mut Neighbours, node: u32, horizon: Frontier) {
    neighbours.peer(NodeId(node), Monotonic::default()).horizon = Some(horizon);
}

/// T6: nothing is agreed on without a node that counts.
#[test]
fn all_who_live_agree_or_nobody_does() {
    let mut neighbours = Neighbours::default();
    neighbours.count(&[row(1, true), row(2, false), row(3, false), row(4, false)]);
    tell(&mut neighbours, 3, applied(2, 7));
    assert_eq!(
        neighbours.minimum(NodeId(2), Mutant::NONE),
        None,
        "of the fourth nothing is known"
    );
    let uncounted = neighbours.minimum(NodeId(2), Broken::JoinsUncounted.into());
    assert_eq!(uncounted, Some(applied(2, 7)));
    tell(&mut neighbours, 4, applied(2, 5));
    tell(&mut neighbours, 1, applied(2, 1));
    assert_eq!(
        neighbours.minimum(NodeId(2), Mutant::NONE),
        Some(applied(2, 5)),
        "the first has ended"
    );
    neighbours.count(&[row(2, false)]);
    assert_eq!(
        neighbours.minimum(NodeId(2), Mutant::NONE),
        Some(Frontier::everything()),
        "there is no other node"
    );
}

/// A node that has an id and puts its row later is found.
#[test]
fn the_registry_is_listed_from_the_first_that_may_live() {
    let mut neighbours = Neighbours::default();
    neighbours.count(&[row(1, true), row(2, true), row(4, true), row(5, false)]);
    assert_eq!(
        neighbours.first_uncounted,
        NodeId(3),
        "the third may still put its row"
    );
    neighbours.count(&[row(3, true), row(4, true), row(5, false), row(6, true)]);
    assert_eq!(neighbours.first_uncounted, NodeId(5));
}

#[test]
fn a_clock_is_compared_with_the_median() {
    let mut neighbours = Neighbours::default();
    assert_eq!(neighbours.ahead(), Duration::ZERO, "no other clock");
    neighbours.peer(NodeId(2), Monotonic::default()).ahead_ms = -60_000;
    assert_eq!(
        neighbours.ahead(),
        Duration::ZERO,
        "of two clocks either may be right"
    );
    neighbours.peer(NodeId(3), Monotonic::default()).ahead_ms = -50_000;
    assert_eq!(neighbours.ahead(), Duration::from_secs(50));
    neighbours.peer(NodeId(4), Monotonic::default()).ahead_ms = 3;
    assert_eq!(neighbours.ahead(), Duration::ZERO);
}
