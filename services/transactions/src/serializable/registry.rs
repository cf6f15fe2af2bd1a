//! The rows of volumes: the volumes that exist, with their settings.
//!
//! A deleted volume's row moves to a name that no volume has, so that its own name is free at once.
//! Its data are deleted afterwards.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Item, Update,
    key_value::{Action, Name, Outcome, Scan, Transacted, Value},
};
use primitives::AtomicCounter;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    model::KeyspaceId,
    serializable::{
        FORMAT,
        model::{BlockBytes, Slot},
        rows,
        volumes::{VolumeName, VolumeSettings},
    },
    storage::store::Store,
};

/// The attribute of all rows of volumes.
pub(crate) const RECORD: &str = "record";
/// Rows in one page.
const PAGE_ROWS: usize = 1_000;
/// The first byte of the sort keys of deleted volumes. No name of a volume begins with it.
const DELETED: u8 = b'!';

/// The row of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeRow {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) block_bytes: BlockBytes,
    pub(crate) quota_bytes: Option<u64>,
    /// When it was created, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// The volumes that it reads through to, and at which slots: its origin, that one's, and so on.
    pub(crate) parents: Vec<(KeyspaceId, Slot)>,
}

impl VolumeRow {
    fn encode(&self) -> Bytes {
        FORMAT.encode(self, 64 + 16 * self.parents.len())
    }

    fn decode(item: &Item) -> Result<Self> {
        Ok(FORMAT.decode(record(item)?, "the row of a volume")?)
    }
}

/// The record of an item. Errors: `Corrupt` if it has none.
pub(crate) fn record(item: &Item) -> Result<&Bytes> {
    let missing = || Error::Corrupt("a row of a volume has no record".into());
    item.bytes(RECORD).ok_or_else(missing)
}

/// The update that writes a row.
pub(crate) fn put(key: ports::Key, record: Bytes) -> Update {
    Update::put(key, vec![(Name::from(RECORD), Value::Bytes(record))])
}

/// The row of a volume to be created, with a keyspace of its own.
pub(crate) async fn new_row(
    store: &Store,
    settings: VolumeSettings,
    created_ms: u64,
) -> Result<VolumeRow> {
    let counter = AtomicCounter::new(store.key_value().clone(), rows::keyspaces());
    // Keyspaces need not be dense, so a lost answer only skips one.
    let counted = store.again(|| counter.add(1)).await?;
    store.seen(counted.receipt.point)?;
    let keyspace = u32::try_from(counted.value).ok().map(KeyspaceId);
    Ok(VolumeRow {
        keyspace: keyspace
            .ok_or_else(|| Error::Corrupt("the store has no keyspaces left".into()))?,
        block_bytes: settings.block_bytes,
        quota_bytes: settings.quota_bytes,
        created_ms,
        parents: Vec::new(),
    })
}

/// Creates a volume by its row. Errors: `VolumeExists`.
pub(crate) async fn create(store: &Store, name: &VolumeName, row: &VolumeRow) -> Result<()> {
    let update = put(rows::volume(name.as_str()), row.encode()).when(Condition::Absent);
    let (outcome, point) = store.update(update).await?;
    // A repeat after a lost answer finds its own row.
    if let Outcome::Conflict(Some(item)) = outcome
        && VolumeRow::decode(&item)? != *row
    {
        return Err(Error::VolumeExists);
    }
    store.externalize(point).await
}

/// The row of a volume. Errors: `NoSuchVolume`.
pub(crate) async fn find(store: &Store, name: &VolumeName) -> Result<VolumeRow> {
    Ok(found(store, name).await?.0)
}

/// The row of a volume, with the item that has it. Errors: `NoSuchVolume`.
pub(crate) async fn found(store: &Store, name: &VolumeName) -> Result<(VolumeRow, Arc<Item>)> {
    let item = store.get(&rows::volume(name.as_str())).await?.value;
    let item = item.ok_or(Error::NoSuchVolume)?;
    Ok((VolumeRow::decode(&item)?, item))
}

/// The rows of all volumes.
#[derive(Debug)]
pub(crate) struct Listed {
    /// In the order of their names.
    pub(crate) volumes: Vec<(VolumeName, VolumeRow)>,
    /// Deleted ones whose data are still there.
    pub(crate) deleted: Vec<VolumeRow>,
    pub(crate) point: DurabilityPoint,
}

/// Reads the rows of all volumes.
pub(crate) async fn list(store: &Store) -> Result<Listed> {
    let scan = Scan::partition(rows::VOLUMES, PAGE_ROWS);
    let (items, point) = store.scan_all(scan).await?;
    let (mut volumes, mut deleted) = (Vec::new(), Vec::new());
    for (sort, item) in items {
        let row = VolumeRow::decode(&item)?;
        if sort.first() == Some(&DELETED) {
            deleted.push(row);
            continue;
        }
        let name = std::str::from_utf8(&sort).ok().map(VolumeName::new);
        let name = name.and_then(Result::ok);
        let name = name.ok_or_else(|| Error::Corrupt("the name of a volume".into()))?;
        volumes.push((name, row));
    }
    Ok(Listed {
        volumes,
        deleted,
        point,
    })
}

/// Changes the quota. Returns the volume's row. Errors: `NoSuchVolume`.
pub(crate) async fn set_quota(
    store: &Store,
    name: &VolumeName,
    quota_bytes: Option<u64>,
) -> Result<VolumeRow> {
    change(store, name, |row| VolumeRow { quota_bytes, ..row }).await
}

/// Makes a [`delete`] fail that has found the volume before this call. Errors: `NoSuchVolume`.
pub(crate) async fn keep(store: &Store, name: &VolumeName) -> Result<()> {
    change(store, name, |row| row).await.map(drop)
}

async fn change(
    store: &Store,
    name: &VolumeName,
    changed: impl Fn(VolumeRow) -> VolumeRow,
) -> Result<VolumeRow> {
    loop {
        let (row, item) = found(store, name).await?;
        let row = changed(row);
        let actions = vec![Action::set(RECORD, row.encode())];
        let update = Update::modify(rows::volume(name.as_str()), actions);
        let update = update.when(Condition::VersionIs(item.version));
        if let (Outcome::Done(_), point) = store.update(update).await? {
            store.externalize(point).await?;
            return Ok(row);
        }
    }
}

/// Deletes the row of a volume as it was [`found`], and notes that its data are to be deleted.
/// Errors: `Unavailable` if the row has changed since, because a clone may read the volume now.
pub(crate) async fn delete(
    store: &Store,
    name: &VolumeName,
    (row, item): (VolumeRow, Arc<Item>),
) -> Result<VolumeRow> {
    let mut delays = Store::delays();
    loop {
        let changes = vec![
            Update::delete(rows::volume(name.as_str())).when(Condition::VersionIs(item.version)),
            put(deleted(row.keyspace), row.encode()),
        ];
        let changes = changes.into_iter();
        let changes = changes.map(|change| change.depends_on(store.basis()));
        match store.key_value().transact(changes.collect()).await {
            Ok(Transacted::Done { receipt, .. }) => {
                let point = store.seen(receipt.point)?;
                store.externalize(point).await?;
                return Ok(row);
            }
            Ok(Transacted::Conflict { .. }) => {
                // After a lost answer the row may be gone because of this call.
                if store.get(&deleted(row.keyspace)).await?.value.is_some() {
                    return Ok(row);
                }
                return Err(Error::unavailable(
                    "the volume was changed while it was deleted: repeat the call",
                ));
            }
            Err(error) if error.is_retryable() => store.pause(&mut delays).await,
            Err(error) => return Err(error.into()),
        }
        store.check_fence()?;
    }
}

/// The row of a deleted volume.
pub(crate) fn deleted(keyspace: KeyspaceId) -> ports::Key {
    let sort = [&[DELETED][..], &keyspace.0.to_be_bytes()].concat();
    ports::Key::new(rows::VOLUMES, sort)
}
