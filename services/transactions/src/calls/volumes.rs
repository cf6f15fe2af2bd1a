//! Volumes: their calls, each on the node that serves now. Of several nodes the sequencer serves
//! volumes, and all others refuse.
//!
//! A handle of a volume outlives restarts of the node. Its next call takes the volume's log over.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::{DurabilityPoint, ErrorKind, Read};

use crate::{
    Error, Result,
    broken::Broken,
    calls::Calls,
    context::Tasks,
    node::Node,
    serializable::{
        VolumeStore, Volumes, deletion,
        model::{
            At, BlockBytes, Changed, CheckedObjects, Granted, Groups, Key, KeyRange, Leased, Lock,
            Owner, Page, PageLimits, PinName, Proposal, Recall, SessionId, Slot, Snapshot, StageId,
            Unreferenced, Usage, Values, Verdict,
        },
        registry::{self, Listed, VolumeRow},
        rows,
        volume::{Volume, read_installed},
        volumes::{VolumeInfo, VolumeName, VolumeSettings},
    },
};

/// The volumes of an engine.
#[derive(Clone)]
pub(crate) struct EngineVolumes {
    pub(crate) calls: Arc<Calls>,
    /// Slots are installed by tasks of the engine.
    pub(crate) _tasks: Arc<Tasks>,
}

/// A volume of an engine.
struct Handle {
    volumes: EngineVolumes,
    name: VolumeName,
    row: VolumeRow,
}

impl fmt::Debug for EngineVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineVolumes").finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.name).finish()
    }
}

impl EngineVolumes {
    /// The node that serves. Errors: `Unavailable`.
    fn node(&self) -> Result<Arc<Node>> {
        let node = self.calls.serving.node()?;
        self.calls.may_serve_volumes(&node)?;
        Ok(node)
    }

    /// The volume that `find` finds, opened on `node`.
    async fn opened(
        &self,
        node: &Arc<Node>,
        find: impl Future<Output = Result<VolumeRow>>,
    ) -> Result<Arc<Volume>> {
        let context = &self.calls.context;
        let opened = node.volumes.open(context, &node.store, node.id, find);
        let volume = opened.await?;
        // If this node lost its lease meanwhile, it may have taken the log from a successor, which
        // would not see what this volume writes.
        self.calls.may_serve_volumes(node)?;
        Ok(volume)
    }

    /// Deletes the data of deleted volumes in the background.
    fn delete_data(&self, node: &Arc<Node>, deleted: Vec<VolumeRow>) {
        for row in deleted {
            if !node.volumes.begins_to_delete(row.keyspace) {
                continue;
            }
            let (of_task, objects) = (Arc::clone(node), self.calls.context.volume_objects.clone());
            node.spawn(&self.calls.context, async move {
                let deleted = deletion::delete_data(&of_task.store, objects.as_ref(), &row);
                if let Err(error) = deleted.await {
                    tracing::warn!(
                        %error,
                        keyspace = row.keyspace.0,
                        "the data of a deleted volume stay until volumes are listed again"
                    );
                }
                of_task.volumes.ends_to_delete(row.keyspace);
            });
        }
    }

    async fn delete_volume(&self, name: &VolumeName) -> Result<()> {
        let node = self.node()?;
        let _changing = node.volumes.changing.lock().await;
        let (found, item) = registry::found(&node.store, name).await?;
        let reads = |(_, row): &(VolumeName, VolumeRow)| {
            row.parents
                .iter()
                .any(|(parent, _)| *parent == found.keyspace)
        };
        let listed = registry::list(&node.store).await?;
        if listed.volumes.iter().any(reads) {
            return Err(Error::VolumeInUse);
        }
        let row = {
            // No log is taken over after its row is gone.
            let _taking_over = node.volumes.taking_over.lock().await;
            let row = registry::delete(&node.store, name, (found, item)).await?;
            if let Some(volume) = node.volumes.remove(row.keyspace) {
                volume.delete().await;
            }
            row
        };
        let parent = row.parents.first();
        if let Some(parent) = parent.and_then(|(parent, _)| node.volumes.get(*parent)) {
            parent.unpin(&rows::pin_of_clone(row.keyspace)).await?;
        }
        self.delete_data(&node, vec![row]);
        Ok(())
    }

    /// Creates a volume that reads through to `from`, which pins its slot.
    async fn clone_at(&self, from: &VolumeName, at: Option<Slot>, to: VolumeName) -> Result<()> {
        let node = self.node()?;
        self.calls.context.check_room()?;
        let _changing = node.volumes.changing.lock().await;
        let source = registry::find(&node.store, from).await?;
        match registry::find(&node.store, &to).await {
            Err(Error::NoSuchVolume) => {}
            found => return Err(found.err().unwrap_or(Error::VolumeExists)),
        }
        let settings = VolumeSettings {
            block_bytes: source.block_bytes,
            quota_bytes: source.quota_bytes,
        };
        let context = &self.calls.context;
        let find = async { Ok(source) };
        let volume = self.opened(&node, find).await?;
        let slot = match at {
            Some(slot) => slot,
            None => volume.snapshot()?.value.slot,
        };
        let row = registry::new_row(&node.store, settings, context.clock.now().0).await?;
        let row = VolumeRow {
            parents: volume.parents_of_clone(slot),
            ..row
        };
        volume.begin_clone(slot, row.keyspace).await?;
        // A former leader that is about to delete the original must find it changed.
        registry::keep(&node.store, from).await?;
        // A successor that has taken the log over before the pin was durable does not know it.
        self.calls.may_serve_volumes(&node)?;
        registry::create(&node.store, &to, &row).await
    }

    /// See [`Engine::check_objects`](crate::Engine::check_objects).
    pub(crate) async fn check_objects(
        &self,
        name: &VolumeName,
        others: Unreferenced,
    ) -> Result<CheckedObjects> {
        let node = self.node()?;
        let find = registry::find(&node.store, name);
        let volume = self.opened(&node, find).await?;
        volume.check_objects(others).await
    }

    async fn list_volumes(&self) -> Result<Vec<VolumeInfo>> {
        let node = self.node()?;
        let Listed {
            volumes,
            deleted,
            point,
        } = registry::list(&node.store).await?;
        self.delete_data(&node, deleted);
        let mut found = Vec::with_capacity(volumes.len());
        for (name, row) in volumes {
            let usage = if let Some(volume) = node.volumes.get(row.keyspace) {
                volume.usage()
            } else {
                let installed = read_installed(&node.store, row.keyspace).await?;
                Usage {
                    bytes: installed.bytes,
                    keys: installed.keys,
                    quota_bytes: row.quota_bytes,
                }
            };
            found.push(VolumeInfo {
                name,
                block_bytes: row.block_bytes,
                created_ms: row.created_ms,
                usage,
            });
        }
        node.store.externalize(point).await?;
        Ok(found)
    }
}

impl Volumes for EngineVolumes {
    fn create(&self, name: VolumeName, settings: VolumeSettings) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let node = self.node()?;
            self.calls.context.check_room()?;
            let now = self.calls.context.clock.now().0;
            let row = registry::new_row(&node.store, settings, now).await?;
            registry::create(&node.store, &name, &row).await
        })
    }

    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>> {
        Box::pin(async move {
            let node = self.node()?;
            let row = registry::find(&node.store, name).await?;
            let handle = Handle {
                volumes: self.clone(),
                name: name.clone(),
                row,
            };
            Ok(Arc::new(handle) as Arc<dyn VolumeStore>)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        Box::pin(self.list_volumes())
    }

    fn set_quota<'a>(
        &'a self,
        name: &'a VolumeName,
        quota_bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let node = self.node()?;
            let row = registry::set_quota(&node.store, name, quota_bytes).await?;
            if let Some(volume) = node.volumes.get(row.keyspace) {
                volume.set_quota(row.quota_bytes);
            }
            Ok(())
        })
    }

    fn clone_volume<'a>(
        &'a self,
        from: &'a VolumeName,
        at: Option<Slot>,
        to: VolumeName,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.clone_at(from, at, to))
    }

    fn delete<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.delete_volume(name))
    }
}

impl Handle {
    /// The volume on the node that serves now.
    async fn volume(&self) -> Result<Arc<Volume>> {
        let node = self.volumes.node()?;
        if let Some(volume) = node.volumes.get(self.row.keyspace) {
            return Ok(volume);
        }
        let find = async {
            let row = registry::find(&node.store, &self.name).await?;
            // Another volume may have the name now.
            let is_it = row.keyspace == self.row.keyspace;
            is_it.then_some(row).ok_or(Error::NoSuchVolume)
        };
        self.volumes.opened(&node, find).await
    }

    /// Waits until `point` is durable. A point of an earlier incarnation that the store has lost
    /// does not end the node.
    async fn wait_until_durable(&self, point: DurabilityPoint) -> Result<()> {
        let key_value = &self.volumes.calls.context.key_value;
        let breaks = self
            .volumes
            .calls
            .context
            .breaks(Broken::AnswersBeforeDurable);
        if key_value.is_durable(point) || breaks {
            return Ok(());
        }
        let node = self.volumes.node()?;
        if point.incarnation == node.store.incarnation() {
            return node.store.externalize(point).await;
        }
        key_value.externalize(point).await.map_err(|error| {
            if error.kind() == ErrorKind::Lost {
                return Error::unavailable("the store has lost this point");
            }
            error.into()
        })
    }
}

/// Errors: `Invalid` for a pin that keeps the snapshot that a clone reads.
fn check_pin(name: &PinName) -> Result<()> {
    if rows::is_of_clone(name) {
        return Err(Error::Invalid(
            "the names of pins that begin with \"clone/\" are taken",
        ));
    }
    Ok(())
}

impl VolumeStore for Handle {
    fn block_bytes(&self) -> BlockBytes {
        self.row.block_bytes
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        Box::pin(async move { self.volume().await?.snapshot() })
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        Box::pin(async move { self.volume().await?.get_many(at, keys).await })
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        Box::pin(async move { self.volume().await?.scan(at, range, limits).await })
    }

    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>> {
        Box::pin(async move { self.volume().await?.changed_since(slot, groups).await })
    }

    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>> {
        Box::pin(async move { self.volume().await?.stage(stage, part, writes).await })
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        Box::pin(async move { self.volume().await?.commit(proposal, None).await })
    }

    fn get_leased<'a>(
        &'a self,
        session: SessionId,
        keys: &'a [Key],
    ) -> BoxFuture<'a, Result<Read<Leased>>> {
        Box::pin(async move { self.volume().await?.get_leased(session, keys).await })
    }

    fn recalled(
        &self,
        session: SessionId,
        acknowledged: u64,
    ) -> BoxFuture<'_, Result<Read<Recall>>> {
        Box::pin(async move { self.volume().await?.recalled(session, acknowledged).await })
    }

    fn commit_leased(
        &self,
        session: SessionId,
        proposal: Proposal,
    ) -> BoxFuture<'_, Result<Read<Verdict>>> {
        Box::pin(async move { self.volume().await?.commit(proposal, Some(session)).await })
    }

    fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.wait_until_durable(point))
    }

    fn pin(&self, name: PinName, slot: Slot) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_pin(&name)?;
            self.volume().await?.pin(name, slot).await?;
            // A successor that has taken the log over before the pin was durable does not know it.
            self.volumes.node().map(drop)
        })
    }

    fn unpin<'a>(&'a self, name: &'a PinName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            check_pin(name)?;
            self.volume().await?.unpin(name).await
        })
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<(PinName, Slot)>>> {
        Box::pin(async move { self.volume().await?.pins() })
    }

    fn lock(&self, owner: Owner, lock: Lock) -> BoxFuture<'_, Result<Granted>> {
        Box::pin(async move { self.volume().await?.lock(owner, lock).await })
    }

    fn hold(&self, session: SessionId, key: Key) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.volume().await?.hold(session, key) })
    }

    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.volume().await?.release(session, key) })
    }

    fn is_held<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move { self.volume().await?.is_held(key) })
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.volume().await?.end_session(session) })
    }

    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>> {
        Box::pin(async move { self.volume().await?.reserve_numbers().await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { Ok(self.volume().await?.usage()) })
    }
}
