//! C-5: a slot that is applied in parts.

use simulated::{Options, World};

use super::*;
use crate::test_fixture::{Call, Interrupted, Side};

const STEP: Step = Step {
    previous: 0,
    slot: 1,
    epoch: 1,
    last: Zxid(7),
};

/// A region whose transactions hold the cursor and one change, and where its caller is interrupted.
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

/// Three parts.
fn changes() -> Vec<Change> {
    let node = Node::created(STEP.last, 1, 0, Payload::Null, encode_acl(&[]));
    ["/a", "/b", "/c"]
        .map(|path| (path.to_owned(), Some(node.clone())))
        .into()
}

fn is_part(call: &Call<'_>) -> bool {
    matches!(call, Call::Transact)
}

/// C-5: whoever finds something of it, or misses it, reads of it at the cursor.
#[test]
fn the_cursor_says_what_is_being_applied_from_the_first_part_to_the_last() {
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
        let mut basis = Basis::default();
        assert!(
            region
                .apply(STEP, &changes(), &[], &mut basis)
                .await
                .expect("calm")
        );
        assert!(store.is_through());
    });
}

/// C-4, P5: a part that is applied is applied by nobody else, and what became garbage is what the first one says.
#[test]
fn a_part_is_applied_once_whoever_goes_on_with_it() {
    simulated::run(async {
        let world = world();
        let ((slow, store), (successor, _)) = (region(&world), region(&world));
        store.once(Side::After, is_part, async { Ok(()) });
        store.once(Side::After, is_part, async move {
            let mut basis = Basis::default();
            let has_begun = successor
                .apply(STEP, &changes(), &[Bytes::from("in use")], &mut basis)
                .await?;
            assert!(!has_begun, "two parts were applied");
            Ok(())
        });
        let garbage = [Bytes::from("garbage")];
        let mut basis = Basis::default();
        assert!(
            slow.apply(STEP, &changes(), &garbage, &mut basis)
                .await
                .expect("another has finished it")
        );
        assert!(store.is_through());
        let (cursor, noted) = slow.cursor().await.expect("calm").value;
        assert_eq!((cursor.slot, noted), (STEP.slot, garbage.to_vec()));
    });
}
