//! Plain writes: transactions of one write, under an id that no other caller knows.
//!
//! - A plain write comes after every write of its key that was acknowledged before it began, at any
//!   node (T5). This node may not have applied that write, and its clock may be behind the one that
//!   stamped it. Among several nodes, the key's versions are therefore read from the store, which
//!   has all acknowledged writes, and the write is stamped above them. A transaction that writes a
//!   key without reading it has no such promise (rule T-1), which would cost each of them that
//!   read.
//! - A plain write that is refused leaves nothing open, because no other caller could end it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Error, Result,
    attempts::transaction::Terms,
    broken::Broken,
    calls::{Calls, commit::Committing},
    model::{Call, Committed, Key, Timestamp},
    node::Node,
};

impl Calls {
    pub(crate) async fn put_now(
        self: &Arc<Self>,
        key: Key,
        value: Option<Bytes>,
    ) -> Result<Committed> {
        self.check_write(&key, value.as_ref())?;
        let node = self.serving.node()?;
        self.cluster.check_clock()?;
        let after = self.newest_acknowledged(&node, &key).await?;
        let terms = Terms {
            after,
            ..Terms::default()
        };
        let (id, attempt) = self.open_generated(&node, terms)?;
        let call = Call {
            id,
            attempt: Some(attempt),
        };
        let written = async {
            self.buffer(&self.here(&call).await?, key, value).await?;
            self.begin_to_commit(&call).await
        };
        match written.await {
            Ok(Committing::Here(transaction)) => self.wait_for_end(&transaction).await,
            Ok(Committing::Ended(committed)) => Ok(committed),
            Err(error) => {
                if let Err(Error::Unavailable(_)) = self.abort(&call).await {
                    tracing::debug!("a refused write is open until it expires");
                }
                Err(error)
            }
        }
    }

    /// The highest timestamp of any known write to `key`.
    async fn newest_acknowledged(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Timestamp> {
        if self.context.is_alone() || self.context.breaks(Broken::WritesBlindly) {
            return Ok(Timestamp::default());
        }
        let versions = self.loader.load_versions(node, key).await?;
        Ok(versions
            .records
            .iter()
            .map(|record| record.version.timed())
            .max()
            .unwrap_or_default())
    }
}
