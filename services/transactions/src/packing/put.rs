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
    model::PackId,
    node::Node,
    packing::{Packing, SharedObjects},
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
        let mut packed = Packed {
            located: Vec::new(),
            holds: Vec::new(),
            put: Vec::new(),
        };
        let (mut full, mut first) = (Vec::new(), None);
        {
            let state = &mut *node.packs.state();
            for entry in entries {
                let bytes = entry.value.len() as u64;
                let is_full = |gathering: &mut Gathering| {
                    gathering.bytes + bytes > self.context.config.pack_bytes_max
                };
                full.extend(state.gathering.take_if(is_full));
                let gathering = state.gathering.get_or_insert_with(|| {
                    state.last += 1;
                    let id = PackId {
                        node: node.id,
                        number: state.last,
                    };
                    first = Some(id);
                    Gathering::new(id)
                });
                packed.located.push(gathering.take(entry));
                packed.join(gathering);
            }
            let is_full =
                |gathering: &mut Gathering| gathering.bytes >= self.context.config.pack_bytes_max;
            full.extend(state.gathering.take_if(is_full));
            first = first.filter(|_| state.gathering.is_some());
        }
        for pack in full {
            let (packing, node) = (Arc::clone(self), Arc::clone(node));
            self.context
                .spawn(async move { packing.put_pack(&node, pack).await });
        }
        if let Some(id) = first {
            self.put_after_a_while(node, id);
        }
        packed
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
        let parts = pack.entries.iter().map(|entry| entry.value.clone());
        let payload: PutPayload = parts
            .chain([directory::encode_end(&filed.collect::<Vec<_>>())])
            .collect();
        let path = pack.id.path(self.home()?);
        self.put_object(&node.store, &path, payload).await?;
        if let Err(error) = rows::put(&node.store, pack.id, pack.bytes).await {
            if error == Error::NoRoom {
                // Nothing names it, and the retry uses another name: otherwise objects would
                // accumulate until there is space.
                let _ = self.objects()?.delete(&path).await;
            }
            return Err(error);
        }
        node.packs
            .state()
            .table
            .insert(pack.id, pack.bytes, Arc::clone(&pack.hold));
        self.context.counters.packed(pack.bytes);
        Ok(())
    }

    /// Puts an object under a name that only this put uses, repeating it as often as needed.
    /// Errors: `Unavailable` if another writer has used the name.
    async fn put_object(
        &self,
        store: &Store,
        path: &ObjectPath,
        payload: PutPayload,
    ) -> Result<()> {
        let mut delays = Store::delays();
        loop {
            store.check_fence()?;
            let put = self
                .objects()?
                .put_opts(path, payload.clone(), PutMode::Create.into())
                .await;
            let error = match put {
                Ok(_) => return Ok(()),
                Err(ObjectError::AlreadyExists { .. }) => {
                    match self.has_content(path, &payload).await {
                        Ok(true) => return Ok(()),
                        Ok(false) => {
                            tracing::error!(%path, "an object that this store has not put has the name of its next pack: \
                            another process writes there for a copy of this store");
                            return Err(Error::unavailable(
                                "another process put an object of this name",
                            ));
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => objects::failed(format!("put {path}"), error),
            };
            if Error::from(error) == Error::NoRoom {
                return Err(Error::NoRoom);
            }
            store.pause(&mut delays).await;
        }
    }

    /// Whether an existing object equals the one to put.
    async fn has_content(&self, path: &ObjectPath, payload: &PutPayload) -> ports::Result<bool> {
        if self.context.breaks(Broken::TakesAnyPackForItsOwn) {
            return Ok(true);
        }
        let failed = |error| objects::failed(format!("get {path}"), error);
        let objects = self
            .objects()
            .map_err(|_| ports::Error::unavailable("find the objects"))?;
        let there = objects
            .get(path)
            .await
            .map_err(failed)?
            .bytes()
            .await
            .map_err(failed)?;
        let expected = payload.iter().flat_map(|part| part.iter());
        Ok(there.len() == payload.content_length() && there.iter().eq(expected))
    }

    /// Errors: the service was given no object store, but values lie in one.
    pub(crate) fn objects(&self) -> Result<&SharedObjects> {
        let missing =
            || Error::Corrupt("the value lies in an object store that was not given".into());
        self.objects.as_ref().ok_or_else(missing)
    }

    /// The path prefix of this store's packs.
    pub(crate) fn home(&self) -> Result<&str> {
        self.home
            .get()
            .map(String::as_str)
            .ok_or_else(|| Error::unavailable("the node starts"))
    }
}

impl Packing {
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
        let (mut entries, mut replacing) = (Vec::new(), Vec::new());
        for (write, value) in writes {
            match (write.place, value) {
                (Place::Packed { .. }, Some(value)) => entries.push(PackEntry {
                    key: write.key.clone(),
                    attempt: *attempt,
                    write: write.write,
                    value: value.clone(),
                }),
                _ => replacing.push(&write.key),
            }
        }
        let numbers: Vec<_> = entries
            .iter()
            .map(|entry| (entry.key.clone(), entry.write))
            .collect();
        let lengths: Vec<_> = entries
            .iter()
            .map(|entry| entry.value.len() as u64)
            .collect();
        let packed = (!entries.is_empty()).then(|| self.pack(node, entries));
        let mut state = transaction.state();
        let written = &mut state.packed;
        let mut located = BTreeMap::new();
        let mut replaced: Vec<_> = replacing
            .into_iter()
            .filter_map(|key| written.places.remove(key))
            .collect();
        if let Some(packed) = &packed {
            written.holds.extend(packed.holds.iter().cloned());
            for (((key, write), bytes), place) in
                numbers.into_iter().zip(lengths).zip(&packed.located)
            {
                located.insert(write, *place);
                replaced.extend(written.places.insert(key, (place.pack, bytes)));
            }
        }
        drop(state);
        for (pack, bytes) in replaced {
            node.store.free(pack, bytes);
        }
        OnTheirWay {
            located,
            packed,
            is_waited_for: !self.context.breaks(Broken::RecordBeforePack),
        }
    }
}
