//! Large values in objects: an installation puts those of its slots together, and the rows name
//! their places. So their bytes are written to the log's store once and to an object once, and no
//! checkpoint has them.
//!
//! A collection deletes an object when no version lies in it any more. If less than a quarter is
//! left, it moves that into the rows.
//!
//! Invariants
//! - An object is put before a row names it, and deleted after the last such row is durably gone.
//! - Each object is doubtful until a collection has found its versions. Its row says so durably, and
//!   an object without a row is found by a list.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use ports::{
    Condition, Item, Update,
    key_value::{Name, Scan, Value},
};

use super::Volume;
use crate::{
    Error, Result,
    broken::Broken,
    context::SharedObjects,
    model::KeyspaceId,
    serializable::{
        apply::Change,
        model::{CheckedObjects, Key, Slot, Unreferenced},
        newest::Content,
        objects,
        overlay::LoggedSlot,
        registry::{RECORD, record},
        rows::{self, ObjectId, ObjectRow, Place, Version, VersionRow},
    },
};

/// The attribute of the row of an object that may have no version left.
const DOUBTFUL: &str = "doubtful";
/// The most bytes of an object, unless its first value is longer.
const OBJECT_BYTES_MAX: usize = 8 << 20;
/// The most bytes of the keys of the values in an object: its row has them.
const OBJECT_KEYS_BYTES_MAX: usize = 128 << 10;
/// How many objects are put, or read, at once.
const OBJECTS_AT_ONCE: usize = 4;
/// If less than this part of an object is left, that is moved: 1 of so many.
const LEFT_PART: u64 = 4;
/// Rows in one page.
const PAGE_ROWS: usize = 16;

/// A large value of a slot.
struct Large<'a> {
    slot: Slot,
    key: &'a Key,
    value: &'a Bytes,
}

/// A version whose value lies in an object.
struct Left {
    key: Key,
    row: ports::Key,
    version: ports::key_value::Version,
    place: Place,
}

/// The places of large values, by their slots and keys.
pub(super) type Places<'a> = BTreeMap<(Slot, &'a Key), Place>;

impl Volume {
    /// Puts the large values of slots into objects. Returns their places, and the rows of the
    /// objects. Values that could not be put stay in the rows of their versions.
    pub(super) async fn place<'a>(
        &self,
        batch: &'a [Arc<LoggedSlot>],
    ) -> Result<(Places<'a>, Vec<Update>)> {
        let limits = self.store.key_value().limits();
        let objects = self.context.volume_objects.as_ref();
        // Each step of rows must fail once a successor installs the same slots into its own objects.
        let Some(objects) = objects.filter(|_| limits.transact_across_partitions) else {
            return Ok(Default::default());
        };
        let config = &self.context.config;
        let of_slot = |written: &'a Arc<LoggedSlot>| {
            written.changes.iter().filter_map(|(key, change)| {
                let slot = written.slot;
                match change {
                    Change::Put(value) if value.len() >= config.volume_value_bytes_min => {
                        Some(Large { slot, key, value })
                    }
                    _ => None,
                }
            })
        };
        let large: Vec<_> = batch.iter().flat_map(of_slot).collect();
        let bytes: usize = large.iter().map(|large| large.value.len()).sum();
        if bytes < config.volume_object_bytes_min.max(1) {
            return Ok(Default::default());
        }
        let puts = in_objects(&large).map(|some| self.put_object(objects, some));
        let puts: Vec<_> = puts.collect();
        let put: Vec<_> = stream::iter(puts).buffered(OBJECTS_AT_ONCE).collect().await;
        let (mut places, mut rows) = (Places::new(), Vec::new());
        for (of_object, row) in put.into_iter().flatten() {
            places.extend(of_object);
            rows.push(row);
        }
        Ok((places, rows))
    }

    /// Puts values as one object. `None`: it could not be put.
    async fn put_object<'a>(
        &self,
        objects: &SharedObjects,
        large: &[Large<'a>],
    ) -> Option<(Places<'a>, Update)> {
        let random = [0; 2].map(|_: u8| self.context.entropy.next_u64());
        let id = ObjectId((u128::from(random[0]) << 64 | u128::from(random[1])).to_be_bytes());
        let (mut offset, mut places, mut versions) = (0, Places::new(), Vec::new());
        for Large { slot, key, value } in large {
            let place = Place {
                object: id,
                offset,
                bytes: value.len() as u32,
                crc: crc32fast::hash(value),
            };
            offset += place.bytes;
            places.insert((*slot, *key), place);
            versions.push(((*key).clone(), *slot));
        }
        // Noted first: if this future is dropped, the object may be there without a row.
        self.state().doubtful.insert(id);
        let values = large.iter().map(|large| large.value.clone()).collect();
        if !self.context.breaks(Broken::RowsBeforeObject)
            && let Err(error) = objects::put(objects, self.keyspace, id, values).await
        {
            tracing::warn!(%error, "large values of a volume stay in its rows");
            return None;
        }
        let bytes = u64::from(offset);
        let row = doubtful_row(self.keyspace, id, ObjectRow { bytes, versions }.encode());
        Some((places, row))
    }

    /// The values of `contents`. `None`: an object is gone, since a collection moved its values or
    /// deleted them.
    pub(super) async fn bytes_of(
        &self,
        contents: Vec<Option<Content>>,
    ) -> Result<Option<Vec<Option<Bytes>>>> {
        let mut found = Vec::with_capacity(contents.len());
        let mut placed = BTreeMap::<(KeyspaceId, ObjectId), Vec<(usize, Place)>>::new();
        for (index, content) in contents.into_iter().enumerate() {
            found.push(match content {
                Some(Content::Here(value)) => Some(value),
                Some(Content::Placed(keyspace, place)) => {
                    let of_object = placed.entry((keyspace, place.object)).or_default();
                    of_object.push((index, place));
                    None
                }
                None => None,
            });
        }
        if placed.is_empty() {
            return Ok(Some(found));
        }
        let missing = || Error::Corrupt("the server was given no store of objects".into());
        let objects = self.context.volume_objects.as_ref().ok_or_else(missing)?;
        let reads = placed
            .into_iter()
            .map(|((keyspace, id), wanted)| async move {
                let places: Vec<_> = wanted.iter().map(|(_, place)| *place).collect();
                let values = objects::get(&self.store, objects, keyspace, id, &places).await?;
                Ok::<_, Error>(
                    values.map(|values| wanted.into_iter().map(|(index, _)| index).zip(values)),
                )
            });
        let reads: Vec<_> = reads.collect();
        let reads: Vec<_> = stream::iter(reads)
            .buffered(OBJECTS_AT_ONCE)
            .try_collect()
            .await?;
        for values in reads {
            let Some(values) = values else {
                return Ok(None);
            };
            for (index, value) in values {
                found[index] = Some(value);
            }
        }
        Ok(Some(found))
    }

    /// Notes that versions in an object are about to be deleted.
    pub(super) async fn doubt(&self, id: ObjectId) -> Result<()> {
        if !self.state().doubtful.insert(id) {
            return Ok(());
        }
        let key = rows::object(self.keyspace, id);
        if let Some(item) = self.store.get(&key).await?.value {
            let row = doubtful_row(self.keyspace, id, record(&item)?.clone());
            self.store.finish(&row).await?;
        }
        Ok(())
    }

    /// Deletes the objects that have no version left.
    pub(super) async fn collect_objects(&self) -> Result<()> {
        let Some(objects) = &self.context.volume_objects else {
            return Ok(());
        };
        if self.state().lists_objects {
            self.find_doubtful(objects).await?;
            self.state().lists_objects = false;
        }
        let doubtful = self.state().doubtful.clone();
        let mut empty = Vec::new();
        for id in doubtful {
            if self.is_empty(id).await? {
                empty.push(id);
            } else {
                self.state().doubtful.remove(&id);
            }
        }
        if empty.is_empty() {
            return Ok(());
        }
        // A crash must not bring back a row that names a deleted object.
        self.store.externalize(self.store.basis()).await?;
        for id in empty {
            objects::delete(&self.store, objects, self.keyspace, id).await?;
            let row = Update::delete(rows::object(self.keyspace, id));
            self.store.finish(&row).await?;
            self.state().doubtful.remove(&id);
        }
        Ok(())
    }

    /// Reads every object that has versions left, and finds the others. Works on a volume that
    /// nothing else uses.
    pub(crate) async fn check_objects(&self, others: Unreferenced) -> Result<CheckedObjects> {
        self.check()?;
        let mut checked = CheckedObjects::default();
        let Some(objects) = &self.context.volume_objects else {
            return Ok(checked);
        };
        let listed = objects::list(&self.store, objects, self.keyspace).await?;
        let mut ids: BTreeSet<_> = listed.into_iter().collect();
        self.each_object_row(|id, _| {
            ids.insert(id);
        })
        .await?;
        let mut unreferenced = Vec::new();
        for id in ids {
            let left = {
                let _installing = self.installing.lock().await;
                self.left_in(id).await?
            };
            checked.count += 1;
            let left = left.map_or_else(Vec::new, |(_, left)| left);
            if left.is_empty() {
                unreferenced.push(id);
                continue;
            }
            let places: Vec<_> = left.iter().map(|left| left.place).collect();
            let problem = match objects::get(&self.store, objects, self.keyspace, id, &places).await
            {
                Ok(Some(_)) => continue,
                Ok(None) => "missing",
                Err(Error::Corrupt(_)) => "damaged",
                Err(error) => return Err(error),
            };
            checked.add(objects::name(self.keyspace, id), problem);
        }
        checked.unreferenced = unreferenced.len() as u64;
        if others == Unreferenced::Delete && !unreferenced.is_empty() {
            self.state().doubtful.extend(unreferenced);
            self.collect_objects().await?;
            checked.deleted = checked.unreferenced;
        }
        Ok(checked)
    }

    /// Finds the doubtful objects of earlier starts.
    async fn find_doubtful(&self, objects: &SharedObjects) -> Result<()> {
        let listed = objects::list(&self.store, objects, self.keyspace).await?;
        let mut doubtful: BTreeSet<_> = listed.into_iter().collect();
        self.each_object_row(|id, item| {
            if item.integer(DOUBTFUL).is_some() {
                doubtful.insert(id);
            } else {
                doubtful.remove(&id);
            }
        })
        .await?;
        // Checks that this epoch is the last one: none of the objects is a successor's.
        self.set_installed(|_| {}).await?;
        self.state().doubtful.extend(doubtful);
        Ok(())
    }

    async fn each_object_row(&self, mut each: impl FnMut(ObjectId, &Item)) -> Result<()> {
        let mut scan = Scan::partition(rows::objects(self.keyspace), PAGE_ROWS);
        loop {
            let page = self.store.scan(&scan).await?.value;
            for (sort, item) in page.items {
                let corrupt = |_| Error::Corrupt("the row of an object of a volume".into());
                let id = <[u8; 16]>::try_from(&sort[..]).map_err(corrupt)?;
                each(ObjectId(id), &item);
            }
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok(()),
            }
        }
    }

    /// The row of an object, and the versions that are left in it. `None`: it has no row. The
    /// caller holds the lock of installations: one that has put the object has also written all of
    /// its rows, or failed.
    async fn left_in(&self, id: ObjectId) -> Result<Option<(ObjectRow, Vec<Left>)>> {
        let key = rows::object(self.keyspace, id);
        let Some(item) = self.store.get(&key).await?.value else {
            return Ok(None);
        };
        let row = ObjectRow::decode(record(&item)?)?;
        let mut left = Vec::new();
        // Rows of later slots do not count, and are written again with other places.
        let installed = self.state().installed.slot;
        let counts = |(_, slot): &&(Key, Slot)| *slot <= installed;
        for (key, slot) in row.versions.iter().filter(counts) {
            let sort = rows::version(self.keyspace, key, *slot);
            if let Some(item) = self.store.get(&sort).await?.value
                && let Version::Placed(place) = VersionRow::decode(record(&item)?)?
                && place.object == id
            {
                left.push(Left {
                    key: key.clone(),
                    row: sort,
                    version: item.version,
                    place,
                });
            }
        }
        Ok(Some((row, left)))
    }

    /// Whether an object has no version any more. Moves few that are left into their rows. If many
    /// are left, it is not doubtful any more.
    async fn is_empty(&self, id: ObjectId) -> Result<bool> {
        let _installing = self.installing.lock().await;
        let Some((row, left)) = self.left_in(id).await? else {
            return Ok(true);
        };
        if self.context.breaks(Broken::DeletesReferencedObjects) {
            return Ok(true);
        }
        let bytes: u64 = left.iter().map(|left| u64::from(left.place.bytes)).sum();
        if bytes.saturating_mul(LEFT_PART) >= row.bytes && !left.is_empty() {
            let kept = vec![(Name::from(RECORD), Value::Bytes(row.encode()))];
            let kept = Update::put(rows::object(self.keyspace, id), kept);
            self.store.finish(&kept).await?;
            return Ok(false);
        }
        for Left {
            key,
            row,
            version,
            place,
        } in left
        {
            let content = Some(Content::Placed(self.keyspace, place));
            let value = match self.bytes_of(vec![content]).await {
                Ok(Some(values)) => values.into_iter().next().flatten(),
                Ok(None) | Err(Error::Corrupt(_)) => None,
                Err(error) => return Err(error),
            };
            let Some(value) = value else {
                tracing::error!(object = ?id, "a value of a volume is damaged, and stays in its object");
                return Ok(false);
            };
            let value = VersionRow::encode(&Change::Put(value));
            let row = super::put(row, value).when(Condition::VersionIs(version));
            self.store.finish(&row).await?;
            self.state().newest.remove(&key);
        }
        Ok(true)
    }
}

/// The row of an object that a collection will look at.
fn doubtful_row(keyspace: KeyspaceId, id: ObjectId, row: Bytes) -> Update {
    let attributes = vec![
        (Name::from(RECORD), Value::Bytes(row)),
        (Name::from(DOUBTFUL), Value::Integer(1)),
    ];
    Update::put(rows::object(keyspace, id), attributes)
}

/// Large values by the objects that they are put into.
fn in_objects<'l, 'a>(large: &'l [Large<'a>]) -> impl Iterator<Item = &'l [Large<'a>]> {
    let (mut bytes, mut keys) = (0, 0);
    large.chunk_by(move |one, next| {
        bytes += one.value.len();
        keys += one.key.bytes_len();
        let fits = bytes + next.value.len() <= OBJECT_BYTES_MAX && keys <= OBJECT_KEYS_BYTES_MAX;
        if !fits {
            (bytes, keys) = (0, 0);
        }
        fits
    })
}
