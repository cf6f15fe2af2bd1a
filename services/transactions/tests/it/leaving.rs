//! T7, T9: a node that shuts down in order needs no sweep, and leaves nothing.

use std::time::Duration;

use simulated::World;
use transactions::{Config, Error, layout, model::Begin};

use crate::{
    gate::{Gate, Held},
    house::{Node, bytes, in_virtual_time, key, versions_at_rest},
};

/// Beyond every window, and the sweep if there is one.
const AFTERWARDS: Duration = Duration::from_mins(40);

/// The number of pages that the next start reads in its sweep.
async fn pages_swept(world: &World) -> usize {
    let scans = |world: &World| {
        world
            .trace()
            .entries()
            .filter(|entry| entry.operation == "scan")
            .count()
    };
    let before = scans(world);
    let node = Node::on(world, world.key_value(), Config::default()).await;
    world.clock().sleep(AFTERWARDS).await;
    let pages = scans(world) - before;
    assert_eq!(node.engine.figures().log_slots, 0);
    pages
}

/// T7: open attempts end, running commits are decided, and the next start reads only logs.
#[test]
fn a_node_that_left_in_order_is_not_searched_for() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        node.write(&[("k", "v")]).await;
        let (open, named) = (node.begin().await, node.begin_named("order").await);
        for call in [&open, &named] {
            node.engine
                .put(call, key("large"), vec![7; 1_000_000].into())
                .await
                .expect("taken");
        }
        assert!(node.service.leave().await);
        let late = node.engine.begin(Begin::default()).await;
        assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
        let late = node.engine.put(&open, key("k"), bytes("late")).await;
        assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
        drop(node);
        assert!(pages_swept(&world).await < 30, "logs and nodes, no buckets");
        let store = world.key_value();
        assert_eq!(
            (
                versions_at_rest(&*store, "k").await,
                versions_at_rest(&*store, "large").await
            ),
            (1, 0)
        );
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(node.engine.commit(&open).await, Err(Error::Expired));
    });
}

/// T9: a node that cannot finish in time, or crashes, is swept for.
#[test]
fn a_node_that_could_not_finish_is_searched_for() {
    in_virtual_time(async |world| {
        let gate = Gate::new(world.key_value());
        let node = Node::on(&world, gate.clone(), Config::default()).await;
        let call = node.begin().await;
        node.put(&call, "k", "v").await;
        gate.close(Held::Updates, layout::LOGS);
        let (engine, committed) = (node.engine.clone(), call.clone());
        let committing = tokio::spawn(async move { engine.commit(&committed).await });
        gate.holds().await;
        assert!(!node.service.leave().await, "a commit is under way");
        committing.abort();
        drop(node);
        assert_eq!(
            versions_at_rest(&*world.key_value(), "k").await,
            1,
            "no log names it"
        );
        assert!(pages_swept(&world).await > 500);
        assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 0);
    });
}

/// T7, T9: a node may crash between any two calls of its shutdown.
#[test]
fn a_death_while_leaving_leaves_nothing() {
    let (mut calls, mut ended) = (0, false);
    while !ended {
        in_virtual_time(async |world| {
            let gate = Gate::new(world.key_value());
            let node = Node::on(&world, gate.clone(), Config::default()).await;
            let call = node.begin_named("order").await;
            node.engine
                .put(&call, key("k"), vec![7; 500_000].into())
                .await
                .expect("taken");
            gate.die_after(calls);
            ended = tokio::select! {
                biased;
                left = node.service.leave() => left,
                () = gate.holds() => false,
            };
            drop(node);
            let pages = pages_swept(&world).await;
            assert!(pages < 50 || !ended, "{calls}: {pages} pages");
            let store = world.key_value();
            assert_eq!(versions_at_rest(&*store, "k").await, 0, "{calls}");
            let attempt = call.attempt.expect("answered");
            let chunks = ports::key_value::Scan::partition(layout::chunks(attempt), 10);
            assert!(
                store
                    .scan(&chunks)
                    .await
                    .expect("calm")
                    .value
                    .items
                    .is_empty(),
                "{calls}"
            );
        });
        calls += 1;
    }
    assert!(calls > 3, "row, chunks, version, the word: {calls}");
}
