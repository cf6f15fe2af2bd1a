//! P6: a full store refuses calls that would add to it, by name and before it accepts them; other
//! calls continue.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ports::faults::{Fault, FaultSchedule, FaultyKeyValue};
use transactions::{
    Config, Error,
    model::{Begin, Outcome},
};

use crate::house::{Node, bytes, finished, id, in_virtual_time, key};

/// A store that reports the free space it was given last.
#[derive(Debug, Default)]
struct Disk {
    is_full: AtomicBool,
}

impl Disk {
    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }
}

impl FaultSchedule for Disk {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }
}

/// P6, T15.
#[test]
fn a_full_store_takes_no_values_and_no_names_and_shows_what_it_has() {
    in_virtual_time(async |world| {
        let disk = Arc::new(Disk::default());
        let store = Arc::new(FaultyKeyValue::new(
            world.key_value(),
            disk.clone(),
            world.clock(),
        ));
        let node = Node::on(&world, store.clone(), Config::default()).await;
        let (begun, deleting, late) = (
            node.begin_named("order").await,
            node.begin().await,
            node.begin().await,
        );
        node.put(&begun, "a", "begun").await;
        node.put(&late, "b", "late").await;
        node.write(&[("c", "there"), ("d", "there")]).await;

        disk.fill(true);
        assert_eq!(
            node.engine.put(&begun, key("x"), bytes("more")).await,
            Err(Error::NoRoom)
        );
        let named = Begin {
            id: Some(id("another")),
            ..Begin::default()
        };
        assert_eq!(
            node.engine
                .begin(named)
                .await
                .expect_err("a name is written down"),
            Error::NoRoom
        );
        assert_eq!(
            node.engine.put_now(key("x"), Some(bytes("more"))).await,
            Err(Error::NoRoom)
        );
        node.commit(&begun).await;
        node.engine
            .delete(&deleting, key("c"))
            .await
            .expect("a deletion is taken");
        node.commit(&deleting).await;
        node.engine
            .put_now(key("d"), None)
            .await
            .expect("a deletion is taken");
        let reader = node.begin().await;
        for (name, value) in [("a", Some("begun")), ("c", None), ("d", None), ("x", None)] {
            assert_eq!(node.get(&reader, name).await.as_deref(), value, "{name}");
        }

        world.fill_disk();
        assert_eq!(
            node.engine.put_now(key("a"), None).await,
            Err(Error::NoRoom)
        );
        assert_eq!(
            node.engine.commit(&late).await,
            Err(Error::NoRoom),
            "the reserve is used up"
        );
        node.commit(&reader).await;
        assert_eq!(node.now("a").await.as_deref(), Some("begun"));
        assert_eq!(node.now("b").await, None);
        world.empty_disk();

        disk.fill(false);
        assert_eq!(
            node.engine.commit(&late).await,
            Err(finished(Outcome::Aborted)),
            "nothing of it counts"
        );
        node.write(&[("b", "after")]).await;
        assert_eq!(node.now("b").await.as_deref(), Some("after"));
    });
}

/// P6, T19: a kept result is data that stays. Without it the transaction commits.
#[test]
fn a_full_store_keeps_no_result() {
    in_virtual_time(async |world| {
        let disk = Arc::new(Disk::default());
        let (inner, clock) = (world.key_value(), world.clock());
        let store = Arc::new(FaultyKeyValue::new(inner, disk.clone(), clock));
        let node = Node::on(&world, store, Config::default()).await;
        let (named, generated) = (node.begin_named("order").await, node.begin().await);
        node.put(&named, "a", "begun").await;
        disk.fill(true);
        let kept = node.engine.keep_result(&named, bytes("result")).await;
        assert_eq!(kept, Err(Error::NoRoom));
        let nothing = node.engine.keep_result(&generated, bytes("result")).await;
        assert_eq!(nothing, Ok(()), "it is not stored");
        node.commit(&named).await;
        let kept = node.engine.kept_result(&id("order")).await;
        assert_eq!(kept.expect("it is read").value, None);
    });
}

/// P6: none of it takes more than a reserve has.
#[test]
fn a_node_starts_on_a_full_store_and_finishes_what_was_begun() {
    in_virtual_time(async |world| {
        let disk = Arc::new(Disk::default());
        let store = Arc::new(FaultyKeyValue::new(
            world.key_value(),
            disk.clone(),
            world.clock(),
        ));
        let node = Node::on(&world, store.clone(), Config::default()).await;
        node.write(&[("a", "there")]).await;
        drop(node);
        disk.fill(true);
        let node = Node::on(&world, store, Config::default()).await;
        assert_eq!(node.now("a").await.as_deref(), Some("there"));
        assert_eq!(
            node.engine.put_now(key("a"), Some(bytes("more"))).await,
            Err(Error::NoRoom)
        );
    });
}
