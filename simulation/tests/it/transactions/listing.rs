//! T18 with several nodes: a page shows the acknowledged commits of all nodes, whether or not its
//! node knows them.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use simulated::World;
use simulation::transactions::{cluster::Connection, workload::key};
use transactions::{broken::Broken, list::Listing};

use super::clocks::cluster;

async fn page(node: &Connection) -> Vec<Option<Bytes>> {
    let listing = Listing {
        prefix: Bytes::new(),
        after: None,
        keys_max: 1,
    };
    let page = node
        .shown(node.engine.list_now(&listing))
        .await
        .expect("a calm world");
    page.keys.into_iter().map(|listed| listed.value).collect()
}

/// A node's listing of a key that it knows. Elsewhere the key was overwritten more often than a
/// page looks back, and then deleted.
async fn overwritten_elsewhere(broken: Option<Broken>) -> (Vec<Option<Bytes>>, Vec<Option<Bytes>>) {
    let world = World::new(1);
    let (_cluster, nodes) = cluster(&world, &[0, 0], broken).await;
    let put = async |value: Option<&'static [u8]>| {
        let written = nodes[1]
            .engine
            .put_now(key(0), value.map(Bytes::from_static));
        nodes[1].call(written).await.expect("a calm world");
    };
    put(Some(b"old")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let known = nodes[0]
        .shown(nodes[0].engine.get_now(&key(0)))
        .await
        .expect("a calm world");
    assert_eq!(known, Some(Bytes::from_static(b"old")));
    for _ in 0..10 {
        put(Some(b"newer")).await;
    }
    put(Some(b"new")).await;
    let overwritten = page(&nodes[0]).await;
    put(None).await;
    (overwritten, page(&nodes[0]).await)
}

/// T18.
#[test]
fn a_page_shows_a_write_acknowledged_at_another_node_just_before() {
    let shown = simulated::run(overwritten_elsewhere(None));
    assert_eq!(shown, (vec![Some(Bytes::from_static(b"new"))], vec![]));
}

/// T18, broken.
#[test]
fn listing_from_memory_is_caught() {
    let (overwritten, deleted) =
        simulated::run(overwritten_elsewhere(Some(Broken::ListsFromMemory)));
    assert_ne!(overwritten, vec![Some(Bytes::from_static(b"new"))]);
    assert_ne!(deleted, vec![]);
}
