//! Whether a shared store is still the one that this process began on.
//!
//! A Redis that loses everything, what it had acknowledged included, answers on as if it were new. What the services of this
//! process know then has nothing below it any more. So a process reads at its start what the store is called, a name that
//! the first to come draws, and looks again whenever the members have changed: with everything else its own membership is
//! gone, which it notices at its next renewal. Where the store has another name or none the process ends, and the next start
//! makes what is missing.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use ports::{
    Condition, Entropy, Key, KeyValue, Update,
    key_value::{Name, Value},
};
use transactions::membership::Membership;

/// How long to wait before a store that does not answer is asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The row's attribute.
const NAME: &str = "name";

/// A store, by its name.
#[derive(Debug)]
pub(crate) struct SameStore {
    items: Arc<dyn KeyValue>,
    name: i64,
}

impl SameStore {
    /// The store that is there now.
    pub(crate) async fn begin(
        items: Arc<dyn KeyValue>,
        entropy: &dyn Entropy,
    ) -> anyhow::Result<Self> {
        // Repeated, since the answer to the first may be lost, and somebody else may be faster.
        loop {
            let row = items
                .get(&key())
                .await
                .context("read the name of the store")?;
            if let Some(name) = row.value.and_then(|item| item.integer(NAME)) {
                items
                    .externalize(row.point)
                    .await
                    .context("keep the name of the store")?;
                return Ok(Self { items, name });
            }
            let attributes = vec![(Name::from(NAME), Value::Integer(entropy.next_u64() as i64))];
            let update = Update::put(key(), attributes).when(Condition::Absent);
            items.update(update).await.context("name the store")?;
        }
    }

    /// Returns once it is another one.
    pub(crate) async fn is_lost(&self, membership: &dyn Membership) -> anyhow::Error {
        loop {
            let view = membership.members().view;
            match self.items.get(&key()).await {
                Ok(row)
                    if row.value.as_ref().and_then(|item| item.integer(NAME))
                        != Some(self.name) =>
                {
                    return anyhow!(
                        "the store has lost everything, what it had acknowledged included: start again to go on with \
                         what is there"
                    );
                }
                Ok(_) => {
                    membership.changed(view).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the store's name cannot be read at the moment");
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }
}

fn key() -> Key {
    Key::new("landfast/process", "store")
}
