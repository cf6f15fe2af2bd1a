//! Packed values: on an object store, where a put costs as much as a thousand small writes elsewhere, the values of many
//! transactions go out as one object.
//!
//! ```text
//!  values of all commits and spills ──▶ gather: a while, or until they fill a pack ──▶ one put, PutMode::Create
//!    each knows its place at once:      version item ┐
//!                                       its pack ────┴──▶ both confirmed ──▶ the decision row (P6)
//!  collected, replaced, aborted ──▶ the pack's estimate ──▶ more than half is dead ─┬─▶ compactor.rs
//!                                                 many small packs of about a size ─┘
//! ```
//!
//! The commit and its log say only that a value is packed: its version item alone says where, so that it can move. Rows, slots
//! and version items stay in the key-value store. A pack's row holds what is thought to be dead in it; it is a hint, judged anew
//! before anything rests on it, and counted anew after a death (`sweep.rs`). Several nodes take care of the packs of a store, each
//! of its own; `custody.rs` says of what besides.
//!
//! Invariants
//! - A number of a node's packs is used once, and an object is never written again. A name that is taken was taken by the
//!   same put, whose answer was lost; or by a life of the store that it does not remember, as one that was set back to a backup
//!   while its objects were not, or by a copy of it: what lies there is compared, and a start numbers behind what it finds.
//! - A commit is decided once every pack it has values in is durable.
//! - Whoever may still write an item that names a pack *holds* it: nobody judges what is live in it meanwhile.
//!
//! From AFT, section 8, "Efficient Data Layout", which names log-structured file systems.

mod compactor;
mod directory;
mod ownership;
mod placement;
mod reading;
mod rows;
mod table;
mod written;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use ports::{
    Monotonic, Outage,
    objects::{
        self, ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    },
};
use tokio::sync::watch;

pub(crate) use self::written::{OnTheirWay, Written};
use self::{directory::Filed, reading::Wanted, table::Table};
use crate::{
    Config, Error, Result,
    broken::Broken,
    engine::Core,
    model::{Attempt, Key, NodeId},
    node::Node,
    storage::store::Store,
};

/// An object store.
pub type SharedObjects = Arc<dyn ObjectStore>;

/// Which pack: whose, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackId {
    /// Who has put it.
    pub node: NodeId,
    /// Its number, from one.
    pub number: u64,
}

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// In which pack.
    pub pack: PackId,
    /// From which byte on.
    pub offset: u64,
}

/// Keeps packs from being judged: whoever has it may still write items that name them.
pub(crate) type Hold = Arc<()>;

/// A value that goes into a pack.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) attempt: Attempt,
    pub(crate) write: u32,
    pub(crate) value: Bytes,
}

/// Where values will lie, and when they do.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Of each of them.
    pub(crate) located: Vec<Located>,
    /// For as long as items may be written that say so.
    pub(crate) holds: Vec<Hold>,
    put: Vec<watch::Receiver<Option<Result<()>>>>,
}

/// The packs of one start of a node, and those it takes care of.
#[derive(Debug)]
pub(crate) struct Packs {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: u64,
    gathering: Option<Gathering>,
    table: Table,
    /// Small reads that wait to be joined, by their pack.
    wanted: BTreeMap<PackId, Vec<Wanted>>,
    /// The objects failed; nothing is compacted before this.
    paused_until: Monotonic,
    /// What was said of that.
    outage: Outage,
    /// What has died here in packs that others take care of, and when their rows are to say so.
    owed: BTreeMap<PackId, u64>,
    owed_until: Monotonic,
    noted: u64,
    /// Others have noted what died here.
    is_look_due: bool,
    is_take_over_due: bool,
    /// The table has packs of nodes that are gone.
    has_taken_over: bool,
}

/// A pack to be.
#[derive(Debug)]
struct Gathering {
    id: PackId,
    entries: Vec<Entry>,
    bytes: u64,
    hold: Hold,
    told: watch::Sender<Option<Result<()>>>,
}

impl PackId {
    /// Before all others.
    const FIRST: Self = Self {
        node: NodeId(0),
        number: 0,
    };

    /// How long it is at rest.
    pub const BYTES: usize = 12;

    /// As items hold it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.node.0.to_be_bytes());
        bytes[4..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// What [`PackId::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (node, number) = bytes.split_first_chunk::<4>()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        Some(Self {
            node: NodeId(u32::from_be_bytes(*node)),
            number,
        })
    }

    /// The name of its object among those of a store.
    pub fn path(self, home: &str) -> ObjectPath {
        ObjectPath::from(format!("{home}/{}/{}", self.node.0, self.number))
    }
}

impl Packs {
    pub(crate) fn new(config: &Config) -> Self {
        let state = State {
            last: 0,
            gathering: None,
            table: Table::new(config),
            wanted: BTreeMap::new(),
            paused_until: Monotonic::default(),
            outage: Outage::default(),
            owed: BTreeMap::new(),
            owed_until: Monotonic::default(),
            noted: 0,
            is_look_due: false,
            is_take_over_due: false,
            has_taken_over: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// How many this node takes care of, and the bytes of their values.
    pub(crate) fn sums(&self) -> (u64, u64) {
        self.state().table.sums()
    }

    /// The numbers up to `last` are taken.
    fn pass(&self, last: u64) {
        let mut state = self.state();
        state.last = state.last.max(last);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathering {
    fn new(id: PackId) -> Self {
        let (hold, told) = (Hold::default(), watch::Sender::new(None));
        Self {
            id,
            entries: Vec::new(),
            bytes: 0,
            hold,
            told,
        }
    }

    /// Takes a value in. Returns where it will lie.
    fn take(&mut self, entry: Entry) -> Located {
        let located = Located {
            pack: self.id,
            offset: self.bytes,
        };
        self.bytes += entry.value.len() as u64;
        self.entries.push(entry);
        located
    }
}

impl Packed {
    /// Waits until they lie there. Errors: `NoRoom`; `Unavailable` once the node cannot go on.
    pub(crate) async fn is_put(&self) -> Result<()> {
        let mut answer = Ok(());
        for put in &self.put {
            let put = put
                .clone()
                .wait_for(Option::is_some)
                .await
                .map(|put| put.clone().expect("waited for"));
            // All of them are waited for: whoever gives up must not clean up beside what is still on its way.
            answer =
                answer.and(put.unwrap_or_else(|_| Err(Error::unavailable("the engine stops"))));
        }
        answer
    }

    fn join(&mut self, gathering: &Gathering) {
        if !self
            .holds
            .iter()
            .any(|hold| Arc::ptr_eq(hold, &gathering.hold))
        {
            self.holds.push(Arc::clone(&gathering.hold));
            self.put.push(gathering.told.subscribe());
        }
    }
}

impl Core {
    /// Puts values into packs: of this node alone, beside whatever else goes there at the moment.
    pub(crate) fn pack(self: &Arc<Self>, node: &Arc<Node>, entries: Vec<Entry>) -> Packed {
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
            let (core, node) = (Arc::clone(self), Arc::clone(node));
            self.context
                .spawn(async move { core.put_pack(&node, pack).await });
        }
        if let Some(id) = first {
            self.put_after_a_while(node, id);
        }
        packed
    }

    /// Puts a pack that began to gather now, if it is not full before.
    fn put_after_a_while(self: &Arc<Self>, node: &Arc<Node>, id: PackId) {
        let (core, node) = (Arc::clone(self), Arc::clone(node));
        self.context.spawn(async move {
            core.context
                .clock
                .sleep(core.context.config.pack_wait)
                .await;
            let pack = node
                .packs
                .state()
                .gathering
                .take_if(|gathering| gathering.id == id);
            if let Some(pack) = pack {
                core.put_pack(&node, pack).await;
            }
        });
    }

    async fn put_pack(&self, node: &Node, pack: Gathering) {
        let put = self.try_put_pack(node, &pack).await;
        if let Err(error) = &put {
            tracing::debug!(%error, pack = pack.id.number, "a pack was not put");
            node.leaves_traces();
        }
        // Nobody hears it only if the engine is on its way out.
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
                // Nothing names it, and it is tried again under another name: else objects pile up until there is room.
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

    /// Puts an object that nobody else ever puts, however often it has to be asked for. Errors: `Unavailable` if somebody has.
    async fn put_object(
        &self,
        store: &Store,
        path: &ObjectPath,
        payload: PutPayload,
    ) -> Result<()> {
        let mut delays = Store::delays();
        loop {
            store.standing()?;
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
                            tracing::error!(%path, "an object that this store has not put has the name of its next: \
                            another process writes there for a copy of this store");
                            return Err(Error::unavailable(
                                "an object of another process has this one's name",
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

    /// Whether an object that is there is what was to be put.
    async fn has_content(&self, path: &ObjectPath, payload: &PutPayload) -> ports::Result<bool> {
        if self.context.config.is_broken(Broken::TakesAnyPackForItsOwn) {
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

    /// Errors: none was given, and something lies there.
    fn objects(&self) -> Result<&SharedObjects> {
        let missing =
            || Error::Corrupt("the value lies in an object store that was not given".into());
        self.objects.as_ref().ok_or_else(missing)
    }

    /// What the names of this store's packs begin with.
    fn home(&self) -> Result<&str> {
        self.home
            .get()
            .map(String::as_str)
            .ok_or_else(|| Error::unavailable("the node starts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_is_named_alike_in_items_and_objects() {
        let id = PackId {
            node: NodeId(7),
            number: u64::MAX,
        };
        assert_eq!(PackId::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(PackId::from_bytes(b"short"), None);
        assert_eq!(
            id.path("packs/1f").as_ref(),
            "packs/1f/7/18446744073709551615"
        );
    }
}
