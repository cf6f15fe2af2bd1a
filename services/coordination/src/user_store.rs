//! The user store: what readers see, apart from the system store, once per region.
//!
//! One item per znode, in its parent's partition under its name, so that a page of a partition is a page of
//! children. The item holds the Stat and the ACL, and the data or the name of the object that has it. One
//! further row, the cursor, says up to which slot of the distributor's log the store is applied.
//!
//! A slot is applied by `transact`, its items and the cursor together, under the condition that the cursor
//! stands right before it. So each slot is applied exactly once and in order, whoever does it and however
//! late, a delete needs no tombstone, and nobody sees half of a zxid (this departs from the letter of C-4
//! and C-5; `docs/design/0002-coordination.md` closes their scenarios). A slot with more items than one
//! transaction may hold is applied in parts; the cursor then says which zxid is being applied, and readers
//! wait for it.
//!
//! From FaaSKeeper, sections 3.2 and 4.1 (data storage).

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    key_value::{Action, Name, Read, Scan, Test, Transacted, Value},
    objects::{
        self, ObjectError, ObjectPath, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    basis::Basis,
    keys,
    model::{Acl, Stat, Zxid},
    path,
    records::{Payload, UpdateId, decode, encode},
};

const META: &str = "meta";
const DATA: &str = "data";
const ACL: &str = "acl";

const SLOT: &str = "slot";
const EPOCH: &str = "epoch";
const PART: &str = "part";
const ZXID: &str = "zxid";
const APPLYING: &str = "applying";
const GARBAGE: &str = "garbage";

/// How many children one page holds.
const PAGE_ITEMS: usize = 1000;

/// Where a znode's data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlacement {
    /// In the item: cheapest to read while data is small.
    KeyValue,
    /// In an object named by the update that wrote it: cheapest to keep.
    Objects,
    /// In the item up to this many bytes, in an object beyond.
    Hybrid {
        /// The largest data kept in the item.
        inline_bytes_max: usize,
    },
}

/// A znode as readers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Everything but data and ACL.
    pub meta: Meta,
    /// Its data or where that is.
    pub data: Payload,
    /// Its ACL, encoded.
    pub acl: Bytes,
}

/// What Stat is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// See [`Stat`].
    pub czxid: Zxid,
    /// See [`Stat`].
    pub mzxid: Zxid,
    /// See [`Stat`].
    pub pzxid: Zxid,
    /// See [`Stat`].
    pub ctime: i64,
    /// See [`Stat`].
    pub mtime: i64,
    /// See [`Stat`].
    pub version: i32,
    /// How many children were ever created.
    pub creates: i32,
    /// How many children there are.
    pub children: i32,
    /// The owning session, or zero.
    pub owner: i64,
    /// The length of the data.
    pub data_length: i32,
}

impl Meta {
    /// The last change of anything of the znode (rule C-5).
    pub fn zxid(&self) -> Zxid {
        self.czxid.max(self.mzxid).max(self.pzxid)
    }

    /// As clients see it: their cversion counts creates and deletions.
    pub fn stat(&self) -> Stat {
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.creates.wrapping_mul(2).wrapping_sub(self.children),
            aversion: 0,
            ephemeral_owner: self.owner,
            data_length: self.data_length,
            num_children: self.children,
            pzxid: self.pzxid,
        }
    }
}

impl Node {
    /// A znode as created; `acl` as [`encode_acl`] makes it.
    pub fn created(zxid: Zxid, time_ms: i64, owner: i64, data: Payload, acl: Bytes) -> Self {
        let meta = Meta {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time_ms,
            mtime: time_ms,
            version: 0,
            creates: 0,
            children: 0,
            owner,
            data_length: data.bytes_len() as i32,
        };
        Self { meta, data, acl }
    }

    fn read(item: &Item) -> Result<Self> {
        let meta = item
            .bytes(META)
            .ok_or_else(|| Error::corrupt("read a znode without its meta attribute"))?;
        let data = match item.attribute(DATA) {
            None => Payload::Null,
            Some(Value::Bytes(bytes)) => Payload::Inline(bytes.clone()),
            Some(Value::List(pointer)) => {
                let name = pointer
                    .first()
                    .and_then(|name| std::str::from_utf8(name).ok());
                let name = name
                    .ok_or_else(|| Error::corrupt("read where a znode's data is"))?
                    .to_owned();
                let meta: Meta = decode(meta, "a znode")?;
                Payload::Object {
                    name,
                    bytes_len: meta.data_length as u64,
                }
            }
            Some(Value::Integer(_)) => return Err(Error::corrupt("read a znode's data")),
        };
        Ok(Self {
            meta: decode(meta, "a znode")?,
            data,
            acl: item.bytes(ACL).cloned().unwrap_or_default(),
        })
    }

    /// What the item at `path` holds.
    fn attributes(&self, path: &str) -> Vec<(Name, Value)> {
        let mut attributes = vec![
            (ACL.into(), Value::Bytes(self.acl.clone())),
            (META.into(), Value::Bytes(encode(&self.meta))),
        ];
        attributes.extend(path::split(path).and_then(|(_, name)| keys::beside(name)));
        match &self.data {
            Payload::Null => {}
            Payload::Inline(bytes) => attributes.push((DATA.into(), Value::Bytes(bytes.clone()))),
            Payload::Object { name, .. } => {
                attributes.push((
                    DATA.into(),
                    Value::List([Bytes::copy_from_slice(name.as_bytes())].into()),
                ));
            }
        }
        attributes
    }
}

/// An ACL as items hold it.
pub fn encode_acl(acl: &[Acl]) -> Bytes {
    encode(&acl)
}

/// How far a region's store is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The last slot applied whole; zero before the first.
    pub slot: u64,
    /// The epoch of the distributor that logged it.
    pub epoch: u64,
    /// The last zxid applied whole.
    pub zxid: Zxid,
    /// The last zxid of the slot being applied in parts, or `zxid`.
    pub applying: Zxid,
}

/// A change to the tree as readers see it: what becomes of one znode in one slot.
pub type Change = (String, Option<Node>);

/// One region's user store.
#[derive(Debug, Clone)]
pub struct UserStore {
    items: Arc<dyn KeyValue>,
    objects: Arc<dyn ObjectStore>,
    placement: DataPlacement,
}

impl UserStore {
    /// A store of znodes in `items`, and of their data where `placement` says.
    pub fn new(
        items: Arc<dyn KeyValue>,
        objects: Arc<dyn ObjectStore>,
        placement: DataPlacement,
    ) -> Self {
        Self {
            items,
            objects,
            placement,
        }
    }

    /// The store behind it, for durability points.
    pub fn items(&self) -> &Arc<dyn KeyValue> {
        &self.items
    }

    /// The znode at `path`, if it is there.
    pub async fn get(&self, path: &str) -> Result<Option<Node>> {
        let Some(key) = key(path) else {
            return Ok(None);
        };
        self.items
            .get(&key)
            .await?
            .value
            .as_deref()
            .map(Node::read)
            .transpose()
    }

    /// The names of the children of `path`, in order, and whether all of them were read from one page.
    pub async fn children(&self, path: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut scan = Scan::partition(children_partition(path), PAGE_ITEMS);
        loop {
            let page = self.items.scan(&scan).await?.value;
            for (sort, item) in page.items {
                names.push(keys::read(&sort, &item, "a child's name")?);
            }
            let Some(next) = page.next else { break };
            scan.from = next;
        }
        keys::sort(&mut names);
        Ok(names)
    }

    /// The bytes behind `data`; none if the object is gone, because the znode has changed since it was read.
    pub async fn load(&self, data: &Payload) -> Result<Option<Option<Bytes>>> {
        match data {
            Payload::Null => Ok(Some(None)),
            Payload::Inline(bytes) => Ok(Some(Some(bytes.clone()))),
            Payload::Object { name, .. } => Ok(get_object(&*self.objects, name).await?.map(Some)),
        }
    }

    /// Whether data belongs in an object rather than in its znode's item.
    pub fn belongs_in_object(&self, data: &Payload) -> bool {
        let inline_bytes_max = match self.placement {
            DataPlacement::KeyValue => usize::MAX,
            DataPlacement::Objects => 0,
            DataPlacement::Hybrid { inline_bytes_max } => inline_bytes_max,
        };
        let bytes_len = data.bytes_len() as usize;
        bytes_len > 0 && bytes_len > inline_bytes_max
    }

    /// Puts data where it belongs before the item that names it: into the item, or into an object. The object
    /// is named by the update, which alone decides what is in it, so that placing it twice is harmless. The update's
    /// decision must be durable: an object stays where that is lost, and the next decision has its name.
    pub async fn place(&self, update: UpdateId, data: Payload) -> Result<Payload> {
        let belongs_in_object = self.belongs_in_object(&data);
        let bytes_len = data.bytes_len();
        match data {
            Payload::Inline(bytes) if belongs_in_object => {
                let name = object_name(update);
                match put_object(&*self.objects, &name, bytes.clone()).await {
                    Ok(()) => Ok(Payload::Object { name, bytes_len }),
                    // What is decided has to be applied, and the items have a reserve.
                    Err(error) if error.kind() == ErrorKind::NoRoom => Ok(Payload::Inline(bytes)),
                    Err(error) => Err(error),
                }
            }
            Payload::Object { name, .. } if !belongs_in_object => {
                let bytes = get_object(&*self.objects, &name).await?;
                Ok(Payload::Inline(bytes.ok_or_else(|| {
                    Error::corrupt(format!("read object {name}"))
                })?))
            }
            data => Ok(data),
        }
    }

    /// Removes objects that no item names any more, and forgets them.
    pub async fn collect(&self, garbage: &[Bytes], basis: &mut Basis) -> Result<()> {
        for name in garbage {
            self.remove_object(&String::from_utf8_lossy(name)).await?;
        }
        let actions = vec![Action::RemoveElements(GARBAGE.into(), garbage.to_vec())];
        let update = Update::modify(cursor_key(), actions).depends_on(basis.point());
        basis.seen(self.items.update(update).await?.receipt.point)
    }

    /// The object of an update that is applied, if the znode at `path` does not name it.
    pub async fn nameless(
        &self,
        update: UpdateId,
        path: &str,
        basis: &mut Basis,
    ) -> Result<Option<Bytes>> {
        let (node, name) = (self.get(path).await?, object_name(update));
        basis.look(&*self.items)?;
        let names =
            |node: Node| matches!(node.data, Payload::Object { name: named, .. } if named == name);
        Ok((!node.is_some_and(names)).then(|| Bytes::copy_from_slice(name.as_bytes())))
    }

    async fn remove_object(&self, name: &str) -> Result<()> {
        match self.objects.delete(&ObjectPath::from(name)).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(cause) => Err(Error::unavailable(format!("delete object {name}")).caused_by(cause)),
        }
    }

    /// How far the store is applied, and the objects that wait for [`UserStore::collect`] once it is applied whole.
    pub async fn cursor(&self) -> Result<Read<(Cursor, Vec<Bytes>)>> {
        let Read { value: item, point } = self.items.get(&cursor_key()).await?;
        let Some(item) = item else {
            return Ok(Read {
                value: (Cursor::default(), Vec::new()),
                point,
            });
        };
        let number = |name| item.integer(name).unwrap_or_default();
        let zxid = Zxid(number(ZXID));
        let cursor = Cursor {
            slot: number(SLOT) as u64,
            epoch: number(EPOCH) as u64,
            zxid,
            applying: zxid.max(Zxid(number(APPLYING))),
        };
        Ok(Read {
            value: (cursor, item.list(GARBAGE).to_vec()),
            point,
        })
    }

    /// Makes a znode that is part of the service, if it is not there.
    pub async fn put_if_absent(&self, path: &str, node: &Node) -> Result<()> {
        let key = key(path).expect("the service's own paths are valid");
        self.items
            .update(Update::put(key, node.attributes(path)).when(Condition::Absent))
            .await
            .map(|_| ())
    }

    /// Applies a slot: all of `changes` and the cursor, or nothing if that is done already. What was seen of this store
    /// before, it rests on: a cursor that has gone back may come to stand where it stood, for other slots.
    ///
    /// Answers whether nobody else had begun with it: `garbage` was computed over what was there before then, and is noted with
    /// the first part. Else it may name what is in use, and goes nowhere; what is right was noted by whoever began.
    pub async fn apply(
        &self,
        step: Step,
        changes: &[Change],
        garbage: &[Bytes],
        basis: &mut Basis,
    ) -> Result<bool> {
        basis.look(&*self.items)?;
        let per_part = self.items.limits().transact_items_max - 1;
        let parts = changes.len().div_ceil(per_part).max(1);
        let mut has_begun = false;
        for part in 0..parts {
            let changes = &changes[part * per_part..changes.len().min((part + 1) * per_part)];
            let mut updates = Vec::with_capacity(changes.len() + 1);
            updates.push(move_cursor(step, part, parts, garbage).depends_on(basis.point()));
            for (path, node) in changes {
                let key = key(path)
                    .ok_or_else(|| Error::corrupt(format!("apply a change of {path:?}")))?;
                updates.push(match node {
                    Some(node) => Update::put(key, node.attributes(path)),
                    None => Update::delete(key),
                });
            }
            let is_done_here = self.apply_part(step, part, updates, basis).await?;
            has_begun |= part == 0 && is_done_here;
        }
        Ok(has_begun)
    }

    /// Whether it was done here, and not by a predecessor that was only slow.
    async fn apply_part(
        &self,
        step: Step,
        part: usize,
        updates: Vec<Update>,
        basis: &mut Basis,
    ) -> Result<bool> {
        match self.items.transact(updates).await? {
            Transacted::Done { receipt, .. } => basis.seen(receipt.point).map(|()| true),
            Transacted::Conflict { item, receipt, .. } => {
                let number = |name| {
                    item.as_ref()
                        .and_then(|item| item.integer(name))
                        .unwrap_or_default()
                };
                let (applied, parts) = (number(SLOT) as u64, number(PART) as usize);
                if applied >= step.slot || (applied == step.previous && parts > part) {
                    return basis.seen(receipt.point).map(|()| false);
                }
                Err(Error::corrupt(format!(
                    "apply slot {} part {part} where the cursor is at {applied}",
                    step.slot
                )))
            }
        }
    }
}

/// From one slot to the next.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The slot applied before this one; zero if there is none.
    pub previous: u64,
    /// The slot.
    pub slot: u64,
    /// The epoch it was logged under.
    pub epoch: u64,
    /// Its last zxid.
    pub last: Zxid,
}

/// The cursor stands at the previous slot, and as many parts of this one are applied as there should be.
fn move_cursor(step: Step, part: usize, parts: usize, garbage: &[Bytes]) -> Update {
    let at = |name: &'static str, value: i64| match value {
        0 => Condition::Any(vec![
            Condition::attribute(name, Test::Absent),
            Condition::attribute(name, Test::is_integer(0)),
        ]),
        value => Condition::attribute(name, Test::is_integer(value)),
    };
    let condition = Condition::All(vec![at(SLOT, step.previous as i64), at(PART, part as i64)]);
    let mut actions = if part + 1 == parts {
        vec![
            Action::set_integer(SLOT, step.slot as i64),
            Action::set_integer(EPOCH, step.epoch as i64),
            Action::set_integer(ZXID, step.last.0),
            Action::unset(PART),
            Action::unset(APPLYING),
        ]
    } else {
        vec![
            Action::set_integer(PART, part as i64 + 1),
            Action::set_integer(APPLYING, step.last.0),
        ]
    };
    if part == 0 && !garbage.is_empty() {
        actions.push(Action::Append(GARBAGE.into(), garbage.to_vec()));
    }
    Update::modify(cursor_key(), actions).when(condition)
}

fn cursor_key() -> Key {
    Key::new("cursor", [])
}

fn children_partition(path: &str) -> Vec<u8> {
    keys::of("children:", path)
}

fn object_name(update: UpdateId) -> String {
    format!("znodes/{:016x}/{:016x}", update.session.0, update.sequence)
}

/// None for what no znode can be called: then there is none.
fn key(path: &str) -> Option<Key> {
    if path.len() > path::PATH_BYTES_MAX {
        return None;
    }
    match path::split(path) {
        Some((parent, name)) => Some(Key::new(children_partition(parent), keys::of("", name))),
        None if path == "/" => Some(Key::new("root", [])),
        None => None,
    }
}

/// Writes an object once; finding it there is as good. Errors: `NoRoom` if it is not there and the disk is full.
pub async fn put_object(objects: &dyn ObjectStore, name: &str, bytes: Bytes) -> Result<()> {
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    let path = ObjectPath::from(name);
    match objects
        .put_opts(&path, PutPayload::from_bytes(bytes), options)
        .await
    {
        Ok(_) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
        Err(cause) => {
            let failure = objects::failed(format!("write object {name}"), cause);
            // A disk may be too full to notice that the object is there.
            let is_there = failure.kind() == ErrorKind::NoRoom && objects.head(&path).await.is_ok();
            if is_there { Ok(()) } else { Err(failure) }
        }
    }
}

async fn get_object(objects: &dyn ObjectStore, name: &str) -> Result<Option<Bytes>> {
    let failed = |cause| Error::unavailable(format!("read object {name}")).caused_by(cause);
    match objects.get(&ObjectPath::from(name)).await {
        Ok(found) => found.bytes().await.map(Some).map_err(failed),
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(cause) => Err(failed(cause)),
    }
}

#[cfg(test)]
mod tests;
