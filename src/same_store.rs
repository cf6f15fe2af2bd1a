//! Detects that a shared store has lost its data.
//!
//! A Redis that loses everything, including acknowledged writes, goes on as if it were new. Then
//! the services of this process hold state that the store no longer has. So a process reads the
//! identity of the store at its start; the first process to come draws it. It checks again whenever
//! the membership changes: its own membership is lost too, which it notices at the next renewal. If
//! the identity differs or is gone, the process ends, and the next start creates the missing parts.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use ports::{
    Condition, Entropy, Key, KeyValue, Update,
    key_value::{Name, Value},
};
use transactions::membership::Membership;

/// The pause before the next request to a store that does not respond.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The row's attribute.
const NAME: &str = "name";

#[derive(Debug)]
pub(crate) struct SameStore {
    items: Arc<dyn KeyValue>,
    name: i64,
}

impl SameStore {
    pub(crate) async fn begin(
        items: Arc<dyn KeyValue>,
        entropy: &dyn Entropy,
    ) -> anyhow::Result<Self> {
        // Repeated, since the response to the first attempt may be lost, and another process may be
        // faster.
        loop {
            let row = items.get(&key()).await;
            let row = row.context("read the identity of the store")?;
            if let Some(name) = row.value.and_then(|item| item.integer(NAME)) {
                let durable = items.externalize(row.point).await;
                durable.context("write the identity of the store")?;
                return Ok(Self { items, name });
            }
            let attributes = vec![(Name::from(NAME), Value::Integer(entropy.next_u64() as i64))];
            let update = Update::put(key(), attributes).when(Condition::Absent);
            items.update(update).await.context("name the store")?;
        }
    }

    /// Returns once the store is another one.
    pub(crate) async fn is_lost(&self, membership: &dyn Membership) -> anyhow::Error {
        loop {
            let view = membership.members().view;
            let row = self.items.get(&key()).await;
            match row.map(|row| row.value.and_then(|item| item.integer(NAME))) {
                Ok(name) if name == Some(self.name) => {
                    membership.changed(view).await;
                }
                Ok(_) => {
                    return anyhow!(
                        "the store has lost everything, what it had acknowledged included: start again to go on with \
                         what is there"
                    );
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot read the identity of the store at the moment");
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }
}

fn key() -> Key {
    Key::new("landfast/process", "store")
}
