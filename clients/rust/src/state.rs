//! Plain state: one key at a time, outside any transaction.

use std::sync::Arc;

use bytes::Bytes;

use crate::{after::After, call::Call, client::Core, error::Result};

/// The keys that transactions write, one at a time.
///
/// A write whose answer is lost is sent again. It may then be applied twice, with somebody else's write of the key
/// in between; where that matters, use a transaction, which takes effect once.
#[derive(Debug)]
pub struct State {
    core: Core,
    after: Arc<After>,
}

impl State {
    pub(crate) fn new(core: Core, after: Arc<After>) -> Self {
        Self { core, after }
    }

    /// The value of `key`; none if there is none.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let answer = self.core.exchange(&Call::get_state(key.as_ref())).await?;
        Ok(answer.response.value())
    }

    /// Sets `key`; it is durable when this returns.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        self.change(&Call::put_state(key.as_ref(), value.into())?).await
    }

    /// Removes `key`, whether or not it exists.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.change(&Call::delete_state(key.as_ref())).await
    }

    async fn change(&self, call: &Call) -> Result<()> {
        let answer = self.core.exchange(call).await?;
        self.after.heard(answer.response.after);
        Ok(())
    }
}
