//! T18: keys are listed in order, as they are, at a cost that does not grow with the store.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::metering::{Meter, MeteredKeyValue, Operation};
use simulated::World;
use transactions::{
    Config, Engine,
    broken::Broken,
    layout::{self, Buckets},
    list::{Listed, Listing, Page, VALUE_BYTES_MAX, VALUES_BYTES_MAX},
    model::{Key, KeyspaceId},
};

use crate::{
    gate::{Gate, Held},
    house::{Node, bytes, in_virtual_time, key, on_every_provider, versions_at_rest},
};

/// Longer than collection takes.
const MOMENT: Duration = Duration::from_secs(1);
/// Longer than any window except that of client ids.
const WINDOWS: Duration = Duration::from_mins(5);

fn all() -> Listing {
    Listing {
        prefix: Bytes::new(),
        after: None,
        keys_max: 100,
    }
}

async fn page(engine: &Engine, listing: &Listing) -> Page {
    let shown = engine.list_now(listing).await.expect("a page is read");
    engine
        .externalize(shown.point)
        .await
        .expect("the store keeps what it showed");
    shown.value
}

/// All pages, each of at most `keys_max` examined keys.
async fn pages(engine: &Engine, prefix: &[u8], keys_max: usize) -> Vec<Listed> {
    let mut listing = Listing {
        prefix: Bytes::copy_from_slice(prefix),
        after: None,
        keys_max,
    };
    let mut listed = Vec::new();
    loop {
        let page = page(engine, &listing).await;
        assert!(page.keys.len() <= keys_max);
        listed.extend(page.keys);
        match page.next {
            Some(next) => listing.after = Some(next),
            None => return listed,
        }
    }
}

fn texts(listed: &[Listed]) -> Vec<(String, String)> {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("text");
    listed
        .iter()
        .map(|it| (text(it.key.name()), text(it.value.as_ref().expect("short"))))
        .collect()
}

/// Every long key has a head of its own: then their order is that of their bytes.
fn any_key(random: &mut fastrand::Rng, number: u32) -> Key {
    let alphabet = [0, 1, b'a', b'b', 0xff];
    let mut name: Vec<u8> = (0..random.usize(0..4))
        .map(|_| alphabet[random.usize(..5)])
        .collect();
    if random.u8(..20) == 0 {
        name.extend(number.to_be_bytes());
        name.resize(random.usize(1_000..=1_024), b'k');
    }
    Key::new(name).expect("short enough")
}

/// T18: under any writes, deletions and overwrites, pages of any length and prefix list all keys in
/// order.
#[test]
fn pages_are_what_is_there_in_order() {
    on_every_provider(async |node: Node| {
        let mut random = fastrand::Rng::with_seed(11);
        let mut expected = BTreeMap::new();
        for number in 0..400_u32 {
            let (key, value) = (
                any_key(&mut random, number),
                Bytes::from(number.to_string()),
            );
            let value = (random.u8(..4) > 0).then_some(value);
            node.engine
                .put_now(key.clone(), value.clone())
                .await
                .expect("written");
            expected.insert(key.name().clone(), value);
        }
        expected.retain(|_, value| value.is_some());
        for keys_max in [1, 7, 1_000] {
            for prefix in [&b""[..], b"a", b"\0", b"\xff", b"ab", b"none of them"] {
                let listed = pages(&node.engine, prefix, keys_max).await;
                let found: Vec<_> = listed.iter().map(|it| (it.key.name(), &it.value)).collect();
                let there: Vec<_> = expected
                    .iter()
                    .filter(|(name, _)| name.starts_with(prefix))
                    .collect();
                assert_eq!(found, there, "{keys_max} under {}", prefix.escape_ascii());
            }
        }
    });
}

/// T1, T18: a page begins after a key whether or not that exists, and shows no uncommitted value.
#[test]
fn a_page_goes_on_behind_any_key_and_shows_what_has_committed() {
    on_every_provider(async |node: Node| {
        node.write(&[("a", "1"), ("b", "2"), ("d", "4")]).await;
        let open = node.begin().await;
        node.put(&open, "c", "not yet").await;
        // Spilled before its commit.
        node.engine
            .put(&open, key("e"), Bytes::from(vec![0; 100_000]))
            .await
            .expect("taken");
        let first = page(
            &node.engine,
            &Listing {
                keys_max: 2,
                ..all()
            },
        )
        .await;
        assert_eq!(
            texts(&first.keys),
            [("a".into(), "1".into()), ("b".into(), "2".into())]
        );
        assert_eq!(first.next, Some(key("b")));
        for after in ["b", "bb", "c"] {
            let rest = page(
                &node.engine,
                &Listing {
                    after: Some(key(after)),
                    ..all()
                },
            )
            .await;
            assert_eq!(
                (texts(&rest.keys), rest.next),
                (vec![("d".into(), "4".into())], None)
            );
        }
        let none = page(
            &node.engine,
            &Listing {
                prefix: bytes("a"),
                after: Some(key("b")),
                ..all()
            },
        )
        .await;
        assert_eq!(none, Page::default(), "behind all of that prefix");
        node.engine.abort(&open).await.expect("aborted");
    });
}

/// T18: deleted keys are examined for a page and omitted, so it may be empty while more follow.
#[test]
fn deleted_keys_are_passed_over_within_the_bounds_of_a_page() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        for name in ["a", "b", "c", "d"] {
            node.write(&[(name, "there")]).await;
        }
        for name in ["a", "b", "c"] {
            node.engine.put_now(key(name), None).await.expect("deleted");
        }
        let first = page(
            &node.engine,
            &Listing {
                keys_max: 3,
                ..all()
            },
        )
        .await;
        assert_eq!(
            first,
            Page {
                keys: Vec::new(),
                next: Some(key("c"))
            }
        );
        world.clock().sleep(WINDOWS).await;
        let later = page(
            &node.engine,
            &Listing {
                keys_max: 3,
                ..all()
            },
        )
        .await;
        assert_eq!(
            texts(&later.keys),
            [("d".into(), "there".into())],
            "deletions are forgotten by then"
        );
    });
}

/// T18: a key with more versions than a page reads is listed with its newest value.
#[test]
fn a_key_with_many_versions_is_shown_once() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "first")]).await;
        let reader = node.begin().await;
        assert_eq!(node.get(&reader, "k").await.as_deref(), Some("first"));
        for number in 0..50 {
            node.write(&[("k", &number.to_string()), (&format!("l{number}"), "once")])
                .await;
        }
        world.clock().sleep(MOMENT).await;
        assert_eq!(
            versions_at_rest(&*world.key_value(), "k").await,
            51,
            "the reader keeps them"
        );
        let listed = pages(&node.engine, b"", 10).await;
        assert_eq!((listed.len(), &texts(&listed)[0].1[..]), (51, "49"));
        node.commit(&reader).await;
    });
}

/// Overwrites a key, and waits until collection is done, after a page has read its version and
/// before the page reads its row: the page still waits for another bucket.
async fn listed_while_overwritten(world: &World, config: Config) -> Vec<(String, String)> {
    let before = Node::on(world, world.key_value(), config.clone()).await;
    before.write(&[("k", "old")]).await;
    // Its slot is trimmed, so that its row is dropped; without its row no node knows of it.
    world.clock().sleep(WINDOWS).await;
    drop(before);
    let gate = Gate::new(world.key_value());
    let node = Node::on(world, gate.clone(), config).await;
    let last = layout::version_bucket(KeyspaceId::default(), u8::MAX);
    assert_ne!(Buckets::default().versions(&key("k"), 1).partition, last);
    gate.close(Held::Scans, &last);
    let engine = node.engine.clone();
    let listing = tokio::spawn(async move { page(&engine, &all()).await });
    gate.holds().await;
    node.write(&[("k", "new")]).await;
    world.clock().sleep(MOMENT).await;
    gate.open();
    texts(&listing.await.expect("no panic").keys)
}

/// T18: a key that exists all the time is listed, even if its versions are collected meanwhile.
#[test]
fn what_a_page_has_found_is_kept_until_it_is_shown() {
    in_virtual_time(async |world| {
        let shown = listed_while_overwritten(&world, Config::default()).await;
        assert_eq!(shown, [("k".to_owned(), "old".to_owned())]);
    });
    in_virtual_time(async |world| {
        let config = Config {
            mutant: Broken::ListsUnpinned.into(),
            ..Config::default()
        };
        assert_eq!(
            listed_while_overwritten(&world, config).await,
            [],
            "the test would notice"
        );
    });
}

/// T18: large values are omitted, and a page ends before it is large.
#[test]
fn pages_are_bounded_in_bytes() {
    on_every_provider(async |node: Node| {
        let long = VALUE_BYTES_MAX as usize + 1;
        node.engine
            .put_now(key("a long one"), Some(vec![1; long].into()))
            .await
            .expect("written");
        for number in 0..20 {
            let value = vec![number; VALUE_BYTES_MAX as usize];
            node.engine
                .put_now(key(&format!("k{number:02}")), Some(value.into()))
                .await
                .expect("written");
        }
        let first = page(&node.engine, &all()).await;
        let (long_one, rest) = first.keys.split_first().expect("it is not empty");
        assert_eq!((long_one.bytes, &long_one.value), (long as u64, &None));
        let sum: usize = rest
            .iter()
            .map(|it| it.value.as_ref().expect("short enough").len())
            .sum();
        assert_eq!((sum, rest.len()), (VALUES_BYTES_MAX, 16));
        assert_eq!(first.next.as_ref(), rest.last().map(|it| &it.key));
        assert_eq!(pages(&node.engine, b"", 100).await.len(), 21);
    });
}

/// T18: the cost of a page depends only on its length, not on the store. Listing costs commits
/// nothing: a commit of a new key makes as many calls as one of an existing key.
#[test]
fn a_page_costs_as_much_in_a_large_store_as_in_a_small_one() {
    in_virtual_time(async |world| {
        let meter = Arc::new(Meter::default());
        let store = MeteredKeyValue::new(world.key_value(), Arc::clone(&meter));
        // Nothing is known without the store.
        let config = Config {
            recent_bytes_max: 0,
            index_bytes_max: 0,
            ..Config::default()
        };
        let node = Node::on(&world, Arc::new(store), config).await;
        let calls = |operation| meter.usage().of(operation).calls;
        let reads = || calls(Operation::KeyValueGet) + calls(Operation::KeyValueScan);
        let mut costs = Vec::new();
        for number in 0..4_000 {
            node.write(&[(&format!("k{number:04}"), "v")]).await;
            if [199, 3_999].contains(&number) {
                world.clock().sleep(MOMENT).await;
                let before = reads();
                assert_eq!(
                    page(
                        &node.engine,
                        &Listing {
                            keys_max: 50,
                            ..all()
                        }
                    )
                    .await
                    .keys
                    .len(),
                    50
                );
                costs.push(reads() - before);
            }
        }
        // A scan of each bucket, a second scan of a few, and a row for each key.
        assert!(
            costs.iter().all(|cost| (306..330).contains(cost)),
            "{costs:?}"
        );
        let mut commits = Vec::new();
        for name in ["k0001", "a new one"] {
            let before = (reads(), calls(Operation::KeyValueUpdate));
            node.engine
                .put_now(key(name), Some(bytes("v")))
                .await
                .expect("written");
            commits.push((
                reads() - before.0,
                calls(Operation::KeyValueUpdate) - before.1,
            ));
        }
        assert_eq!(commits[0], commits[1]);
    });
}
