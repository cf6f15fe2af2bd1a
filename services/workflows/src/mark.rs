//! Tells a far store that is the near one, whatever its address says: a store has other names, ports and proxies.
//!
//! The near store has a mark of its own, drawn once and durable before it is compared. Nothing is written far: whoever finds the near
//! mark there has found the near store. The two partitions of a range are named alike, so in one store each would find the other's rows.

use std::time::Duration;

use bytes::Bytes;
use ports::{Clock, Condition, Entropy, KeyValue, Update, key_value::Value};

use crate::layout;

/// The attribute that is drawn.
const DRAWN: &str = "m";
/// The pause after a store did not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether both are one store. It is asked until both answer.
pub(crate) async fn is_one_store(
    near: &dyn KeyValue,
    far: &dyn KeyValue,
    (clock, entropy): (&dyn Clock, &dyn Entropy),
) -> ports::Result<bool> {
    loop {
        match compare(near, far, entropy).await {
            Err(error) if error.is_retryable() => clock.sleep(PAUSE).await,
            compared => return compared,
        }
    }
}

async fn compare(
    near: &dyn KeyValue,
    far: &dyn KeyValue,
    entropy: &dyn Entropy,
) -> ports::Result<bool> {
    let key = layout::store_mark();
    let mut read = near.get(&key).await?;
    if read.value.is_none() {
        let drawn: Bytes = [entropy.next_u64(), entropy.next_u64()]
            .iter()
            .flat_map(|half| half.to_be_bytes())
            .collect();
        let put = Update::put(key.clone(), vec![(DRAWN.into(), Value::Bytes(drawn))]);
        near.update(put.when(Condition::Absent)).await?;
        read = near.get(&key).await?;
    }
    // One that a crash takes away would be drawn anew, and differ from what was seen far.
    near.externalize(read.point).await?;
    let there = far.get(&key).await?.value;
    Ok(there.is_some_and(|there| {
        read.value.is_some_and(|here| {
            here.bytes(DRAWN).is_some() && here.bytes(DRAWN) == there.bytes(DRAWN)
        })
    }))
}
