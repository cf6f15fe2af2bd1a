//! The volumes whose logs one start of the node writes.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync;

use crate::{
    Result,
    context::Context,
    model::{KeyspaceId, NodeId},
    serializable::{registry::VolumeRow, volume::Volume},
    storage::store::Store,
};

/// The open volumes.
#[derive(Debug, Default)]
pub(crate) struct OpenVolumes {
    open: Mutex<BTreeMap<KeyspaceId, Arc<Volume>>>,
    /// Held while a log is taken over, and while a volume's row is deleted.
    pub(crate) taking_over: sync::Mutex<()>,
    /// Held while a volume is cloned or deleted.
    pub(crate) changing: sync::Mutex<()>,
    /// Deleted volumes whose data are being deleted.
    deleting: Mutex<Vec<KeyspaceId>>,
}

impl OpenVolumes {
    /// The volume with this keyspace, if it is open.
    pub(crate) fn get(&self, keyspace: KeyspaceId) -> Option<Arc<Volume>> {
        self.open.lock().get(&keyspace).cloned()
    }

    /// The volume that `find` finds the row of; its log is taken over at its first use.
    pub(crate) async fn open(
        &self,
        context: &Arc<Context>,
        store: &Arc<Store>,
        by: NodeId,
        find: impl Future<Output = Result<VolumeRow>>,
    ) -> Result<Arc<Volume>> {
        let _taking_over = self.taking_over.lock().await;
        let row = find.await?;
        let keyspace = row.keyspace;
        if let Some(volume) = self.get(keyspace) {
            return Ok(volume);
        }
        let volume = Volume::take_over(context, store, by, row).await?;
        let volume = Arc::new(volume);
        volume.arm();
        volume.arm_collection();
        self.open.lock().insert(keyspace, Arc::clone(&volume));
        Ok(volume)
    }

    /// Forgets a volume that is deleted.
    pub(crate) fn remove(&self, keyspace: KeyspaceId) -> Option<Arc<Volume>> {
        self.open.lock().remove(&keyspace)
    }

    /// Whether the caller is the first to delete the data of this keyspace.
    pub(crate) fn begins_to_delete(&self, keyspace: KeyspaceId) -> bool {
        let mut deleting = self.deleting.lock();
        let is_first = !deleting.contains(&keyspace);
        if is_first {
            deleting.push(keyspace);
        }
        is_first
    }

    /// The data of this keyspace are deleted, or could not be.
    pub(crate) fn ends_to_delete(&self, keyspace: KeyspaceId) {
        self.deleting.lock().retain(|other| *other != keyspace);
    }
}
