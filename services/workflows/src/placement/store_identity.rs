//! Detects a far store that is the near store under another name, port or proxy.
//!
//! Both partitions of a shard have the same name, so in one store they would collide. The near store
//! therefore has a random identity, which is durable before we compare it. We write nothing far: a
//! far store that has the near identity is the near store.

use bytes::Bytes;
use ports::{Condition, KeyValue, Update, key_value::Value};

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
    let mut delays = RETRY.delays();
    loop {
        match compare(near, far, env).await {
            Err(error) if error.is_retryable() => env.pause(&mut delays).await,
            compared => return compared,
        }
    }
}

async fn compare(near: &dyn KeyValue, far: &dyn KeyValue, env: &Env) -> ports::Result<bool> {
    let key = layout::store_identity();
    let mut read = near.get(&key).await?;
    if read.value.is_none() {
        let random: Bytes = [env.entropy.next_u64(), env.entropy.next_u64()]
            .iter()
            .flat_map(|half| half.to_be_bytes())
            .collect();
        let put = Update::put(key.clone(), vec![(IDENTITY.into(), Value::Bytes(random))]);
        near.update(put.when(Condition::Absent)).await?;
        read = near.get(&key).await?;
    }
    // If a crash lost the identity, the next start would create another one. The far store, still
    // with the old one, would then look like a different store.
    near.externalize(read.point).await?;
    let there = far.get(&key).await?.value;
    Ok(there.is_some_and(|there| {
        read.value.is_some_and(|here| {
            here.bytes(IDENTITY).is_some() && here.bytes(IDENTITY) == there.bytes(IDENTITY)
        })
    }))
}
