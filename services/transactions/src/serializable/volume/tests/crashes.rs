//! Crashes of the node and of its store: what was externalized survives, and nothing is torn.

use super::*;
use crate::serializable::conformance::commit;

/// V6: a node that starts anew, with its store or without, loses nothing that was externalized.
#[test]
fn a_crash_loses_nothing_that_was_externalized() {
    for seed in 0..20 {
        simulated::run(async move {
            let world = World::new(seed);
            let random = &mut fastrand::Rng::with_seed(seed);
            let mut node = Node::on(&world, world.key_value(), Config::default()).await;
            let mut volume = node.create("demo").await;
            let keys = ["a", "b", "c"].map(|name| key("d", name));
            // For each key the last value that must be there, and those that may.
            let (mut durable, mut number) = (0_u64, 0_u64);
            for _ in 0..30 {
                for _ in 0..random.u64(1..6) {
                    number += 1;
                    let at = volume.snapshot().await.expect("a snapshot").value.slot;
                    let text = number.to_string();
                    let writes = keys.iter().map(|key| put(key, text.clone())).collect();
                    let read = volume.commit(blind(at, number, writes)).await;
                    let read = read.expect("a verdict");
                    assert!(matches!(read.value, Verdict::Committed { .. }), "{read:?}");
                    if random.bool() {
                        volume.externalize(read.point).await.expect("durable");
                        durable = number;
                    }
                }
                if random.bool() {
                    tokio::time::sleep(Duration::from_millis(random.u64(0..600))).await;
                }
                drop(volume);
                drop(node);
                match random.u8(0..3) {
                    0 => world.crash(),
                    1 => world.crash_keeping_some(),
                    _ => durable = number,
                }
                node = Node::on(&world, world.key_value(), Config::default()).await;
                volume = node.open("demo").await;
                let found = volume
                    .get_many(At::Tail, &keys)
                    .await
                    .expect("a read")
                    .value;
                assert!(
                    found.found.iter().all(|value| *value == found.found[0]),
                    "torn"
                );
                let last = found.found[0].as_ref().map_or(0, |value| {
                    let text = std::str::from_utf8(value).expect("text");
                    text.parse::<u64>().expect("a number")
                });
                assert!(
                    (durable..=number).contains(&last),
                    "seed {seed}: {last} {durable}"
                );
                number = number.max(last);
                durable = last;
            }
        });
    }
}

/// A store that goes back under a living node: its clients see a later incarnation, and a snapshot
/// that the store has lost validates nothing.
#[test]
fn a_lost_snapshot_validates_nothing() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (volume, key) = (node.create("demo").await, key("d", "a"));
        let first = volume
            .commit(blind(Slot(0), 1, vec![put(&key, "first")]))
            .await;
        let first = first.expect("a verdict");
        volume.externalize(first.point).await.expect("durable");
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let lost = volume.commit(blind(at, 2, vec![put(&key, "lost")])).await;
        let lost = lost.expect("a verdict");
        let Verdict::Committed { slot, .. } = lost.value else {
            panic!("{lost:?}");
        };
        world.crash();
        let mut tries = 0;
        let found = loop {
            match volume.get_many(At::Tail, std::slice::from_ref(&key)).await {
                Ok(found) => break found,
                Err(error) => {
                    assert!(matches!(error, crate::Error::Unavailable(_)), "{error}");
                    tries += 1;
                    assert!(tries < 1_000, "the node does not restart");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        assert_eq!(found.value.found, [Some("first".into())]);
        assert!(found.point.incarnation > first.point.incarnation);
        assert!(volume.externalize(lost.point).await.is_err());
        volume.externalize(first.point).await.expect("it survived");
        for number in 3..6 {
            let other = crate::serializable::conformance::key("d", "b");
            committed(
                &*volume,
                blind(found.value.slot, number, vec![put(&other, "1")]),
            )
            .await;
        }
        let mut late = blind(slot, 9, vec![put(&key, "late")]);
        late.reads = vec![key.clone()];
        assert_eq!(commit(&*volume, late).await, Verdict::SnapshotTooOld);
        let read = volume.get_many(At::Slot(slot), &[key]).await;
        assert_eq!(read.map(drop), Err(crate::Error::SnapshotTooOld));
    });
}
