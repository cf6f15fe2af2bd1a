//! C-5: a slot that is applied in parts.

use simulated::{Options, World};

use super::*;
use crate::tests::{Call, Interrupted, Side};

const STEP: Step = Step {
    previous: 0,
    slot: 1,
    epoch: 1,
    last: Zxid(7),
};

/// A region whose transactions hold the cursor and one change, and whose caller can be interrupted.
fn region(world: &World) -> (UserStore, Arc<Interrupted>) {
    let store = Interrupted::new(world.key_value());
    (
        UserStore::new(store.clone(), world.objects(), DataPlacement::KeyValue),
        store,
    )
}

fn world() -> World {
    let mut options = Options::default();
    options.key_value.transact_items_max = 2;
    World::with_options(1, options)
}

/// Changes that make three parts.
fn changes() -> Vec<NodeChange<'static>> {
    let node = Node::created(STEP.last, 1, 0, Payload::Null, Bytes::new());
    ["/a", "/b", "/c"]
        .map(|path| (path.into(), Some(node.clone())))
        .into()
}

fn growth(znodes: i64) -> Growth {
    Growth {
        znodes,
        ..Growth::default()
    }
}

fn is_part(call: &Call<'_>) -> bool {
    matches!(call, Call::Transact)
}

/// C-5: a reader that meets part of the slot, or misses part of it, finds the slot named at the
/// cursor.
#[test]
fn the_cursor_names_the_slot_that_is_applied_in_parts() {
    simulated::run(async {
        let world = world();
        let (region, store) = region(&world);
        for applied in [Zxid(0), Zxid(0), STEP.last] {
            let reader =
                UserStore::new(world.key_value(), world.objects(), DataPlacement::KeyValue);
            store.once(Side::After, is_part, async move {
                let (cursor, _) = reader.cursor().await?.value;
                assert_eq!((cursor.zxid, cursor.applying), (applied, STEP.last));
                Ok(())
            });
        }
        let mut items = TrackedStore::new(store.clone());
        assert!(
            region
                .apply(&mut items, STEP, &changes(), &[], Growth::default())
                .await
                .expect("no fault is injected")
        );
        assert!(store.is_through());
    });
}

/// C-4, P5: an applied part is not applied again, and the first part's garbage list and growth are
/// the valid ones.
#[test]
fn a_part_is_applied_once_even_by_several_instances() {
    simulated::run(async {
        let world = world();
        let ((slow, store), (successor, _)) = (region(&world), region(&world));
        store.once(Side::After, is_part, async { Ok(()) });
        store.once(Side::After, is_part, async move {
            let mut items = TrackedStore::new(successor.items.clone());
            let has_begun = successor
                .apply(
                    &mut items,
                    STEP,
                    &changes(),
                    &[Bytes::from("in use")],
                    growth(9),
                )
                .await?;
            assert!(!has_begun, "two parts were applied");
            Ok(())
        });
        let garbage = [Bytes::from("garbage")];
        let mut items = TrackedStore::new(store.clone());
        assert!(
            slow.apply(&mut items, STEP, &changes(), &garbage, growth(3))
                .await
                .expect("another instance finished it")
        );
        assert!(store.is_through());
        let (cursor, noted) = slow.cursor().await.expect("no fault is injected").value;
        assert_eq!((cursor.slot, noted), (STEP.slot, garbage.to_vec()));
        let sizes = slow.sizes().await.expect("no fault is injected");
        assert_eq!(
            sizes.znodes,
            Sizes::BUILT_IN.znodes + 3,
            "the slot counts once"
        );
    });
}

/// Notes, section 4: all descendants count, over any number of pages and levels.
#[test]
fn descendants_are_counted_page_by_page() {
    const CHILDREN: usize = 2 * reader::COUNTED_PAGE_ITEMS + 50;
    simulated::run(async {
        let world = World::new(1);
        let store = (world.key_value(), world.objects());
        let region = UserStore::new(store.0, store.1, DataPlacement::KeyValue);
        let put = async |path: String, children: usize| {
            let mut node = Node::created(Zxid(1), 1, 0, Payload::Null, Bytes::new());
            node.stat.num_children = children as i32;
            let put = region.put_if_absent(&path, &node).await;
            put.expect("no fault is injected");
        };
        put("/p".into(), CHILDREN).await;
        put("/pp".into(), 0).await;
        for child in 0..CHILDREN {
            let below = if child % 100 == 0 { 3 } else { 0 };
            put(format!("/p/{child}"), below).await;
            for leaf in 0..below {
                put(format!("/p/{child}/{leaf}"), 0).await;
            }
        }
        let below = CHILDREN.div_ceil(100) * 3;
        let expected = [
            ("/", 2 + CHILDREN + below),
            ("/p", CHILDREN + below),
            ("/p/0", 3),
            ("/p/1", 0),
            ("/pp", 0),
            ("/missing", 0),
        ];
        for (path, count) in expected {
            let counted = region.reader().count_descendants(path).await;
            assert_eq!(
                counted.expect("no fault is injected"),
                count as u64,
                "{path}"
            );
        }
    });
}

/// Split at its last slash, `//a` would be `/a`.
#[test]
fn a_path_that_begins_with_two_slashes_is_of_no_znode() {
    assert!(key("/a").is_some() && key("//a").is_none() && key("//").is_none());
}
