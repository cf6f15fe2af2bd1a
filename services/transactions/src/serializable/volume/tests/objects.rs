//! Large values in objects: every version is readable as long as it may be named, and no object
//! stays that has none.

use futures_util::TryStreamExt as _;
use ports::objects::{ObjectPath, ObjectStoreExt as _};

use super::*;
use crate::serializable::model::{Key, PinName, Unreferenced};

/// Values of two bytes are large, and one is enough for an object.
pub(super) fn bulk(rule: Option<Broken>) -> Config {
    Config {
        volume_value_bytes_min: 2,
        volume_object_bytes_min: 2,
        ..rule.map_or_else(Config::default, broken)
    }
}

async fn node(world: &World, rule: Option<Broken>) -> Node {
    Node::on(world, world.key_value(), bulk(rule)).await
}

async fn objects(world: &World) -> Vec<ObjectPath> {
    let listed = world.objects().list(None).try_collect::<Vec<_>>().await;
    let listed = listed.expect("a list").into_iter();
    listed.map(|found| found.location).collect()
}

fn keys() -> [Key; 8] {
    ["0", "1", "2", "3", "4", "5", "6", "7"].map(|name| key("d", name))
}

fn original(letter: u8) -> Vec<u8> {
    vec![letter; 100]
}

/// A volume with eight values in one object.
async fn filled(node: &Node, name: &str) -> (Arc<dyn VolumeStore>, Slot) {
    let volume = node.create(name).await;
    let puts = keys();
    let puts = puts.iter().zip(b'a'..);
    let writes = puts
        .map(|(key, letter)| put(key, original(letter)))
        .collect();
    let (slot, _) = committed(&*volume, blind(Slot(0), 1, writes)).await;
    pass(Duration::from_secs(1)).await;
    (volume, slot)
}

/// Replaces the values of some keys by short ones.
async fn replace(volume: &dyn VolumeStore, number: u64, keys: &[Key]) {
    let at = volume.snapshot().await.expect("a snapshot").value.slot;
    let writes = keys.iter().map(|key| put(key, "x")).collect();
    committed(volume, blind(at, number, writes)).await;
}

/// The values at `at`, of which the first `replaced` are short.
async fn check(volume: &dyn VolumeStore, at: At, replaced: usize) {
    let found = volume.get_many(at, &keys()).await.expect("a read").value;
    let original = (b'a'..b'i').map(original);
    let expected: Vec<_> = original
        .enumerate()
        .map(|(index, value)| {
            if index < replaced {
                b"x".to_vec()
            } else {
                value
            }
        })
        .collect();
    let values: Vec<_> = found
        .found
        .into_iter()
        .map(|value| value.expect("present"))
        .collect();
    assert_eq!(values, expected);
    let range = crate::serializable::model::KeyRange::all("d").expect("short");
    let page = volume.scan(at, &range, PageLimits::default()).await;
    let entries = page.expect("a page").value.entries;
    let values: Vec<_> = entries.into_iter().map(|entry| entry.value).collect();
    assert_eq!(values, expected);
}

fn keeps_what_is_named(rule: Option<Broken>) {
    simulated::run(async move {
        let world = World::new(7);
        let mut node_now = node(&world, rule).await;
        let (mut volume, slot) = filled(&node_now, "demo").await;
        assert_eq!(objects(&world).await.len(), 1);
        check(&*volume, At::Tail, 0).await;
        let keys = keys();
        let patch = Write::Patch {
            key: keys[7].clone(),
            offset: 99,
            data: crate::serializable::model::Patch::Bytes("h".into()),
        };
        // The rest of the object: three quarters, then one eighth.
        for (number, (replaced, left)) in [(0, 1), (2, 1), (7, 0)].into_iter().enumerate() {
            drop(volume);
            drop(node_now);
            node_now = node(&world, rule).await;
            volume = node_now.open("demo").await;
            replace(&*volume, 2 + 2 * number as u64, &keys[..replaced]).await;
            committed(
                &*volume,
                blind(slot, 3 + 2 * number as u64, vec![patch.clone()]),
            )
            .await;
            check(&*volume, At::Tail, replaced).await;
            pass(Duration::from_mins(3)).await;
            check(&*volume, At::Tail, replaced).await;
            assert_eq!(objects(&world).await.len(), left, "{replaced}");
        }
        drop(volume);
        drop(node_now);
        let node = node(&world, rule).await;
        check(&*node.open("demo").await, At::Tail, 7).await;
    });
}

/// V2: an object stays while a version in it may be read, and goes with the last.
#[test]
fn an_object_goes_with_its_last_version() {
    keeps_what_is_named(None);
}

#[test]
fn a_collector_that_deletes_objects_with_versions_is_found() {
    let rule = Some(Broken::DeletesReferencedObjects);
    assert!(fails(|| keeps_what_is_named(rule)));
}

#[test]
fn rows_that_name_an_object_before_it_is_put_are_found() {
    assert!(fails(|| keeps_what_is_named(Some(
        Broken::RowsBeforeObject
    ))));
}

/// V2: pins and clones read values of objects.
#[test]
fn pins_and_clones_keep_objects() {
    simulated::run(async {
        let world = World::new(7);
        let node_now = node(&world, None).await;
        let (volume, slot) = filled(&node_now, "demo").await;
        let volumes = node_now.engine.volumes();
        let name = PinName::new("kept").expect("short");
        volume.pin(name.clone(), slot).await.expect("pinned");
        let demo = named("demo");
        let cloned = volumes.clone_volume(&demo, Some(slot), named("copy"));
        cloned.await.expect("cloned");
        replace(&*volume, 2, &keys()).await;
        pass(Duration::from_mins(3)).await;
        check(&*volume, At::Slot(slot), 0).await;
        volume.unpin(&name).await.expect("unpinned");
        drop((volume, volumes, node_now));
        pass(Duration::from_mins(20)).await;
        let node_now = node(&world, None).await;
        let copy = node_now.open("copy").await;
        replace(&*copy, 3, &keys()[..3]).await;
        check(&*copy, At::Tail, 3).await;
        let demo = node_now.open("demo").await;
        check(&*demo, At::Tail, 8).await;
        assert_eq!(objects(&world).await.len(), 1);
        let volumes = node_now.engine.volumes();
        volumes.delete(&named("copy")).await.expect("deleted");
        pass(Duration::from_mins(3)).await;
        assert_eq!(objects(&world).await.len(), 0);
        filled(&node_now, "other").await;
        assert_eq!(objects(&world).await.len(), 1);
        volumes.delete(&named("other")).await.expect("deleted");
        pass(Duration::from_secs(1)).await;
        assert_eq!(objects(&world).await.len(), 0);
    });
}

/// A damaged value is an error of its key alone, and so is a missing object.
#[test]
fn a_damaged_object_is_an_error_of_its_values() {
    simulated::run(async {
        let world = World::new(7);
        let node_now = node(&world, None).await;
        let (volume, _) = filled(&node_now, "demo").await;
        let (path, keys) = (objects(&world).await.remove(0), keys());
        let object = world.objects().get(&path).await.expect("an object");
        let mut bytes = object.bytes().await.expect("its bytes").to_vec();
        bytes[105] ^= 1;
        let damaged = world.objects().put(&path, bytes.into()).await;
        damaged.expect("put");
        drop((volume, node_now));
        let node_now = node(&world, None).await;
        let volume = node_now.open("demo").await;
        let one = async |index: usize| {
            let found = volume.get_many(At::Tail, &keys[index..=index]).await;
            found.map(|found| found.value.found)
        };
        let is_corrupt = |found| matches!(found, Err(crate::Error::Corrupt(_)));
        assert_eq!(one(0).await, Ok(vec![Some(original(b'a').into())]));
        assert!(is_corrupt(one(1).await));
        assert_eq!(one(2).await, Ok(vec![Some(original(b'c').into())]));
        // A value that replaces it needs nothing of it.
        replace(&*volume, 2, &keys[1..2]).await;
        pass(Duration::from_secs(1)).await;
        assert_eq!(one(1).await, Ok(vec![Some("x".into())]));
        world.objects().delete(&path).await.expect("deleted");
        assert!(is_corrupt(one(2).await));
        assert_eq!(one(1).await, Ok(vec![Some("x".into())]));
    });
}

/// A check names objects that are not whole, and deletes those alone that hold no value.
#[test]
fn a_check_finds_objects_that_are_not_whole_and_those_without_values() {
    simulated::run(async {
        let world = World::new(7);
        let quiet = Config {
            collects: false,
            ..bulk(None)
        };
        let node_now = Node::on(&world, world.key_value(), quiet.clone()).await;
        filled(&node_now, "demo").await;
        let whole = objects(&world).await.remove(0);
        let left = ObjectPath::from("volumes/1/000000000000000000000000000000aa");
        let put = world.objects().put(&left, "left".into()).await;
        put.expect("put");
        drop(node_now);
        let node_now = Node::on(&world, world.key_value(), quiet).await;
        let check = async |others| {
            let checked = node_now.engine.check_objects(&named("demo"), others).await;
            let checked = checked.expect("checked");
            let problem = checked.findings.first().map(|finding| {
                assert_eq!(finding.object, whole.to_string());
                finding.problem
            });
            let counts = (checked.count, checked.unreferenced, checked.deleted);
            (counts, problem)
        };
        assert_eq!(check(Unreferenced::Count).await, ((2, 1, 0), None));
        assert_eq!(check(Unreferenced::Delete).await, ((2, 1, 1), None));
        assert_eq!(objects(&world).await, std::slice::from_ref(&whole));
        let object = world.objects().get(&whole).await.expect("an object");
        let mut bytes = object.bytes().await.expect("its bytes").to_vec();
        bytes[105] ^= 1;
        let damaged = world.objects().put(&whole, bytes.into()).await;
        damaged.expect("put");
        let found = check(Unreferenced::Delete).await;
        assert_eq!(found, ((1, 0, 0), Some("damaged")));
        world.objects().delete(&whole).await.expect("deleted");
        let found = check(Unreferenced::Delete).await;
        assert_eq!(found, ((1, 0, 0), Some("missing")));
        let none = named("none");
        let none = node_now.engine.check_objects(&none, Unreferenced::Count);
        assert_eq!(none.await, Err(crate::Error::NoSuchVolume));
    });
}

/// An object without a row, which a crash left, goes. A full store of objects stops nothing.
#[test]
fn objects_are_no_condition_of_progress() {
    simulated::run(async {
        let world = World::new(7);
        let node_now = node(&world, None).await;
        let (volume, _) = filled(&node_now, "demo").await;
        let left = ObjectPath::from("volumes/1/000000000000000000000000000000aa");
        let put = world.objects().put(&left, "left".into()).await;
        put.expect("put");
        drop((volume, node_now));
        let node_now = node(&world, None).await;
        let volume = node_now.open("demo").await;
        check(&*volume, At::Tail, 0).await;
        pass(Duration::from_mins(1)).await;
        assert!(!objects(&world).await.contains(&left));
        world.fill_disk_of_objects();
        filled(&node_now, "other").await;
        check(&*node_now.open("other").await, At::Tail, 0).await;
        check(&*volume, At::Tail, 0).await;
    });
}

/// V1 to V5, with values in objects.
#[test]
fn the_engine_conforms_with_values_in_objects() {
    simulated::run(async {
        let world = World::new(7);
        let node = node(&world, None).await;
        conforms(&node, 40).await;
        pass(Duration::from_secs(1)).await;
        assert!(!objects(&world).await.is_empty());
    });
}
