//! Gathers values into packs, and puts packs to the object store.
//!
//! Every put is create-only and repeated under the same name until its outcome is known. An
//! existing object is accepted only if its content is equal.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use ports::objects::{
    self, ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
};

use crate::{
    Error, Result,
    attempts::transaction::Transaction,
    broken::Broken,
    context::SharedObjects,
    model::PackId,
    node::Node,
    packing::Packing,
    packs::{
        Gathering, OnTheirWay, PackEntry, Packed,
        directory::{self, Filed},
        rows,
    },
    storage::{
        records::{Place, Write},
        store::Store,
    },
};

impl Packing {
    /// Puts values into packs of this node, shared with all other values of the moment.
    pub(crate) fn pack(self: &Arc<Self>, node: &Arc<Node>, entries: Vec<PackEntry>) -> Packed {
        let bytes_max = self.context.config.pack_bytes_max;
        let mut packed = Packed::default();
        let state = &mut *node.packs.state();
        for entry in entries {
            let bytes = entry.value.len() as u64;
            let is_full = |gathering: &mut Gathering| gathering.bytes + bytes > bytes_max;
            if let Some(full) = state.gathering.take_if(is_full) {
                self.put_now(node, full);
            }
            let gathering = state.gathering.get_or_insert_with(|| {
                state.last += 1;
                let id = PackId {
                    node: node.id,
                    number: state.last,
                };
                state.table.comes(id);
                self.put_after_a_while(node, id);
                Gathering::new(id)
            });
            gathering.take(entry, &mut packed);
        }
        let is_full = |gathering: &mut Gathering| gathering.bytes >= bytes_max;
        if let Some(full) = state.gathering.take_if(is_full) {
            self.put_now(node, full);
        }
        packed
    }

    fn put_now(self: &Arc<Self>, node: &Arc<Node>, pack: Gathering) {
        let (packing, node) = (Arc::clone(self), Arc::clone(node));
        self.context
            .spawn(async move { packing.put_pack(&node, pack).await });
    }

    /// Puts a pack that began to gather now after a while, unless it fills sooner.
    fn put_after_a_while(self: &Arc<Self>, node: &Arc<Node>, id: PackId) {
        let (packing, node) = (Arc::clone(self), Arc::clone(node));
        self.context.spawn(async move {
            packing
                .context
                .clock
                .sleep(packing.context.config.pack_wait)
                .await;
            let pack = node
                .packs
                .state()
                .gathering
                .take_if(|gathering| gathering.id == id);
            if let Some(pack) = pack {
                packing.put_pack(&node, pack).await;
            }
        });
    }

    async fn put_pack(&self, node: &Node, pack: Gathering) {
        let put = self.try_put_pack(node, &pack).await;
        if let Err(error) = &put {
            tracing::debug!(%error, pack = pack.id.number, "a pack was not put");
            node.packs.state().table.remove(pack.id);
            node.leaves_traces();
        }
        // Sending fails only if the engine is being dropped.
        pack.told.send_replace(Some(put));
    }

    async fn try_put_pack(&self, node: &Node, pack: &Gathering) -> Result<()> {
        let filed = pack.entries.iter().map(|entry| Filed {
            key: entry.key.clone(),
            attempt: entry.attempt,
            write: entry.write,
            bytes: entry.value.len() as u32,
            crc: crc32fast::hash(&entry.value),
        });
        let end = directory::encode_end(&filed.collect::<Vec<_>>());
        let values = pack.entries.iter().map(|entry| entry.value.clone());
        let payload: PutPayload = values.chain([end]).collect();
        let path = pack.id.path(self.home()?);
        self.put_object(node, &path, payload).await?;
        if let Err(error) = rows::put(&node.store, pack.id, pack.bytes).await {
            if error == Error::NoRoom {
                // Nothing names it, and the retry uses another name: otherwise objects would
                // accumulate until there is space.
                let _ = self.objects()?.delete(&path).await;
            }
            return Err(error);
        }
        let hold = Arc::clone(&pack.hold);
        let table = &mut node.packs.state().table;
        table.insert(pack.id, pack.bytes, hold);
        self.context.counters.packed(pack.bytes);
        Ok(())
    }

    /// Puts an object under a name that only this put uses, repeating it as often as needed.
    /// Errors: `Unavailable` if another writer has used the name.
    async fn put_object(&self, node: &Node, path: &ObjectPath, payload: PutPayload) -> Result<()> {
        let objects = self.objects()?;
        let mut delays = Store::delays();
        loop {
            node.store.check_fence()?;
            let put = objects.put_opts(path, payload.clone(), PutMode::Create.into());
            let put = match put.await {
                Ok(_) => Ok(true),
                Err(ObjectError::AlreadyExists { .. }) => {
                    self.has_content(objects, path, &payload).await
                }
                Err(error) => Err(objects::failed(format!("put {path}"), error)),
            };
            match put.map_err(Error::from) {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    tracing::error!(%path, "an object that this store has not put has the name of its next pack: \
                        another process writes there for a copy of this store");
                    return Err(Error::unavailable(
                        "another process put an object of this name",
                    ));
                }
                Err(Error::NoRoom) => return Err(Error::NoRoom),
                Err(_) => {
                    // The interrupted put may leave bytes, or arrive after the pack is deleted.
                    node.leaves_traces();
                    node.store.pause(&mut delays).await;
                }
            }
        }
    }

    /// Whether an existing object equals the one to put.
    async fn has_content(
        &self,
        objects: &SharedObjects,
        path: &ObjectPath,
        payload: &PutPayload,
    ) -> ports::Result<bool> {
        if self.context.breaks(Broken::TakesAnyPackForItsOwn) {
            return Ok(true);
        }
        let there = async { objects.get(path).await?.bytes().await };
        let there = there
            .await
            .map_err(|error| objects::failed(format!("get {path}"), error))?;
        let expected = payload.iter().flat_map(|part| part.iter());
        Ok(there.len() == payload.content_length() && there.iter().eq(expected))
    }

    /// Puts those of these values into packs that belong there. The values that they replace of the
    /// same attempt are dead.
    pub(crate) fn pack_writes<'a>(
        self: &Arc<Self>,
        transaction: &Transaction,
        writes: impl Iterator<Item = (&'a Write, Option<&'a Bytes>)>,
    ) -> OnTheirWay {
        let Transaction { attempt, node, .. } = transaction;
        if self.objects.is_none() {
            return OnTheirWay::default();
        }
        let (packing, others): (Vec<_>, Vec<_>) = writes.partition(|(write, value)| {
            matches!(write.place, Place::Packed { .. }) && value.is_some()
        });
        let entries = packing.iter().filter_map(|(write, value)| {
            Some(PackEntry {
                key: write.key.clone(),
                attempt: *attempt,
                write: write.write,
                value: Bytes::clone((*value)?),
            })
        });
        let mut packed = self.pack(node, entries.collect());
        let mut located = BTreeMap::new();
        let mut state = transaction.state();
        let written = &mut state.packed;
        let mut replaced: Vec<(PackId, u64)> = Vec::new();
        for (write, _) in others {
            replaced.extend(written.places.remove(&write.key));
        }
        for ((write, _), place) in packing.iter().zip(&packed.located) {
            located.insert(write.write, *place);
            let place = (place.pack, write.value_bytes());
            replaced.extend(written.places.insert(write.key.clone(), place));
        }
        written.holds.extend(packed.holds.iter().cloned());
        drop(state);
        for (pack, bytes) in replaced {
            node.store.free(pack, bytes);
        }
        if self.context.breaks(Broken::RecordBeforePack) {
            packed.put.clear();
        }
        OnTheirWay { located, packed }
    }
}
