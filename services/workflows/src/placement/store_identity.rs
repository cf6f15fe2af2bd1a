//! Detects a far store that is the near store under another name, port or proxy.
//!
//! Both partitions of a shard have the same name, so in one store they would collide. The near store
//! therefore has a random identity, which is durable before we compare it. We write nothing far: a
//! far store that has the near identity is the near store.

use std::sync::Arc;

use bytes::Bytes;
use ports::{Condition, Item, KeyValue, Update, key_value::Value};
use primitives::retry_repeatable;

use crate::{
    env::{Env, RETRY},
    storage::layout,
};

/// The attribute with the random identity.
const IDENTITY: &str = "m";

/// Whether both are the same store. Retries until both respond.
pub(super) async fn is_same_store(
    near: &dyn KeyValue,
    far: &dyn KeyValue,
    env: &Env,
) -> ports::Result<bool> {
    let compare = || compare(near, far, env);
    retry_repeatable(RETRY, &*env.clock, &*env.entropy, compare).await
}

async fn compare(near: &dyn KeyValue, far: &dyn KeyValue, env: &Env) -> ports::Result<bool> {
    let key = layout::store_identity();
    let mut read = near.get(&key).await?;
    if read.value.is_none() {
        let halves = [env.entropy.next_u64(), env.entropy.next_u64()];
        let random: Bytes = halves.map(u64::to_be_bytes).concat().into();
        let put = Update::put(key.clone(), vec![(IDENTITY.into(), Value::Bytes(random))]);
        near.update(put.when(Condition::Absent)).await?;
        read = near.get(&key).await?;
    }
    // If a crash lost the identity, the next start would create another one. The far store, still
    // with the old one, would then look like a different store.
    near.externalize(read.point).await?;
    let there = far.get(&key).await?.value;
    let identity = |item: Arc<Item>| item.bytes(IDENTITY).cloned();
    let here = read.value.and_then(identity);
    Ok(here.is_some() && here == there.and_then(identity))
}
