//! Leftovers in the stores after all clients have gone.

use std::collections::BTreeSet;

use coordination::{
    config::DataPlacement,
    dependency::TrackedStore,
    path,
    records::Payload,
    storage::{
        expiring,
        session::{CLIENT_SHARDS, Rows},
        user_store::UserStore,
    },
};
use futures_util::TryStreamExt as _;
use ports::objects::ObjectPath;
use simulated::World;

use super::QUOTA_TOP;

/// Checks the stores after all clients have gone and time has passed. Every session must have ended
/// and its event queue must be gone. The objects must be exactly those that znodes name.
pub async fn nothing_is_left(world: &World) -> Vec<String> {
    let mut left = Vec::new();
    let system = TrackedStore::new(world.key_value());
    for shard in CLIENT_SHARDS {
        let mut pages = Rows::of(shard);
        while let Some(rows) = pages
            .next_page(&mut system.clone())
            .await
            .expect("the world is healed")
        {
            left.extend(
                rows.iter()
                    .map(|row| format!("{:?} is left, {:?}", row.session, row.state)),
            );
        }
    }
    if expiring::any(&mut system.clone())
        .await
        .expect("the world is healed")
    {
        left.push("the index of expiring znodes has an entry".to_owned());
    }
    left.extend(wrong_statistics(world).await);
    let (named, there) = (
        named(world, &mut left).await,
        objects(world, "znodes").await,
    );
    left.extend(
        named
            .difference(&there)
            .map(|name| format!("object {name} is gone, and is named")),
    );
    left.extend(
        there
            .difference(&named)
            .map(|name| format!("object {name} is left, and has no name")),
    );
    left.extend(
        objects(world, "temporary")
            .await
            .iter()
            .map(|name| format!("object {name} is left")),
    );
    left
}

/// Compares the statistics of a scenario's quota with its subtree.
async fn wrong_statistics(world: &World) -> Option<String> {
    let store = UserStore::new(world.key_value(), world.objects(), DataPlacement::KeyValue);
    let path = format!("/zookeeper/quota{QUOTA_TOP}/zookeeper_stats");
    let statistics = store.get(&path).await.expect("the world is healed")?;
    let (mut waiting, mut count, mut bytes) = (vec![QUOTA_TOP.to_owned()], 0, 0);
    while let Some(path) = waiting.pop() {
        if let Some(node) = store.get(&path).await.expect("the world is healed") {
            (count, bytes) = (count + 1, bytes + node.stat.data_length);
            let children = store.children(&path).await.expect("the world is healed");
            waiting.extend(children.iter().map(|child| path::join(&path, child)));
        }
    }
    let expected = format!("count={count},bytes={bytes}");
    let is_right = statistics.data == Payload::Inline(expected.clone().into());
    let found = statistics.data;
    (!is_right).then(|| format!("the statistics are {found:?} instead of {expected}"))
}

/// The objects that znodes name.
async fn named(world: &World, violations: &mut Vec<String>) -> BTreeSet<String> {
    let store = UserStore::new(world.key_value(), world.objects(), DataPlacement::KeyValue);
    let mut waiting = vec!["/".to_owned()];
    let mut named = BTreeSet::new();
    while let Some(path) = waiting.pop() {
        let Some(node) = store.get(&path).await.expect("the world is healed") else {
            violations.push(format!("{path} is listed and not there"));
            continue;
        };
        if let Payload::Object { name, .. } = node.data {
            named.insert(name);
        }
        let children = store.children(&path).await.expect("the world is healed");
        waiting.extend(children.iter().map(|child| path::join(&path, child)));
    }
    named
}

async fn objects(world: &World, prefix: &str) -> BTreeSet<String> {
    let listed = world
        .objects()
        .list(Some(&ObjectPath::from(prefix)))
        .try_collect::<Vec<_>>();
    listed
        .await
        .expect("the world is healed")
        .into_iter()
        .map(|object| object.location.to_string())
        .collect()
}
