//! Collection: it deletes the versions that no read may name, and nothing else.

use ports::key_value::Scan;

use super::*;
use crate::{
    model::KeyspaceId,
    serializable::{
        model::{Key, PinName},
        rows,
    },
};

async fn count(world: &World, partition: bytes::Bytes) -> usize {
    let scan = Scan::partition(partition, 1_000);
    let page = world.key_value().scan(&scan).await.expect("a page");
    page.value.items.len()
}

async fn versions(world: &World, key: &Key) -> usize {
    let scan = rows::versions(KeyspaceId(1), key, Slot(u64::MAX), 1_000);
    let page = world.key_value().scan(&scan).await.expect("a page");
    page.value.items.len()
}

async fn read(volume: &dyn VolumeStore, at: Slot, key: &Key) -> crate::Result<Option<String>> {
    let found = volume
        .get_many(At::Slot(at), std::slice::from_ref(key))
        .await?;
    let found = found.value.found.into_iter().next().flatten();
    Ok(found.map(|value| String::from_utf8(value.to_vec()).expect("text")))
}

/// A volume whose key is written ten times and pinned after the fifth, and another key deleted.
async fn pinned(world: &World, config: Config) -> (Node, Arc<dyn VolumeStore>, Vec<Slot>) {
    let node = Node::on(world, world.key_value(), config).await;
    let volume = node.create("demo").await;
    let (kept, gone) = (key("d", "a"), key("d", "b"));
    let mut slots = Vec::new();
    for number in 0..10_u64 {
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let mut writes = vec![put(&kept, number.to_string())];
        writes.push(match number {
            9 => Write::Delete { key: gone.clone() },
            _ => put(&gone, "x"),
        });
        let (slot, _) = committed(&*volume, blind(at, number, writes)).await;
        slots.push(slot);
        if number == 4 {
            let name = PinName::new("run").expect("short");
            volume.pin(name, slot).await.expect("pinned");
        }
        pass(Duration::from_secs(1)).await;
    }
    (node, volume, slots)
}

fn keeps_pins(config: Config) {
    simulated::run(async {
        let world = World::new(7);
        let (_node, volume, slots) = pinned(&world, config).await;
        let (kept, gone) = (key("d", "a"), key("d", "b"));
        assert_eq!(versions(&world, &kept).await, 10);
        for slot in &slots {
            assert!(read(&*volume, *slot, &kept).await.is_ok(), "{slot:?}");
        }
        pass(Duration::from_mins(3)).await;
        assert_eq!(read(&*volume, slots[4], &kept).await, Ok(Some("4".into())));
        assert_eq!(read(&*volume, slots[4], &gone).await, Ok(Some("x".into())));
        let too_old = Err(crate::Error::SnapshotTooOld);
        assert_eq!(read(&*volume, slots[3], &kept).await, too_old);
        assert_eq!(read(&*volume, slots[9], &kept).await, Ok(Some("9".into())));
        assert_eq!(versions(&world, &kept).await, 2);
        let name = PinName::new("run").expect("short");
        volume.unpin(&name).await.expect("unpinned");
        pass(Duration::from_mins(20)).await;
        assert_eq!(read(&*volume, slots[4], &kept).await, too_old);
        assert_eq!(versions(&world, &kept).await, 1);
        assert_eq!(versions(&world, &gone).await, 0, "nor the deletion");
        assert_eq!(count(&world, rows::changes(KeyspaceId(1))).await, 0);
        assert_eq!(value(&*volume, &kept).await, Some("9".into()));
    });
}

/// V2: pins keep their state, and versions that nothing keeps are deleted.
#[test]
fn collection_keeps_what_can_be_read() {
    keeps_pins(Config::default());
}

#[test]
fn a_collector_that_ignores_pins_is_found() {
    assert!(fails(|| keeps_pins(broken(Broken::CollectsPinned))));
}

/// V2: versions that only a removed pin has kept go, also if the node stops at once.
#[test]
fn a_removed_pin_frees_its_versions_after_a_stop() {
    simulated::run(async {
        let world = World::new(7);
        let (node, volume, _) = pinned(&world, Config::default()).await;
        pass(Duration::from_mins(3)).await;
        let kept = key("d", "a");
        assert_eq!(versions(&world, &kept).await, 2);
        let name = PinName::new("run").expect("short");
        volume.unpin(&name).await.expect("unpinned");
        drop((volume, node));
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.open("demo").await;
        assert_eq!(value(&*volume, &kept).await, Some("9".into()));
        pass(Duration::from_mins(3)).await;
        assert_eq!(versions(&world, &kept).await, 1);
    });
}

/// A snapshot that calls name stays readable for longer than a minute.
#[test]
fn a_snapshot_in_use_is_not_collected() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (volume, key) = (node.create("demo").await, key("d", "a"));
        let (at, _) = committed(&*volume, blind(Slot(0), 1, vec![put(&key, "old")])).await;
        committed(&*volume, blind(at, 2, vec![put(&key, "new")])).await;
        for _ in 0..20 {
            assert_eq!(read(&*volume, at, &key).await, Ok(Some("old".into())));
            pass(Duration::from_secs(40)).await;
        }
        pass(Duration::from_mins(2)).await;
        let old = read(&*volume, at, &key).await;
        assert_eq!(old, Err(crate::Error::SnapshotTooOld));
    });
}

/// An old proposal that was forgotten is decided by change rows, and never twice.
#[test]
fn a_repeat_after_a_restart_finds_its_verdict() {
    simulated::run(async {
        let world = World::new(7);
        let mut node = Node::on(&world, world.key_value(), Config::default()).await;
        let mut volume = node.create("demo").await;
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let add = |id: &[u8], attempt| {
            let mut proposal = blind(
                at,
                1,
                vec![Write::Add {
                    key: key("i", "n"),
                    delta: 1,
                }],
            );
            let id = crate::serializable::model::ProposalId::new(id.to_vec(), attempt);
            proposal.id = id.expect("short");
            proposal
        };
        let random = contract::commit(&*volume, add(&[7; 16], 0)).await;
        let client = contract::commit(&*volume, add(b"order", 0)).await;
        for minutes in [0, 1, 30] {
            pass(Duration::from_mins(minutes)).await;
            drop(volume);
            drop(node);
            node = Node::on(&world, world.key_value(), Config::default()).await;
            volume = node.open("demo").await;
            let again = contract::commit(&*volume, add(&[7; 16], 0)).await;
            if minutes < 30 {
                assert_eq!(again, random);
            } else {
                assert_eq!(again, Verdict::SnapshotTooOld);
            }
            let again = contract::commit(&*volume, add(b"order", 1)).await;
            assert_eq!(again, client, "{minutes}");
            let sum = value(&*volume, &key("i", "n")).await;
            assert_eq!(sum.as_deref(), Some(&2_u64.to_be_bytes()[..]));
            pass(Duration::from_secs(1)).await;
        }
    });
}
