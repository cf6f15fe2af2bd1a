//! The user store: the znodes that clients read, apart from the system store.
//!
//! Each znode is one item under its name in its parent's partition, so that a page of a partition
//! is a page of children. The item holds the Stat, the ACL, and either the data or the name of the
//! object with the data. One more row, the cursor, records the last applied slot of the
//! distributor's log.
//!
//! One `transact` applies a slot: it writes the slot's items and the cursor, under the condition
//! that the cursor is at the slot before. Each slot is therefore applied exactly once and in order,
//! even by a late or repeated distributor. A delete needs no tombstone, and no reader sees half of
//! a zxid. This departs from the letter of C-4 and C-5; `docs/design/0002-coordination.md` closes
//! their scenarios. A slot with more items than one transaction may hold is applied in parts.
//! Meanwhile the cursor names the zxid that is being applied, and readers wait for it.
//!
//! From FaaSKeeper, sections 3.2 and 4.1 (data storage).

mod reader;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    key_value::{Action, Name, Read, Test, Transacted, Value},
    objects::{
        self, ObjectError, ObjectPath, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    },
};

pub use reader::Reader;

use crate::{
    config::DataPlacement,
    dependency::TrackedStore,
    environment::{Environment, Parts},
    model::{Sizes, Stat, Timeline, Zxid},
    path,
    records::{Payload, UpdateId, Written, decode, encode},
    storage::keys,
};

const STAT: &str = "stat";
const DATA: &str = "data";
const ACL: &str = "acl";
const ACL_ZXID: &str = "acl_zxid";

const SLOT: &str = "slot";
const EPOCH: &str = "epoch";
const PART: &str = "part";
const ZXID: &str = "zxid";
const APPLYING: &str = "applying";
const GARBAGE: &str = "garbage";
const ZNODES: &str = "znodes";
const EPHEMERALS: &str = "ephemerals";
const DATA_BYTES: &str = "data_bytes";

/// A znode as clients read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub stat: Stat,
    /// Its data, or the object that holds the data.
    pub data: Payload,
    /// Its ACL, as [`crate::access`] encodes it.
    pub acl: Bytes,
    /// The zxid of its last change that the Stat does not show: of its ACL, or of the statistics of
    /// a quota. Zero if there is none.
    pub acl_zxid: Zxid,
}

impl Node {
    /// The zxid of its last change of any kind (rule C-5).
    pub fn zxid(&self) -> Zxid {
        self.zxid_without_acl().max(self.acl_zxid)
    }

    /// The zxid of its last change other than that of its ACL.
    pub(crate) fn zxid_without_acl(&self) -> Zxid {
        let stat = &self.stat;
        stat.czxid.max(stat.mzxid).max(stat.pzxid)
    }

    /// A newly created znode. `acl` is encoded by [`crate::access`].
    pub fn created(zxid: Zxid, time_ms: i64, owner: i64, data: Payload, acl: Bytes) -> Self {
        let stat = Stat {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time_ms,
            mtime: time_ms,
            ephemeral_owner: owner,
            data_length: data.bytes_len() as i32,
            ..Stat::default()
        };
        Self {
            stat,
            data,
            acl,
            acl_zxid: Zxid(0),
        }
    }

    /// The bytes of its data and ACL.
    pub(crate) fn bytes_len(&self) -> usize {
        self.data.inline_len() + self.acl.len()
    }

    fn read(item: &Item) -> Result<Self> {
        let stat = item
            .bytes(STAT)
            .ok_or_else(|| Error::corrupt("read a znode without its stat attribute"))?;
        let stat: Stat = decode(stat, "a znode")?;
        let data = match item.attribute(DATA) {
            None => Payload::Null,
            Some(Value::Bytes(bytes)) => Payload::Inline(bytes.clone()),
            Some(Value::List(pointer)) => {
                let name = pointer.first().map(|name| std::str::from_utf8(name));
                let Some(Ok(name)) = name else {
                    return Err(Error::corrupt("read the object name of a znode's data"));
                };
                Payload::Object {
                    name: name.to_owned(),
                    bytes_len: stat.data_length as u64,
                }
            }
            Some(Value::Integer(_)) => return Err(Error::corrupt("read a znode's data")),
        };
        let acl = item.bytes(ACL).cloned().unwrap_or_default();
        let acl_zxid = Zxid(item.integer(ACL_ZXID).unwrap_or_default());
        Ok(Self {
            stat,
            data,
            acl,
            acl_zxid,
        })
    }

    /// The attributes of the item at `path`.
    fn attributes(&self, path: &str) -> Vec<(Name, Value)> {
        let mut attributes = Vec::with_capacity(2);
        attributes.push((STAT.into(), Value::Bytes(encode(&self.stat))));
        if !self.acl.is_empty() {
            attributes.push((ACL.into(), Value::Bytes(self.acl.clone())));
        }
        if self.acl_zxid > Zxid(0) {
            attributes.push((ACL_ZXID.into(), Value::Integer(self.acl_zxid.0)));
        }
        attributes.extend(path::split(path).and_then(|(_, name)| keys::text_attribute(name)));
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

/// The position of the user store in the distributor's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The last slot applied completely, or zero before the first.
    pub slot: u64,
    /// The epoch of the distributor that logged it.
    pub epoch: u64,
    /// The last zxid applied completely.
    pub zxid: Zxid,
    /// The last zxid of a slot that is being applied in parts, otherwise equal to `zxid`.
    pub applying: Zxid,
}

impl Cursor {
    fn read(item: Option<&Item>) -> Self {
        let number = |name| item.and_then(|item| item.integer(name)).unwrap_or_default();
        let zxid = Zxid(number(ZXID));
        Self {
            slot: number(SLOT) as u64,
            epoch: number(EPOCH) as u64,
            zxid,
            applying: zxid.max(Zxid(number(APPLYING))),
        }
    }
}

/// How much a slot adds to the numbers of znodes and ephemerals, and to the bytes of paths and
/// data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    pub znodes: i64,
    pub ephemerals: i64,
    pub data_bytes: i64,
}

impl Growth {
    /// Adds a znode that comes, or one that goes with a `sign` of -1.
    pub fn add(&mut self, path: &str, node: &Node, sign: i64) {
        let bytes = path.len() as i64 + i64::from(node.stat.data_length);
        self.znodes += sign;
        self.ephemerals += sign * i64::from(node.stat.ephemeral_owner != 0);
        self.data_bytes += sign * bytes;
    }

    fn actions(self) -> impl Iterator<Item = Action> {
        let all = [
            (ZNODES, self.znodes),
            (EPHEMERALS, self.ephemerals),
            (DATA_BYTES, self.data_bytes),
        ];
        let changed = all.into_iter().filter(|(_, number)| *number != 0);
        changed.map(|(name, number)| Action::Add(name.into(), number))
    }
}

/// The change of one znode by one slot: its path, and its new state or `None` if it is deleted.
pub type NodeChange<'path> = (Cow<'path, str>, Option<Node>);

/// The user store.
#[derive(Debug, Clone)]
pub struct UserStore {
    pub(crate) items: Arc<dyn KeyValue>,
    objects: Arc<dyn ObjectStore>,
    placement: DataPlacement,
    timeline: Option<Timeline>,
}

impl UserStore {
    /// The znodes in `items`. `placement` says where their data is.
    pub fn new(
        items: Arc<dyn KeyValue>,
        objects: Arc<dyn ObjectStore>,
        placement: DataPlacement,
    ) -> Self {
        Self {
            items,
            objects,
            placement,
            timeline: None,
        }
    }

    pub(crate) fn of(env: &Environment) -> Self {
        let Parts { items, objects, .. } = env.parts.clone();
        Self {
            timeline: env.timeline(),
            ..Self::new(items, objects, env.config.placement)
        }
    }

    /// The znodes for a read of several calls.
    pub fn reader(&self) -> Reader {
        Reader::new(self)
    }

    /// The znode at `path`, if it exists.
    pub async fn get(&self, path: &str) -> Result<Option<Node>> {
        self.reader().get(path).await
    }

    /// The names of all children of `path`, in order.
    pub async fn children(&self, path: &str) -> Result<Vec<String>> {
        self.reader().children(path).await
    }

    /// The names and Stats of all children of `path`, in any order.
    pub(crate) async fn children_with_stats(&self, path: &str) -> Result<Vec<(String, Stat)>> {
        let name_and_stat = |name, item: &Item| Ok((name, Node::read(item)?.stat));
        self.reader().each_child(path, name_and_stat).await
    }

    /// The bytes of `data`. The outer `Option` is `None` if the object is gone because the znode
    /// changed after it was read.
    pub async fn load(&self, data: &Payload) -> Result<Option<Option<Bytes>>> {
        match data {
            Payload::Null => Ok(Some(None)),
            Payload::Inline(bytes) => Ok(Some(Some(bytes.clone()))),
            Payload::Object { name, .. } => Ok(get_object(&*self.objects, name).await?.map(Some)),
        }
    }

    fn object_name(&self, update: UpdateId, part: u32) -> String {
        let UpdateId { session, sequence } = update;
        let timeline = self
            .timeline
            .map(|timeline| format!("-{:016x}", timeline.0));
        let part = (part > 0).then(|| format!("-{part:x}"));
        format!(
            "znodes/{:016x}{}/{sequence:016x}{}",
            session.0,
            timeline.unwrap_or_default(),
            part.unwrap_or_default()
        )
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

    /// Puts data in its place before an item names it: into the item or into an object.
    ///
    /// The object is named after the update and the part of it, and these determine the content, so
    /// placing it twice is harmless. The update's decision must be durable. Otherwise the store
    /// could lose the decision but keep the object, and the next decision would have the same name.
    /// A restore from a backup loses durable decisions too, so the names in a restored store
    /// contain its timeline.
    pub async fn place_data(&self, update: UpdateId, part: u32, data: Payload) -> Result<Payload> {
        let belongs_in_object = self.belongs_in_object(&data);
        let bytes_len = data.bytes_len();
        match data {
            Payload::Inline(bytes) if belongs_in_object => {
                let name = self.object_name(update, part);
                match put_object(&*self.objects, &name, bytes.clone()).await {
                    Ok(()) => Ok(Payload::Object { name, bytes_len }),
                    // A decided request must be applied, and the items have a reserve.
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

    /// Removes objects that no item names, and drops them from the cursor's garbage list.
    pub async fn collect_garbage(&self, items: &mut TrackedStore, garbage: &[Bytes]) -> Result<()> {
        for name in garbage {
            let name = ObjectPath::from(&*String::from_utf8_lossy(name));
            remove_object(&*self.objects, &name).await?;
        }
        let actions = vec![Action::RemoveElements(GARBAGE.into(), garbage.to_vec())];
        let update = Update::modify(cursor_key(), actions);
        items.update(update).await.map(|_| ())
    }

    /// The object of a part of an applied update, if the znode at `path` does not name it.
    pub async fn unreferenced_object(
        &self,
        items: &mut TrackedStore,
        update: UpdateId,
        Written { part, path, .. }: Written<'_>,
    ) -> Result<Option<Bytes>> {
        let (node, name) = (self.get(path).await?, self.object_name(update, part));
        items.observe_now()?;
        let is_named = node.is_some_and(|node| node.data.object() == Some(name.as_str()));
        Ok((!is_named).then(|| Bytes::from(name)))
    }

    /// The cursor, and the objects that [`UserStore::collect_garbage`] removes once the current
    /// slot is applied completely.
    pub async fn cursor(&self) -> Result<Read<(Cursor, Vec<Bytes>)>> {
        let Read { value: item, point } = self.items.get(&cursor_key()).await?;
        let cursor = Cursor::read(item.as_deref());
        let garbage = item.map(|item| item.list(GARBAGE).to_vec());
        Ok(Read {
            value: (cursor, garbage.unwrap_or_default()),
            point,
        })
    }

    /// The size of the tree, as the cursor's row counts it.
    pub async fn sizes(&self) -> Result<Sizes> {
        let item = self.items.get(&cursor_key()).await?.value;
        let number = |name| item.as_ref().and_then(|item| item.integer(name));
        let number = |name| u64::try_from(number(name).unwrap_or_default()).unwrap_or_default();
        Ok(Sizes {
            znodes: Sizes::BUILT_IN.znodes + number(ZNODES),
            ephemerals: number(EPHEMERALS),
            data_bytes: Sizes::BUILT_IN.data_bytes + number(DATA_BYTES),
        })
    }

    /// Creates a built-in znode if it does not exist.
    pub async fn put_if_absent(&self, path: &str, node: &Node) -> Result<()> {
        let key = key(path).expect("the service's own paths are valid");
        self.items
            .update(Update::put(key, node.attributes(path)).when(Condition::Absent))
            .await
            .map(|_| ())
    }

    /// Applies a slot: all `changes` and the cursor, or nothing if that is already done. The writes
    /// depend on every earlier observation of this store, because a rolled-back cursor may stand at
    /// the same slot number for other slots.
    ///
    /// Returns whether this call applied the first part. Then `garbage` and `growth`, which were
    /// computed before the slot changed anything, are recorded with that part. Otherwise `garbage`
    /// may name objects in use and must be discarded, because the distributor that began recorded
    /// the right list.
    pub async fn apply(
        &self,
        items: &mut TrackedStore,
        step: Step,
        changes: &[NodeChange<'_>],
        garbage: &[Bytes],
        growth: Growth,
    ) -> Result<bool> {
        items.observe_now()?;
        let per_part = self.items.limits().transact_items_max - 1;
        let parts = changes.len().div_ceil(per_part).max(1);
        let mut has_begun = false;
        for part in 0..parts {
            let changes = &changes[part * per_part..changes.len().min((part + 1) * per_part)];
            let cursor = move_cursor(step, (part, parts), garbage, growth);
            let cursor = cursor.depends_on(items.point());
            let updates = applying(cursor, changes)?;
            let is_done_here = apply_part(items, step, part, updates).await?;
            has_begun |= part == 0 && is_done_here;
        }
        Ok(has_begun)
    }
}

/// The updates that apply a whole slot, for a transaction that depends on every earlier observation
/// of the store. One of them is refused if the slot is applied already.
pub fn applying_at_once(
    step: Step,
    changes: &[NodeChange<'_>],
    garbage: &[Bytes],
    growth: Growth,
) -> Result<Vec<Update>> {
    applying(move_cursor(step, (0, 1), garbage, growth), changes)
}

fn applying(cursor: Update, changes: &[NodeChange<'_>]) -> Result<Vec<Update>> {
    let mut updates = Vec::with_capacity(changes.len() + 1);
    updates.push(cursor);
    for (path, node) in changes {
        let key = key(path).ok_or_else(|| Error::corrupt(format!("apply a change of {path:?}")))?;
        updates.push(match node {
            Some(node) => Update::put(key, node.attributes(path)),
            None => Update::delete(key),
        });
    }
    Ok(updates)
}

/// Returns whether this call applied the part. False if a slow predecessor did.
async fn apply_part(
    items: &mut TrackedStore,
    step: Step,
    part: usize,
    updates: Vec<Update>,
) -> Result<bool> {
    match items.store().transact(updates).await? {
        Transacted::Done { receipt, .. } => items.observe(receipt.point).map(|()| true),
        Transacted::Conflict { item, receipt, .. } => {
            let number = |name| item.as_ref().and_then(|item| item.integer(name));
            let applied = number(SLOT).unwrap_or_default() as u64;
            let parts = number(PART).unwrap_or_default() as usize;
            if applied >= step.slot || (applied == step.previous && parts > part) {
                return items.observe(receipt.point).map(|()| false);
            }
            Err(Error::corrupt(format!(
                "apply part {part} of slot {} with the cursor at slot {applied}",
                step.slot
            )))
        }
    }
}

/// The step from one slot to the next.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The slot applied before this one, or zero if there is none.
    pub previous: u64,
    pub slot: u64,
    /// The epoch of the distributor that logged it.
    pub epoch: u64,
    pub last: Zxid,
}

/// Moves the cursor, if it is at the previous slot and exactly the parts before this one are
/// applied.
fn move_cursor(
    step: Step,
    (part, parts): (usize, usize),
    garbage: &[Bytes],
    growth: Growth,
) -> Update {
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
    if part == 0 {
        actions.extend(growth.actions());
    }
    if part == 0 && !garbage.is_empty() {
        actions.push(Action::Append(GARBAGE.into(), garbage.to_vec()));
    }
    Update::modify(cursor_key(), actions).when(condition)
}

fn cursor_key() -> Key {
    Key::new("cursor", [])
}

/// The kind of the partitions of children.
const CHILDREN: &str = "children:";

fn children_partition(path: &str) -> Vec<u8> {
    [CHILDREN.as_bytes(), &keys::encode(path)].concat()
}

/// The key of a znode, or `None` for a path that no znode can have.
fn key(path: &str) -> Option<Key> {
    // Split at its last slash, `//a` would be `/a`.
    if path.len() > path::PATH_BYTES_MAX || path.starts_with("//") {
        return None;
    }
    match path::split(path) {
        Some((parent, name)) => Some(keys::within(CHILDREN, parent, &keys::encode(name))),
        None if path == "/" => Some(Key::new("root", [])),
        None => None,
    }
}

/// Writes an object once. Succeeds if it exists already.
///
/// Errors: `NoRoom` if it does not exist and the disk is full.
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
            // On a full disk the put may fail although the object exists.
            let is_there = failure.kind() == ErrorKind::NoRoom && objects.head(&path).await.is_ok();
            if is_there { Ok(()) } else { Err(failure) }
        }
    }
}

/// Removes an object. Succeeds if it does not exist.
pub(crate) async fn remove_object(objects: &dyn ObjectStore, object: &ObjectPath) -> Result<()> {
    match objects.delete(object).await {
        Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
        Err(cause) => Err(Error::unavailable(format!("delete object {object}")).caused_by(cause)),
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
